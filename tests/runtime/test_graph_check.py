"""A graph that is not the one of its manifest is refused when the bundle opens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import GraphSpec, StateSpec, TensorSpec
from selfdraft.runtime.graph_check import check_graph, check_graph_names

IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "rows"))
HIDDEN = TensorSpec(name="hidden", dtype="float32", shape=("batch", "rows", 8))
STATE = StateSpec(
    name="k",
    kind="kv",
    dtype="int8",
    shape=("batch", "capacity"),
    input="k_in",
    output="k_out",
    aliased=True,
)
GRAPH = GraphSpec(
    file="g.onnx", inputs=(IDS,), outputs=(HIDDEN,), taps=("hidden",), states=(STATE,)
)


def _tensor(name: str, kind: str, *shape: int | str) -> Any:
    return SimpleNamespace(name=name, type=f"tensor({kind})", shape=list(shape))


class Session:
    """The graph that ``GRAPH`` describes."""

    def get_inputs(self) -> list[Any]:
        return [
            _tensor("ids", "int64", "batch", "rows"),
            _tensor("k_in", "int8", "batch", "capacity"),
        ]

    def get_outputs(self) -> list[Any]:
        hidden = _tensor("hidden", "float", "batch", "rows", 8)
        return [hidden, _tensor("k_out", "int8", "batch", "capacity")]


def _with(spec: Any, **changes: Any) -> Any:
    return dataclasses.replace(spec, **changes)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "input missing": ({"inputs": ()}, "has the input 'ids'"),
    "input of another name": ({"inputs": (_with(IDS, name="x"),)}, "no input 'x'"),
    "unknown type": ({"inputs": (_with(IDS, dtype="zz"),)}, "tensor(int64) as input ids"),
    "unknown symbol": ({"inputs": (_with(IDS, shape=("batch", "zz")),)}, "shape ['batch', 'rows']"),
    "other rank": ({"inputs": (_with(IDS, shape=("batch",)),)}, "as input ids"),
    "other size": ({"outputs": (_with(HIDDEN, shape=("batch", "rows", 9)),)}, "as output hidden"),
    "output missing": ({"outputs": ()}, "has the output 'hidden'"),
    "state missing": ({"states": ()}, "has the input 'k_in'"),
    "state of another type": ({"states": (_with(STATE, dtype="float32"),)}, "as input k_in"),
    "state output of another name": ({"states": (_with(STATE, output="y"),)}, "no output 'y'"),
    "no tap": ({"taps": ()}, "for a tap"),
    "tap that is no output": ({"taps": ("z",)}, "no output 'z' for a tap"),
}


def test_graph_as_described_passes() -> None:
    check_graph(Session(), GRAPH)


@pytest.mark.parametrize("name", WRONG)
def test_other_graph_is_refused_naming_the_tensor(name: str) -> None:
    changes, named = WRONG[name]
    with pytest.raises(BundleError) as caught:
        check_graph(Session(), _with(GRAPH, **changes))
    assert named in caught.value.problem


@pytest.mark.parametrize("names", [(), ("mtp",), ("backbone",), ("backbone", "mtp", "x")])
def test_manifest_without_its_graphs_is_refused(tiny: ModuleType, names: tuple[str, ...]) -> None:
    manifest = tiny.manifest(tiny.model_spec())
    graphs = dict.fromkeys(names, GRAPH)
    with pytest.raises(BundleError, match="its model needs"):
        check_graph_names(_with(manifest, graphs=graphs))


@pytest.mark.parametrize("size", [0, -1, 2**31, 10**20])
def test_impossible_sizes_are_refused(tiny: ModuleType, size: int) -> None:
    for name in ("num_kv_heads", "vocab_size"):
        with pytest.raises(ValueError, match=f"{name} is {size}"):
            tiny.model_spec(**{name: size})
    limits = tiny.manifest(tiny.model_spec()).limits
    with pytest.raises(ValueError, match=f"prefill_rows is {size}"):
        _with(limits, prefill_rows=size)


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_impossible_number_of_threads_is_refused(tiny: ModuleType, threads: int) -> None:
    pytest.importorskip("onnxruntime")
    from selfdraft.runtime.ort import OrtBackend

    with pytest.raises(ConfigError, match=f"threads is {threads}"):
        OrtBackend(Path("none"), tiny.manifest(tiny.model_spec()), threads=threads)


@pytest.mark.parametrize("token_id", [-1, 64, 10**20])
def test_end_token_outside_the_vocabulary_is_refused(tiny: ModuleType, token_id: int) -> None:
    with pytest.raises(ValueError, match=f"eos_ids has {token_id}"):
        tiny.manifest(tiny.model_spec(), eos_ids=(token_id,))


@pytest.mark.parametrize("shape", [(1, 2, 640, 16), (3, 1, 7, 5), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_buffers_are_zeros_that_begin_at_a_page(shape: tuple[int, ...], dtype: str) -> None:
    """Where a copy's target lies a few bytes behind its source within a page, copies are slow."""
    from selfdraft.runtime.ort import HostTensor

    array = HostTensor.zeros(shape, dtype).array
    assert array.shape == shape and array.dtype == dtype and not array.any()
    assert array.ctypes.data % 4096 == 0 and array.flags.c_contiguous
