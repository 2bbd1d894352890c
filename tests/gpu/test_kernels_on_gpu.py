"""The kernels on a GPU against the oracles. Each test also runs on an imitated driver, whose kernels are
executed by the host layer: that proves the test, and how launches, copies and graphs are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import delta_checks
from support.delta_kernels import SOURCE as DELTA_SOURCE
from support.delta_kernels import DeltaKernels
from support.fake_cuda import FakeCompiler, FakeCuda
from support.host_kernels import kernel_file
from support.int4_cases import SOURCE
from support.int4_checks import (
    check_bad_rows,
    check_oracle,
    check_repeats,
    check_rows_alone,
    make_op,
)
from support.kernel_cases import Case, case_name, covering_array, make_kernel_op, step_of
from support.kernel_checks import bits, check_step
from support.kernel_step import KernelStep, random_step, run_kernels

from benchmarks.cuda_driver import Gpu
from benchmarks.device_library import DeviceLibrary, compile_for, find_toolchain, moved
from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.build.toolchain import Toolchain
from selfdraft.trt_plugins.cached_attention.launches import POINTERS, StepParams
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.host.launch import params_from
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES

CASES = covering_array(size=200, seed=1)
REAL = pytest.param("real", marks=pytest.mark.gpu)
ON_A_REAL_GPU = pytest.mark.parametrize("machine", [REAL], indirect=True)
Libraries = Callable[[Path], DeviceLibrary]


@pytest.fixture(scope="module", params=["imitated", REAL])
def machine(request: pytest.FixtureRequest) -> Iterator[tuple[Gpu, Toolchain]]:
    """A GPU with a compiler for it."""
    if request.param == "imitated":
        yield Gpu(FakeCuda()), FakeCompiler()
        return
    try:
        yield Gpu(), find_toolchain()
    except DeviceError as error:
        pytest.skip(f"{error.problem}; {error.hint}")


@pytest.fixture(scope="module")
def library(machine: tuple[Gpu, Toolchain]) -> Libraries:
    """The kernels of a file on that GPU, compiled once."""
    gpu, toolchain = machine
    cubins: dict[Path, bytes] = {}

    def of(source: Path, edits: Any = ()) -> DeviceLibrary:
        assert not edits
        if source not in cubins:
            cubins[source] = compile_for(gpu, source, toolchain)
        return DeviceLibrary(gpu, cubins[source])

    return of


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize(
    "check",
    [check_oracle, check_rows_alone, check_bad_rows, check_repeats],
    ids=lambda check: check.__name__[6:],
)
def test_int4_matmul_keeps(check: Callable[..., None], group: int, library: Libraries) -> None:
    check(library(kernel_file(SOURCE)), make_op(group, inputs=3 * group, outputs=70))


@ON_A_REAL_GPU
@pytest.mark.parametrize("group", GROUP_SIZES)
def test_int4_matmul_agrees_at_the_size_of_a_model(group: int, library: Libraries) -> None:
    kernels, op = library(kernel_file(SOURCE)), make_op(group, inputs=9728, outputs=2560)
    check_oracle(kernels, op)
    check_rows_alone(kernels, op)


@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
@pytest.mark.parametrize(
    "check",
    [
        delta_checks.check_oracle,
        delta_checks.check_rollback,
        delta_checks.check_idle,
        delta_checks.check_bad_drafts,
        delta_checks.check_repeats,
    ],
    ids=lambda check: check.__name__[6:],
)
def test_gated_delta_rule_keeps(
    check: Callable[..., None], dims: tuple[int, int], library: Libraries
) -> None:
    op = GatedDeltaRule(
        num_key_heads=1,
        num_value_heads=2,
        key_dim=dims[0],
        value_dim=dims[1],
        taps=4,
        row_dtype="fp16",
    )
    check(op, DeltaKernels(library(kernel_file(DELTA_SOURCE))))


@pytest.fixture
def on_gpu(library: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run_kernels`` launches there."""
    monkeypatch.setattr("support.kernel_step.host_library", library)


@pytest.mark.parametrize("case", CASES[::40], ids=case_name)
def test_an_attention_step_is_that_of_the_oracle(case: Case, on_gpu: None) -> None:
    step = step_of(case, seed=CASES.index(case))
    check_step(step, run_kernels(step))


@pytest.mark.parametrize("selector", ["all", "mean_std"])
@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
def test_a_chunk_of_a_prompt_is_that_of_the_oracle(
    selector: str, kv_dtype: str, on_gpu: None
) -> None:
    op = make_kernel_op(selector=selector, kv_dtype=kv_dtype, group=4, budget_tokens=64 * 6)
    step = replace(random_step(op, [600], rows=40, seed=3), prefill=True)
    check_step(step, run_kernels(step))


