"""The host layer executes kernels as a GPU may, and notices what a GPU would punish."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from support.host_kernels import TRIAL, host_library

from selfdraft.trt_plugins.host.launch import (
    POINTER,
    HostLibrary,
    KernelError,
    Traffic,
    params_from,
    params_kind,
)

SCHEDULES = range(20)
BARRIER = ("  copy_async_wait<0>();\n  __syncthreads();\n", "  copy_async_wait<0>();\n")
WAIT = ("  copy_async_wait<0>();\n  __syncthreads();\n", "  __syncthreads();\n")
SUM_BARRIER = ("= sum;\n  __syncthreads();", "= sum;")


Matmul = params_kind("Matmul", a=POINTER, b=POINTER, c=POINTER)
Sum = params_kind("Sum", x=POINTER, total=POINTER, n=ctypes.c_int)
Fault = params_kind("Fault", x=POINTER, fault=ctypes.c_int)
Fused = params_kind("Fused", x=POINTER, y=POINTER, n=ctypes.c_int)
HALVES = ("x", "pairs", "half", "back", "product", "difference", "fused", "permuted", "votes")
Halves = params_kind("Halves", **dict.fromkeys((*HALVES, "software"), POINTER), n=ctypes.c_int)


def matmul(library: HostLibrary, *, seed: int) -> tuple[bool, Traffic]:
    """Whether the trial's product is right under one schedule."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(16, 16)).astype(np.float16)
    b = rng.normal(size=(16, 8)).astype(np.float16)
    c = np.full((16, 8), np.nan, dtype=np.float32)
    params, arrays = params_from(Matmul, a=a, b=b, c=c)
    traffic = library.launch(
        "trial_matmul",
        params,
        arrays=arrays,
        grid=(1, 1, 1),
        threads=64,
        shared_bytes=768,
        seed=seed,
    )
    return np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5), traffic


def total(library: HostLibrary, *, seed: int) -> float:
    x = np.arange(1000, dtype=np.float32)
    result = np.full(1, np.nan, dtype=np.float32)
    params, arrays = params_from(Sum, x=x, total=result, n=1000)
    library.launch(
        "trial_sum", params, arrays=arrays, grid=(1, 1, 1), threads=128, shared_bytes=16, seed=seed
    )
    return float(result[0])


def test_mma_with_async_copies_and_matrix_loads_equals_numpy_under_every_schedule() -> None:
    for seed in SCHEDULES:
        right, traffic = matmul(host_library(TRIAL), seed=seed)
        assert right
        assert traffic.read == {"kv": 768} and traffic.written == {"output": 512}


def test_shuffles_and_shared_memory_sum_rightly_under_every_schedule() -> None:
    assert {total(host_library(TRIAL), seed=seed) for seed in SCHEDULES} == {499_500.0}


@pytest.mark.parametrize("edit", [BARRIER, WAIT], ids=["barrier", "wait"])
def test_a_missing_barrier_or_wait_shows_in_some_schedule(edit: tuple[str, str]) -> None:
    library = host_library(TRIAL, (edit,))
    found = []
    for seed in SCHEDULES:
        try:
            found.append(matmul(library, seed=seed)[0])
        except KernelError:
            found.append(False)
    assert not all(found)


def test_a_missing_barrier_before_shared_memory_is_read_shows_in_some_schedule() -> None:
    library = host_library(TRIAL, (SUM_BARRIER,))
    assert {total(library, seed=seed) for seed in SCHEDULES} != {499_500.0}


@pytest.mark.parametrize("defines", [(), ("SELFDRAFT_UCONTEXT",)], ids=["assembly", "ucontext"])
def test_the_same_seed_gives_the_same_schedule_on_either_switch(defines: tuple[str, ...]) -> None:
    library = host_library(TRIAL, (SUM_BARRIER,), defines)
    first = [total(library, seed=seed) for seed in SCHEDULES]
    np.testing.assert_array_equal(first, [total(library, seed=seed) for seed in SCHEDULES])
    other = host_library(TRIAL, (SUM_BARRIER,))
    np.testing.assert_array_equal(first, [total(other, seed=seed) for seed in SCHEDULES])


def test_multiply_add_rounds_once() -> None:
    # 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: the last bit is lost when the product is rounded first.
    rng = np.random.default_rng(3)
    tricky = np.array([[1 + 2**-12, 1 + 2**-12, -1]])
    x = np.concatenate([tricky, rng.normal(size=(999, 3))]).astype(np.float32)
    y = np.full(len(x), np.nan, dtype=np.float32)
    params, arrays = params_from(Fused, x=x, y=y, n=len(x))
    host_library(TRIAL).launch(
        "trial_fused", params, arrays=arrays, grid=(1, 1, 1), threads=32, shared_bytes=0
    )
    a, b, c = x.astype(np.longdouble).T
    np.testing.assert_array_equal(y, (a * b + c).astype(np.float32))
    assert y[0] == np.float32(2**-11 + 2**-24)


