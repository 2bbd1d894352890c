"""The plugin library in this process, without TensorRT: built once, its methods called by ctypes.

Its kernels are those of the host layer (``trt_plugins/host``), behind a CUDA driver made for tests, so that
``enqueue`` computes what it would on a GPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.build.kernel_list import kernel_sources, plugin_folder
from selfdraft.trt_plugins.build.run import Build, Cubin
from selfdraft.trt_plugins.host.build import build_library as build_host_library
from selfdraft.trt_plugins.host.build import compiler
from selfdraft.trt_plugins.host.launch import TRAFFIC
from selfdraft.trt_plugins.library.build import build_library
from selfdraft.trt_plugins.library.headers import Headers, find_headers

CACHE = Path(__file__).parents[2] / "build" / "plugins"
HOST_CACHE = Path(__file__).parents[2] / "build" / "host_kernels"
SOURCES = Path(__file__).parent / "plugin"
BUILD, RUNTIME = 0, 1
"""``TensorRTPhase``."""
LINEAR = 0
TYPES = {"float32": 0, "float16": 1, "int8": 2, "int32": 3, "int64": 8}
"""``DataType`` by NumPy's name."""
FLOAT32, INT32, CHAR, INT64 = 1, 5, 6, 10
"""``PluginFieldType``."""
MAX_RANK = 8