@ON_A_REAL_GPU
@pytest.mark.parametrize("part", range(10))
def test_all_attention_cases_are_those_of_the_oracle(part: int, on_gpu: None) -> None:
    for case in CASES[part::10]:
        step = step_of(case, seed=CASES.index(case))
        check_step(step, run_kernels(step))


def test_one_captured_step_serves_lengths_across_block_and_budget_borders(
    machine: tuple[Gpu, Toolchain], library: Libraries, on_gpu: None
) -> None:
    gpu, toolchain = machine
    op = make_kernel_op(selector="mean_std", group=4, budget_tokens=256)
    steps = [
        random_step(op, [length], rows=2, seed=5, spare_blocks=12 - -(-(length + 2) // op.block))
        for length in (64, 65, 66, 128, 129, 256, 257, 320, 321, 500)
    ]
    with CapturedStep(gpu, toolchain, steps[0]) as replay:
        for step in steps:
            expected = run_kernels(step)
            np.testing.assert_array_equal(bits(replay(step)), bits(expected.y))


class CapturedStep:
    """A graph of one step's kernels; called with another step of that shape, it gives its y."""

    def __init__(self, gpu: Gpu, toolchain: Toolchain, step: KernelStep) -> None:
        self.gpu, self.shape = gpu, step.shape
        arrays: dict[str, Any] = self._inputs(step) | {
            "y": np.zeros_like(step.q),
            "blocks_read": np.zeros(1, dtype=np.int64),
        }
        for name, (dims, dtype) in self.shape.workspace.items():
            arrays[name] = np.zeros(dims, dtype=dtype)
        self.addresses = {name: gpu.upload_new(array) for name, array in arrays.items()}
        on_host, _ = params_from(
            StepParams,
            **{**dict.fromkeys(POINTERS), **arrays},
            **self.shape.integers,
            scale=step.op.scale,
            spread=step.op.spread,
        )
        self.params = moved(
            on_host, {arrays[name].ctypes.data: at for name, at in self.addresses.items()}
        )
        self.cubins = {
            launch.file: compile_for(
                gpu, kernel_file(f"cached_attention/csrc/{launch.file}.cu"), toolchain
            )
            for launch in self.shape.launches()
        }

    def __enter__(self) -> Callable[[KernelStep], Any]:
        self.graph = self.gpu.capture(self._launch_all)
        return self._replay

    def __exit__(self, *_: object) -> None:
        self.gpu.free(*self.addresses.values())

    def _launch_all(self) -> None:
        for launch in self.shape.launches():
            cubin = self.cubins[launch.file]
            self.gpu.launch(cubin, launch.kernel, self.params, **launch.settings)

    def _replay(self, step: KernelStep) -> Any:
        assert step.shape == self.shape
        for name, array in self._inputs(step).items():
            self.gpu.upload(self.addresses[name], array)
        self.graph()
        y = np.empty_like(step.q)
        self.gpu.download(self.addresses["y"], y)
        return y

    def _inputs(self, step: KernelStep) -> dict[str, Any]:
        lengths = ("past_len", "row_count", "attend_all")
        given = {name: getattr(step, name) for name in ("q", "k", "v", *lengths)}
        return {name: array.copy() for name, array in (given | step.states).items()}


def test_unwritten_rows_are_noticed_on_the_imitated_gpu() -> None:
    """The double is no rubber stamp: a launch over too few strips leaves outputs unwritten."""
    gpu = Gpu(FakeCuda())
    source = kernel_file(SOURCE)
    library = DeviceLibrary(gpu, compile_for(gpu, source, FakeCompiler()))

    class OneStrip:
        def launch(self, kernel: str, params: Any, **settings: Any) -> Any:
            x, _, z = settings["grid"]
            return library.launch(kernel, params, **(settings | {"grid": (x, 1, z)}))

    with pytest.raises(AssertionError, match="an output was not written"):
        check_oracle(OneStrip(), make_op(64, inputs=64, outputs=130))


def test_a_missing_driver_and_full_memory_are_device_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.cuda_driver.LIBRARY", "libcuda-missing.so")
    with pytest.raises(DeviceError, match="there is no CUDA driver"):
        Gpu()
    with pytest.raises(DeviceError, match="cuMemAlloc_v2: out of memory"):
        Gpu(FakeCuda(memory_bytes=100)).allocate(101)


def test_captured_work_runs_each_time_its_graph_is_launched() -> None:
    gpu = Gpu(FakeCuda())
    first, second = (gpu.upload_new(np.full(4, i, dtype=np.int32)) for i in (1, 2))
    graph = gpu.capture(lambda: gpu.copy(first, second, 16))
    found = np.empty(4, dtype=np.int32)
    for value in (3, 4):
        gpu.upload(second, np.full(4, value, dtype=np.int32))
        gpu.download(first, found)
        assert (found == value - 1).all(), "nothing runs until the graph is launched"
        graph()
        gpu.download(first, found)
        assert (found == value).all()
