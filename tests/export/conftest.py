from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from selfdraft.manifest import Dim, GraphSpec, StateSpec
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import delta_op


def write_fake_graphs(
    spec: Any, stored: Any, *, directory: Path, **options: Any
) -> dict[str, GraphSpec]:
    """Stands for ``export.graph.build_graphs``, so that bundle tests need no torch."""
    names = ("backbone", "mtp") if spec.mtp else ("backbone",)
    for name in names:
        (directory / f"{name}.onnx").write_bytes(name.encode() * 100)
    states = {"backbone": _recurrent_states(spec, target=options["target"]), "mtp": ()}
    return {
        name: GraphSpec(file=f"{name}.onnx", inputs=(), outputs=(), taps=(), states=states[name])
        for name in names
    }


def _recurrent_states(spec: Any, *, target: str) -> tuple[StateSpec, ...]:
    """The states without which a hybrid's bundle is refused."""
    op = delta_op(spec)
    if op is None:
        return ()
    shapes: dict[str, tuple[Dim, ...]] = {"state_len": ("batch", 1)}
    for layer in spec.delta.layers:
        shapes |= {f"{name}_{layer}": ("batch", *dims) for name, dims in op.state_shapes.items()}
    return tuple(
        StateSpec(
            name=f"backbone.{name}",
            kind="conv" if name.startswith("conv_rows") else "recurrent",
            dtype="int64" if name == "state_len" else "float32",
            shape=shape,
            input=name,
            output=f"{name}_out",
            aliased=target == "cpu" or name != "state_len",
        )
        for name, shape in shapes.items()
    )


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replaces the graph builder; its ``build_graphs`` may be replaced again."""
    module = types.ModuleType("selfdraft.export.graph")
    module.build_graphs = write_fake_graphs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "selfdraft.export.graph", module)
    return module