def halves() -> dict[str, Any]:
    """Outputs of the half-precision kernel over every fp16 value and random fp32 ones."""
    rng = np.random.default_rng(2)
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    x = np.concatenate(
        [
            every.astype(np.float32),
            np.nextafter(every[np.isfinite(every)].astype(np.float32), np.float32(np.inf)),
            rng.integers(0, 2**32, size=65536, dtype=np.uint32).view(np.float32),
            (rng.normal(size=65536) * 2.0 ** rng.integers(-26, 18, size=65536)).astype(np.float32),
        ]
    )
    n = len(x)
    pairs = rng.integers(0, 2**32, size=(n, 2), dtype=np.uint32)
    arrays = {"x": x, "pairs": pairs, "half": np.empty(n, np.uint16)}
    arrays["back"] = np.empty(n, np.float32)
    for name in ("product", "difference", "fused", "permuted", "software"):
        arrays[name] = np.empty(n, np.uint32)
    arrays["votes"] = np.empty(n // 32, np.uint32)
    params, touched = params_from(Halves, n=n, **arrays)
    host_library(TRIAL).launch(
        "trial_halves", params, arrays=touched, grid=(1, 1, 1), threads=32, shared_bytes=0
    )
    return arrays


def assert_same_halves(found: Any, expected: Any) -> None:
    """Bit for bit, any NaN equal to any other."""
    found, expected = found.view(np.float16), np.asarray(expected, dtype=np.float16)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint16), expected[~nan].view(np.uint16))


def test_half_precision_rounds_as_ieee_says_with_and_without_hardware() -> None:
    with np.errstate(all="ignore"):
        arrays = halves()
        x = arrays["x"]
        assert_same_halves(arrays["half"], x.astype(np.float16))
        assert_same_halves(arrays["software"].astype(np.uint16), x.astype(np.float16))
        assert (arrays["software"] != 0xFFFFFFFF).all()
        back = x.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(arrays["back"], back)
        operands = arrays["pairs"].view(np.float16).astype(np.float64).reshape(-1, 2, 2)
        a, b = operands[:, 0], operands[:, 1]
        assert_same_halves(arrays["product"].view(np.uint16).reshape(-1, 2), a * b)
        assert_same_halves(arrays["difference"].view(np.uint16).reshape(-1, 2), a - b)
        fused = arrays["fused"].view(np.float16).reshape(-1, 2).astype(np.float64)
        nearest = (a * b + a).astype(np.float16).astype(np.float64)
        finite = np.isfinite(nearest)
        np.testing.assert_allclose(fused[finite], nearest[finite], rtol=2**-10, atol=2**-24)


def test_bytes_and_votes_are_those_of_numpy() -> None:
    arrays = halves()
    octets = arrays["pairs"].view(np.uint8).reshape(-1, 8)
    np.testing.assert_array_equal(
        arrays["permuted"].view(np.uint8).reshape(-1, 4), octets[:, [0, 5, 2, 7]]
    )
    with np.errstate(invalid="ignore"):
        positive = (arrays["x"] > 0).reshape(-1, 32)
    expected = np.packbits(positive, axis=1, bitorder="little").view(np.uint32).reshape(-1)
    np.testing.assert_array_equal(arrays["votes"], expected)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "outside of every buffer"),
        (2, "not aligned to 8 bytes"),
        (3, "barrier"),
        (4, "another warp-wide operation"),
        (5, "past its 64 bytes of shared memory"),
        (6, "asynchronous copies in flight"),
        (7, "no thread can go on"),
        (8, "not aligned to 16"),
    ],
)
def test_faults_of_a_kernel_end_the_launch_with_a_message(fault: int, message: str) -> None:
    x = np.zeros(4, dtype=np.float32)
    params, arrays = params_from(Fault, x=x, fault=fault)
    with pytest.raises(KernelError, match=message):
        for seed in SCHEDULES:
            host_library(TRIAL).launch(
                "trial_fault",
                params,
                arrays=arrays,
                grid=(1, 1, 1),
                threads=64,
                shared_bytes=64,
                seed=seed,
            )


def test_shared_memory_that_nobody_wrote_is_nan() -> None:
    x = np.zeros(4, dtype=np.float32)
    params, arrays = params_from(Fault, x=x, fault=9)
    host_library(TRIAL).launch(
        "trial_fault", params, arrays=arrays, grid=(1, 1, 1), threads=64, shared_bytes=64
    )
    assert np.isnan(x[0])


def test_parameters_of_another_size_are_refused() -> None:
    params, arrays = params_from(Sum, x=np.zeros(4), total=np.zeros(1), n=4)
    with pytest.raises(ValueError, match="takes 16 bytes of parameters, got 24"):
        host_library(TRIAL).launch(
            "trial_fault", params, arrays=arrays, grid=(1, 1, 1), threads=64, shared_bytes=64
        )


def test_an_edit_that_does_not_stand_once_in_the_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        host_library(TRIAL, (("no such text", ""),))
