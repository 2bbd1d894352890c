"""Launch kernels of a host library on NumPy arrays, and count the bytes that they move."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRAFFIC = (
    "kv",
    "scale",
    "summary",
    "rows",
    "logits",
    "partial",
    "list",
    "output",
    "weight",
    "control",
    "state",
    "log",
)
"""Kinds of global access, in the order of ``Traffic`` in ``csrc/device.cuh``."""


class KernelError(Exception):
    """The kernel did what a GPU would punish or leave undefined; the message says where."""


class _Range(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_uint64), ("end", ctypes.c_uint64)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("num_ranges", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(_Range)),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("read", ctypes.c_uint64 * len(TRAFFIC)),
        ("written", ctypes.c_uint64 * len(TRAFFIC)),
        ("switches", ctypes.c_uint64),
        ("problem", ctypes.c_char * 256),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one launch by kind of access (``TRAFFIC``); kinds without any are absent."""

    read: dict[str, int]
    written: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One launch, without its pointers."""

    file: str
    """Name of the kernel's file without its ending: ``attend`` of ``csrc/attend.cu``."""
    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int

    @property
    def settings(self) -> dict[str, Any]:
        """What ``HostLibrary.launch``, and its like on a GPU, take of it beside the kernel's name."""
        return {"grid": self.grid, "threads": self.threads, "shared_bytes": self.shared_bytes}


POINTER = ctypes.c_void_p


class Params(ctypes.Structure):
    """Base of the parameter blocks that ``params_kind`` makes."""


def params_kind(name: str, **fields: Any) -> type[Params]:
    """A kernel's parameter block: fields in the order and with the types of the C struct.

    The types are those of ctypes, ``POINTER`` for every pointer.
    """
    return type(name, (Params,), {"_fields_": list(fields.items())})


def params_from(kind: type[Params], **values: Any) -> tuple[Params, list[NDArray[Any]]]:
    """A parameter block and the arrays that it points at. An array becomes its address.

    Every field of the block needs a value; None is a null pointer. Arrays must be C-contiguous.
    """
    fields = [field[0] for field in kind._fields_]
    if set(fields) != set(values):
        raise ValueError(f"{kind.__name__} has {fields}, got {sorted(values)}")
    block, arrays = kind(), []
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"{name} is not contiguous")
            arrays.append(value)
            value = value.ctypes.data
        setattr(block, name, value)
    return block, arrays


class HostLibrary:
    """The kernels of one compiled file."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(
        self,
        kernel: str,
        params: Params,
        *,
        arrays: Sequence[NDArray[Any]],
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        seed: int = 0,
    ) -> Traffic:
        """Run every CTA of ``grid``. ``arrays``: all the memory that the kernel may touch.

        ``seed`` chooses the order of CTAs, warps and lanes, and when asynchronous copies land.
        Raises ``KernelError`` for stray or misaligned accesses, threads that wait for ever,
        warps that meet at different operations, and writes past the shared memory.
        """
        size = self._function(f"host_params_bytes_{kernel}", ctypes.c_uint64)()
        if size != ctypes.sizeof(params):
            raise ValueError(
                f"{kernel} takes {size} bytes of parameters, got {ctypes.sizeof(params)}"
            )
        ranges = (_Range * max(len(arrays), 1))(
            *(_Range(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
        )
        launch = _Launch(
            grid=(ctypes.c_uint32 * 3)(*grid),
            threads=threads,
            shared_bytes=shared_bytes,
            seed=seed,
            num_ranges=len(arrays),
            ranges=ranges,
        )
        report = _Report()
        run = self._function(f"host_run_{kernel}", ctypes.c_int)
        if run(ctypes.byref(launch), ctypes.byref(params), ctypes.byref(report)):
            raise KernelError(f"{kernel}: {report.problem.decode()}")
        return Traffic(read=_by_kind(report.read), written=_by_kind(report.written))

    def _function(self, name: str, result: Any) -> Any:
        function = getattr(self._library, name)
        function.restype = result
        return function


def _by_kind(counts: Any) -> dict[str, int]:
    return {name: int(count) for name, count in zip(TRAFFIC, counts, strict=True) if count}