class Tensor(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("format", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("min", ctypes.c_int64 * MAX_RANK),
        ("max", ctypes.c_int64 * MAX_RANK),
    ]


class Field(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("length", ctypes.c_int),
        ("data", ctypes.c_void_p),
    ]


def tensor(dtype: str, dims: Sequence[int], *, most: Sequence[int] | None = None) -> Tensor:
    """A tensor of ``dims``; while building it may grow to ``most``."""
    found = Tensor(type=TYPES[dtype], format=LINEAR, rank=len(dims))
    for i, size in enumerate(dims):
        found.dims[i] = found.min[i] = size
        found.max[i] = (most or dims)[i]
    return found


def tensors_of(arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
    return [tensor(array.dtype.name, array.shape) for array in arrays]


def resized(tensors: list[Tensor], position: int, axis: int, size: int) -> list[Tensor]:
    """``tensors``, of which one has another size."""
    found = [Tensor.from_buffer_copy(item) for item in tensors]
    changed = found[position]
    changed.dims[axis] = changed.min[axis] = changed.max[axis] = size
    return found


@dataclass(kw_only=True)
class Probe:
    """The probe, the library under test and the driver that it opens."""

    calls: Any
    library: Any
    handle: int
    driver: Any
    path: Path

    def creators(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._text(self.calls.probe_creators, self.handle))
        return found

    def create(self, name: str, attributes: dict[str, Any], *, phase: int = RUNTIME) -> Plugin:
        """A plugin. Raises ``Refused`` with the library's own words."""
        fields = [_field(key, value) for key, value in attributes.items()]
        array = (Field * len(fields))(*(item for item, _ in fields))
        call = self.calls.probe_create
        call.restype = ctypes.c_void_p
        found = call(ctypes.c_void_p(self.handle), name.encode(), array, len(fields), phase)
        return self.plugin(found)

    def plugin(self, address: int | None) -> Plugin:
        if not address:
            raise Refused(self.last_report())
        return Plugin(probe=self, address=address)

    def last_report(self) -> str:
        return self._text(self.library.selfdraft_last_report)

    def reset_driver(
        self, *, version: int = 12060, arch: int = 87, run_kernels: bool = True
    ) -> None:
        self.driver.fake_reset(version, arch, int(run_kernels))

    def driver_log(self) -> list[str]:
        return self._text(self.driver.fake_log).splitlines()

    def _text(self, call: Any, *arguments: Any) -> str:
        call.restype = ctypes.c_char_p
        found: bytes = call(*(ctypes.c_void_p(value) for value in arguments))
        return found.decode()


class Refused(Exception):
    """A method of the library failed; the message is what it reported."""


@dataclass(kw_only=True)
class Plugin:
    """One plugin object; methods are TensorRT's."""

    probe: Probe
    address: int
    kept: list[Any] = field(default_factory=list)

    def names(self) -> str:
        return self.probe._text(self.probe.calls.probe_names, self.address)

    def fields(self) -> dict[str, Any]:
        """What a plan keeps."""
        listed = json.loads(self.probe._text(self.probe.calls.probe_fields, self.address))
        return {name: value for name, _, _, value in listed}

    def round_trip(self) -> Plugin:
        """The plugin that a plan with this one's fields makes."""
        call = self.probe.calls.probe_round_trip
        call.restype = ctypes.c_void_p
        found = call(ctypes.c_void_p(self.probe.handle), ctypes.c_void_p(self.address))
        return self.probe.plugin(found)

    def clone(self) -> Plugin:
        return self.probe.plugin(self._pointer("probe_clone"))

    def attach(self) -> Plugin:
        return self.probe.plugin(self._pointer("probe_attach"))

    def num_outputs(self) -> int:
        return self._call("probe_num_outputs")

    def alias(self, output: int) -> int:
        return self._call("probe_alias", output)

    def output_types(self, inputs: Sequence[str]) -> list[str]:
        count = self.num_outputs()
        given = (ctypes.c_int * len(inputs))(*(TYPES[name] for name in inputs))
        found = (ctypes.c_int * count)()
        self._checked("probe_types", given, len(inputs), found, count)
        names = {code: name for name, code in TYPES.items()}
        return [names[code] for code in found]

    def output_shapes(self, inputs: Sequence[Tensor]) -> list[list[int]]:
        found = (Tensor * self.num_outputs())()
        self._checked("probe_shapes", _array(inputs), len(inputs), found, len(found))
        return [list(item.dims[: item.rank]) for item in found]

    def supports(self, position: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        both = _array([*inputs, *outputs])
        return bool(self._call("probe_supports", position, both, len(inputs), len(outputs)))

    def configure(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        both = _array([*inputs, *outputs])
        self._checked("probe_configure", both, len(inputs), len(outputs))

    def shape_change(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        both = _array([*inputs, *outputs])
        self._checked("probe_shape_change", both, len(inputs), len(outputs))

    def workspace(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        call = self.probe.calls.probe_workspace
        call.restype = ctypes.c_int64
        both = _array([*inputs, *outputs])
        return int(call(ctypes.c_void_p(self.address), both, len(inputs), len(outputs)))

    def enqueue(
        self,
        inputs: Sequence[NDArray[Any]],
        outputs: Sequence[NDArray[Any]],
        workspace: NDArray[Any] | None = None,
    ) -> None:
        both = _array([*tensors_of(inputs), *tensors_of(outputs)])
        self._checked(
            "probe_enqueue",
            both,
            len(inputs),
            len(outputs),
            _pointers(inputs),
            _pointers(outputs),
            ctypes.c_void_p(None if workspace is None else workspace.ctypes.data),
        )

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.probe.calls, name)(ctypes.c_void_p(self.address), *arguments))

    def _checked(self, name: str, *arguments: Any) -> None:
        if self._call(name, *arguments):
            raise Refused(self.probe.last_report())

    def _pointer(self, name: str) -> int | None:
        call = getattr(self.probe.calls, name)
        call.restype = ctypes.c_void_p
        found: int | None = call(ctypes.c_void_p(self.address))
        return found


def _array(tensors: Sequence[Tensor]) -> Any:
    return (Tensor * len(tensors))(*tensors)


def _pointers(arrays: Sequence[NDArray[Any]]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _field(name: str, value: Any) -> tuple[Field, Any]:
    """As TensorRT's parser gives it; the second part keeps the memory alive."""
    if isinstance(value, str):
        data: Any = ctypes.create_string_buffer(value.encode())
        kind, length = CHAR, len(data)
    elif isinstance(value, bytes):  # a string without its final NUL
        data, kind, length = ctypes.create_string_buffer(value, len(value)), CHAR, len(value)
    elif isinstance(value, np.int64):
        data, kind, length = ctypes.c_int64(int(value)), INT64, 1
    elif isinstance(value, int):
        data, kind, length = ctypes.c_int32(value), INT32, 1
    else:
        data, kind, length = ctypes.c_float(value), FLOAT32, 1
    item = Field(
        name=name.encode(),
        type=kind,
        length=length,
        data=ctypes.cast(ctypes.byref(data), ctypes.c_void_p),
    )
    item.kept = data  # type: ignore[attr-defined]
    return item, data


@cache
def headers() -> Headers:
    """TensorRT's headers; the test is skipped, and says why, where there are none."""
    try:
        return find_headers()
    except DeviceError as error:
        pytest.skip(f"{error.problem}: {error.hint}")


@cache
def probe() -> Probe:
    """The library under test, built from the sources as they are now."""
    if compiler() is None:
        pytest.skip("g++ is not installed: install the package g++")
    found = headers()
    files = sorted((plugin_folder() / "library").rglob("*.?pp")) + sorted(SOURCES.iterdir())
    files += sorted(plugin_folder().glob("library/*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    digest.update(repr((found, TRAFFIC)).encode())
    folder = CACHE / digest.hexdigest()[:20]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = _compiled(folder, "fake_cuda.cpp", (f"-DTRAFFIC_KINDS={len(TRAFFIC)}",))
        calls = _compiled(
            folder,
            "probe.cpp",
            (f"-I{plugin_folder() / 'library/csrc/compat'}", "-isystem", str(found.folder)),
        )
        library = folder / "libselfdraft_plugins.so"
        build_library(
            host_kernels(),
            library,
            headers=found,
            defines=[f'SELFDRAFT_CUDA_LIBRARY="{driver}"'],
        )
    opened = ctypes.CDLL(str(calls))
    opened.probe_open.restype = ctypes.c_void_p
    handle = opened.probe_open(str(library).encode())
    assert handle, f"{library} does not load"
    return Probe(
        calls=opened,
        library=ctypes.CDLL(str(library)),
        handle=handle,
        driver=ctypes.CDLL(str(driver)),
        path=library,
    )


def host_kernels(architecture: str = "sm_87") -> Build:
    """Every kernel file with the path of its host library in place of machine code."""
    cubins = []
    for source in kernel_sources():
        path = build_host_library(source.path, cache=HOST_CACHE)
        name = f"{source.op}/{source.path.stem}.{architecture}.cubin"
        cubins.append(Cubin(name=name, content=os.fsencode(path)))
    return Build(compiler="fake", compiler_version="12.6", cubins=tuple(cubins), kernels=())


def _compiled(folder: Path, source: str, options: Sequence[str]) -> Path:
    output = folder / f"{Path(source).stem}.so"
    if not output.exists():
        command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", *options]
        command += [str(SOURCES / source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    return output
