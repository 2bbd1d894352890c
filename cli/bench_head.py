"""What every line of a benchmark says about machine, bundle and engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfdraft.cli.environment import bundle_sha256, environment_record

if TYPE_CHECKING:
    from selfdraft.cli.session import Session


def bench_head(session: Session) -> dict[str, Any]:
    """Facts about machine, bundle and engine for the head of every line."""
    manifest = session.bundle.manifest
    return {
        **environment_record(),
        "bundle": str(session.bundle.path),
        "bundle_sha256": bundle_sha256(session.bundle.path),
        "model": manifest.source.name,
        "weights": manifest.precision.weights,
        "backend": session.backend.name,
        "threads": session.threads,
    }
