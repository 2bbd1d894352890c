"""The parts of the module ``tensorrt`` that the backend and the builder use."""

from __future__ import annotations

import enum
import json
import types
import weakref
from pathlib import Path
from typing import Any

from support.trt_double.device import FakeDevice
from support.trt_double.execution import FakeContext, FakeEngine, Profile
from support.trt_double.onnx_model import OnnxModel, OnnxTensor, read_model

MAGIC = "plan of the double"


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    INT64 = 4


class FakeTensor:
    """``ITensor`` of a network's input."""

    def __init__(self, tensor: OnnxTensor, *, is_shape_tensor: bool) -> None:
        self.name = tensor.name
        self.is_shape_tensor = is_shape_tensor


class FakeNetwork:
    """``INetworkDefinition``."""

    def __init__(self, module: Any, flags: int) -> None:
        assert flags == 1 << int(module.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self.model: OnnxModel | None = None
        self._module = module

    @property
    def num_inputs(self) -> int:
        assert self.model is not None
        return len(self.model.inputs)

    def get_input(self, index: int) -> FakeTensor:
        assert self.model is not None
        tensor = self.model.inputs[index]
        return FakeTensor(tensor, is_shape_tensor=tensor.name in self._module.shape_tensors)


class FakeConfig:
    """``IBuilderConfig``."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.pools: dict[str, int] = {}
        self.profiles: list[Profile] = []
        self.profiling_verbosity: Any = None
        self.progress_monitor: Any = None
        self.cache: FakeCache | None = None

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.pools[pool] = size

    def create_timing_cache(self, stored: bytes) -> FakeCache | None:
        if stored and not stored.startswith(b"timings"):
            return None
        return FakeCache(stored)

    def set_timing_cache(self, cache: FakeCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True

    def get_timing_cache(self) -> FakeCache:
        assert self.cache is not None
        return self.cache

    def add_optimization_profile(self, profile: FakeProfile) -> int:
        if self._module.refuses_profiles:
            return -1
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1


class FakeCache:
    """``ITimingCache``."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def serialize(self) -> bytes:
        return (self.stored or b"timings") + b"."


class FakeProfile:
    """``IOptimizationProfile``."""

    def __init__(self) -> None:
        self.shapes: Profile = {}

    def set_shape(self, name: str, least: Any, usual: Any, most: Any) -> None:
        triple = (tuple(least), tuple(usual), tuple(most))
        ordered = zip(*triple, strict=True)
        assert all(1 <= a <= b <= c for a, b, c in ordered), f"{name}: {triple}"
        self.shapes[name] = triple


class FakeRegistry:
    """``IPluginRegistry``. A library's "creators" are the lines of its file."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.creators: set[tuple[str, str, str]] = set()

    def load_library(self, path: str) -> object | None:
        assert Path(path).is_absolute()
        lines = Path(path).read_text(errors="replace").splitlines()
        if not lines or lines[0] != "double":
            return None
        own: set[Any] = {tuple(line.split()) for line in lines[1:]}
        if own & self.creators:  # as IPluginRegistry::loadLibrary says
            return None
        self.loaded.append(path)
        self.creators |= own
        return object()

    def get_creator(self, name: str, version: str, namespace: str) -> object | None:
        return object() if (name, version, namespace) in self.creators else None


class FakeParser:
    """``OnnxParser``."""

    def __init__(self, module: Any, network: FakeNetwork, logger: Any) -> None:
        self._module, self._network = module, network
        self._errors: list[str] = []

    def parse_from_file(self, path: str) -> bool:
        assert Path(path).is_absolute()
        self._module.steps.append(f"parse {Path(path).name}")
        model = read_model(Path(path))
        for node in model.custom:
            if not self._module.registry.get_creator(node.op, node.version, node.namespace):
                self._errors.append(f"Plugin not found: {node.op} of {node.name}")
        self._errors += self._module.parse_errors
        self._network.model = model
        return not self._errors

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return types.SimpleNamespace(desc=lambda: self._errors[index])


class FakeBuilder:
    """``Builder``."""

    def __init__(self, module: Any, logger: Any) -> None:
        self._module = module

    def create_network(self, flags: int) -> FakeNetwork:
        return FakeNetwork(self._module, flags)

    def create_builder_config(self) -> FakeConfig:
        config = FakeConfig(self._module)
        self._module.configs.append(config)
        return config

    def create_optimization_profile(self) -> FakeProfile:
        return FakeProfile()

    def build_serialized_network(self, network: FakeNetwork, config: FakeConfig) -> bytes | None:
        assert config.profiling_verbosity == self._module.ProfilingVerbosity.DETAILED
        assert network.model is not None
        self._module.steps.append("build")
        if not self._report(config.progress_monitor) or self._module.fails_to_build:
            self._module.tell("no tactic fits")
            return None
        plan = {
            "magic": MAGIC,
            "tensorrt": self._module.__version__,
            "onnx": str(network.model.path),
            "profiles": config.profiles,
        }
        return json.dumps(plan).encode()

    @staticmethod
    def _report(monitor: Any) -> bool:
        monitor.phase_start("Building engine", None, 2)
        monitor.phase_start("Tactics", "Building engine", 5)
        monitor.step_complete("Tactics", 0)
        monitor.phase_finish("Tactics")
        going_on = all(monitor.step_complete("Building engine", step) for step in range(2))
        monitor.phase_finish("Building engine")
        return going_on


class FakeRuntime:
    """``Runtime``."""

    def __init__(self, module: Any, device: FakeDevice) -> None:
        self._module, self._device = module, device

    def deserialize_cuda_engine(self, plan: Any) -> FakeEngine | None:
        self._module.steps.append("deserialise")
        try:
            data = json.loads(bytes(memoryview(plan)))
        except ValueError:
            self._module.tell("Magic tag does not match")
            return None
        if data["tensorrt"] != self._module.__version__:
            self._module.tell("Version tag does not match")
            return None
        profiles = [{k: tuple(map(tuple, v)) for k, v in p.items()} for p in data["profiles"]]
        engine = FakeEngine(self._device, read_model(Path(data["onnx"])), profiles, self._module)
        engine.layers = [layer for layer in engine.layers if self._module.keeps_layer(layer)]
        return engine


def tensorrt_module(device: FakeDevice, *, version: str = "10.3.0") -> Any:
    """The module, with switches for what shall go wrong."""
    module: Any = types.ModuleType("tensorrt")
    module.__version__ = version
    module.loggers = []

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

        def __init__(self) -> None:
            module.loggers.append(self)

    class IProgressMonitor:
        pass

    def tell(text: str) -> None:
        for logger in module.loggers:
            logger.log(ILogger.ERROR, text)

    _switches(module)
    contexts: weakref.WeakSet[FakeContext] = weakref.WeakSet()
    module.tell, module.contexts = tell, contexts
    module.registry = FakeRegistry()
    module.data_types = dict(
        zip(("float32", "float16", "int8", "int32", "int64"), DataType, strict=True)
    )
    for data_type in DataType:
        setattr(module, data_type.name, data_type)
    module.ILogger, module.IProgressMonitor = ILogger, IProgressMonitor
    module.Builder = lambda logger: FakeBuilder(module, logger)
    module.OnnxParser = lambda network, logger: FakeParser(module, network, logger)
    module.Runtime = lambda logger: FakeRuntime(module, device)
    module.Dims = tuple
    module.get_plugin_registry = lambda: module.registry
    return module


def _switches(module: Any) -> None:
    """Enumerations, and what a test may set to make a step fail."""
    module.ExecutionContextAllocationStrategy = types.SimpleNamespace(USER_MANAGED="user")
    module.LayerInformationFormat = types.SimpleNamespace(JSON="json")
    module.MemoryPoolType = types.SimpleNamespace(WORKSPACE="workspace", TACTIC_DRAM="tactics")
    module.NetworkDefinitionCreationFlag = types.SimpleNamespace(STRONGLY_TYPED=1)
    module.ProfilingVerbosity = types.SimpleNamespace(DETAILED="detailed")
    module.TensorLocation = types.SimpleNamespace(DEVICE="device", HOST="host")
    module.steps = []
    module.configs = []
    module.parse_errors = []
    module.shape_tensors = set()
    module.fails_to_build = module.refuses_profiles = module.fails_to_run = False
    module.keeps_layer = lambda layer: True
