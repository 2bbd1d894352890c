from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from selfdraft.manifest import GraphSpec


def write_fake_graphs(
    spec: Any, stored: Any, *, directory: Path, **options: Any
) -> dict[str, GraphSpec]:
    """Stands for ``export.graph.build_graphs``, so that bundle tests need no torch."""
    names = ("backbone", "mtp") if spec.mtp else ("backbone",)
    for name in names:
        (directory / f"{name}.onnx").write_bytes(name.encode() * 100)
    return {
        name: GraphSpec(file=f"{name}.onnx", inputs=(), outputs=(), taps=(), states=())
        for name in names
    }


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replaces the graph builder; its ``build_graphs`` may be replaced again."""
    module = types.ModuleType("selfdraft.export.graph")
    module.build_graphs = write_fake_graphs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "selfdraft.export.graph", module)
    return module
