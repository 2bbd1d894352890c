"""Putting the double in the place of TensorRT, pycuda and libcuda."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from support.trt_double.device import FakeDevice
from support.trt_double.pycuda_module import FakeDriver, pycuda_modules
from support.trt_double.tensorrt_module import tensorrt_module

from selfdraft.runtime.trt import capture


@dataclass(frozen=True, kw_only=True)
class Double:
    """Handles of an installed double."""

    device: FakeDevice
    driver: FakeDriver
    tensorrt: Any
    pycuda: dict[str, ModuleType]


def make_double(*, version: str = "10.3.0", memory_bytes: int = 1 << 32) -> Double:
    """A double that is not in anybody's place yet."""
    device = FakeDevice(memory_bytes=memory_bytes)
    return Double(
        device=device,
        driver=FakeDriver(device),
        tensorrt=tensorrt_module(device, version=version),
        pycuda=pycuda_modules(device),
    )


@contextmanager
def installed(double: Double) -> Iterator[Double]:
    """Let ``double`` be what our code imports; what was there before comes back."""
    modules = {**double.pycuda, "tensorrt": double.tensorrt}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)  # torch looks for it
    before = {name: sys.modules.get(name) for name in modules}
    load = capture._load_driver
    sys.modules.update(modules)
    capture._load_driver = lambda: double.driver
    try:
        yield double
    finally:
        capture._load_driver = load
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
