"""The double's engine and execution context: TensorRT's rules checked, ONNX Runtime's arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.trt_double.device import FakeDevice, Work
from support.trt_double.onnx_model import OnnxModel, OnnxTensor, open_session
from support.trt_double.pycuda_module import STREAM_HANDLE

ALIGNMENT = 256
SCRATCH_BYTES = 4096

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
"""Smallest, usual and largest shape of each input."""


class FakeEngine:
    """``ICudaEngine``. ``types`` maps NumPy's names to ``tensorrt.DataType``."""

    def __init__(
        self, device: FakeDevice, model: OnnxModel, profiles: list[Profile], module: Any
    ) -> None:
        self.device = device
        self.model = model
        self.profiles = profiles
        self.module = module
        self.tensors = {tensor.name: tensor for tensor in (*model.inputs, *model.outputs)}
        self.layers = [
            {"Name": node.name, "LayerType": "PluginV3", "PluginType": node.op}
            for node in model.custom
        ]

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    @property
    def device_memory_size_v2(self) -> int:
        return SCRATCH_BYTES

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return self.module.data_types[self.tensors[name].dtype]

    def get_tensor_location(self, name: str) -> Any:
        return self.module.TensorLocation.DEVICE

    def create_execution_context(self, strategy: Any) -> FakeContext:
        assert strategy == self.module.ExecutionContextAllocationStrategy.USER_MANAGED
        assert self.device.capturing is None, "a context was made while capturing"
        context = FakeContext(self)
        self.module.contexts.add(context)
        return context

    def create_engine_inspector(self) -> FakeInspector:
        return FakeInspector(self)


class FakeInspector:
    """``EngineInspector``."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def get_engine_information(self, form: str) -> str:
        assert form == self._engine.module.LayerInformationFormat.JSON
        other = [{"Name": "MatMul_1", "LayerType": "gemm"}, "a layer without details"]
        return json.dumps({"Layers": [*self._engine.layers, *other], "Bindings": []})


class FakeContext:
    """``IExecutionContext``."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._profile: Profile | None = None
        self._scratch: tuple[int, int] | None = None
        self._ran_with: tuple[dict[str, Shape], dict[str, int]] | None = None
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.recorded = False
        """Whether a CUDA graph was made of it: it must not change any more."""
        self.num_enqueued = 0

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == STREAM_HANDLE and self._engine.device.capturing is None
        self._profile = self._engine.profiles[index]
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= SCRATCH_BYTES
        self._engine.device.view(address, size)
        self._scratch = (address, size)

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        assert not self.recorded or self.shapes[name] == tuple(shape), "a recorded context changed"
        tensor = self._engine.tensors[name]
        assert len(shape) == len(tensor.shape), name
        if self._profile is not None and name in self._profile:
            least, _, most = self._profile[name]
            if not all(a <= d <= b for a, d, b in zip(least, shape, most, strict=True)):
                self._engine.module.tell(f"{name}: {shape} is outside of the profile")
                return False
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert not self.recorded, "a recorded context changed"
        assert name in self._engine.tensors, name
        assert address % ALIGNMENT == 0, f"{name} is not aligned"
        assert self.addresses.get(name, address) == address, f"{name} moved"
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == STREAM_HANDLE
        if self._engine.module.fails_to_run:
            self._engine.module.tell("a kernel failed")
            return False
        self._check_ready()
        now = (dict(self.shapes), dict(self.addresses))
        if self._engine.device.capturing is not None:
            assert self._ran_with == now, "captured without a run of these shapes before"
            self.recorded = True
        self._ran_with = now
        self.num_enqueued += 1
        self._engine.device.put(Work(label="enqueue", run=self._work()))
        return True

    def _check_ready(self) -> None:
        model = self._engine.model
        assert self._scratch is not None, "a context without activation memory"
        assert self._profile is not None
        for source, target in model.aliases.items():
            assert self.addresses[source] == self.addresses[target], f"{source} is not in place"
        owners: dict[int, str] = {}
        for name in self._engine.tensors:
            assert name in self.addresses, f"{name} has no address"
            root = next((i for i, o in model.aliases.items() if o == name), name)
            other = owners.setdefault(self.addresses[name], root)
            assert other == root, f"{name} and {other} share memory"

    def _work(self) -> Callable[[], None]:
        """What a run does, with the shapes and addresses of now."""
        sizes = self._sizes()
        model = self._engine.model
        inputs = {tensor.name: self._array(tensor, sizes) for tensor in model.inputs}
        outputs = {tensor.name: self._array(tensor, sizes) for tensor in model.outputs}

        def run() -> None:
            session = open_session(model.path)
            wanted = [value.name for value in session.get_inputs()]
            feeds = {name: inputs[name] for name in wanted}
            results = session.run(list(outputs), feeds)
            for target, result in zip(outputs.values(), results, strict=True):
                assert target.shape == result.shape and target.dtype == result.dtype
                np.copyto(target, result)

        return run

    def _sizes(self) -> dict[str, int]:
        """The value of every symbol, which all inputs must agree on."""
        sizes: dict[str, int] = {}
        for tensor in self._engine.model.inputs:
            shape = self.shapes.get(tensor.name)
            if shape is None:
                assert all(isinstance(d, int) for d in tensor.shape), f"{tensor.name} has no shape"
                continue
            for dim, size in zip(tensor.shape, shape, strict=True):
                known = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
                assert known == size, f"{tensor.name}: {dim} is {size}, elsewhere {known}"
        return sizes

    def _array(self, tensor: OnnxTensor, sizes: dict[str, int]) -> NDArray[Any]:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.shape)
        dtype = np.dtype(tensor.dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        view = self._engine.device.view(self.addresses[tensor.name], num_bytes)
        return view.view(dtype).reshape(shape)
