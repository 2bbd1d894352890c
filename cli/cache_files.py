"""``--save-cache`` and ``--load-cache`` of generate and chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from selfdraft.cli.console import bytes_text, note
from selfdraft.runtime.cache_file import check_target, load_cache, save_cache
from selfdraft.runtime.loop import DecodeLoop

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

SLOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFiles:
    """Where a run takes its cache from, and where it leaves it. Refuses a place that is taken."""

    load: Path | None = None
    save: Path | None = None

    def __post_init__(self) -> None:
        if self.save is not None:
            check_target(self.save)

    def restore(self, loop: DecodeLoop, session: Session) -> Mapping[str, str]:
        """Let the loop's slot hold the saved cache; what was saved beside it.

        Raises ``ConfigError``, ``BundleError`` or ``ResourceError`` for a cache that does not fit.
        """
        if self.load is None:
            return {}
        saved = load_cache(self.load, session.bundle.manifest)
        loop.restore(SLOT, saved.slot)
        note(f"loaded {saved.slot.cached} cached tokens from {self.load}")
        return saved.extra

    def keep(
        self, loop: DecodeLoop, session: Session, *, extra: Mapping[str, str] | None = None
    ) -> None:
        """Write what the slot holds now, where that is asked for."""
        if self.save is None:
            return
        cache = loop.slot_cache(SLOT)
        size = save_cache(self.save, cache, session.bundle.manifest, extra=extra)
        note(f"saved {cache.cached} cached tokens to {self.save} ({bytes_text(size)})")
