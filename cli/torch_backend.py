"""The torch modules of a bundle as a backend: eager fp32."""

from __future__ import annotations

from pathlib import Path

from selfdraft.cli.graphs_backend import GraphsBackend
from selfdraft.manifest import Manifest


class TorchBackend(GraphsBackend):
    """Eager fp32 torch over a bundle's weights."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        from selfdraft.export.torch_rung import TorchGraphs

        super().__init__("torch", bundle, manifest, TorchGraphs(bundle, manifest))
