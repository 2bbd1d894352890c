"""From a bundle to engines: parse, build, inspect, and write the plans with their sidecar.

Everything that can be known to fail is checked first; a build that fails leaves nothing of its own, and
an engine that was there before as it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft import __version__
from selfdraft.errors import BundleError, ConfigError, DeviceError, ResourceError
from selfdraft.manifest import GraphSpec
from selfdraft.runtime.bundle import Bundle
from selfdraft.runtime.trt.engines import check_engine, found_here, plugins_for
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.layers import check_plugins
from selfdraft.runtime.trt.library import (
    BUILD_PLUGINS,
    creators_of,
    import_tensorrt,
    last_error,
    load_plugins,
    make_logger,
)
from selfdraft.runtime.trt.limits import PROFILES, EngineLimits, shape_ranges
from selfdraft.runtime.trt.progress import OnStage, progress_monitor, raise_stopped
from selfdraft.runtime.trt.sidecar import (
    SIDECAR_NAME,
    TIMING_CACHE,
    Board,
    PlanFile,
    Sidecar,
    device_key,
    engine_folder,
    write_sidecar,
)

if TYPE_CHECKING:
    import tensorrt as trt

log = logging.getLogger(__name__)

PART = ".part"
"""Ends the names of plans until all of them are there."""
EXPORT_AGAIN = "export the bundle again: selfdraft export CHECKPOINT -o BUNDLE --target orin-jp6"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How engines are built."""

    limits: EngineLimits
    workspace_bytes: int
    """Scratch memory that one kernel may ask for."""
    tactic_bytes: int
    """Memory that the builder may use to try kernels out."""


def check_target(bundle: Bundle) -> None:
    """Raise ``ConfigError`` for a bundle of a target that TensorRT does not run."""
    if bundle.manifest.target == "cpu":
        raise ConfigError(
            f"{bundle.path} was exported for the target cpu, which needs no engine",
            hint="export it for the board: selfdraft export CHECKPOINT -o BUNDLE --target orin-jp6",
        )


def build_engines(
    bundle: Bundle, options: BuildOptions, board: Board, *, on_stage: OnStage
) -> Path:
    """Build every graph of ``bundle`` for this device; the folder with plans and sidecar.

    Raises ``DeviceError`` without TensorRT, pycuda or the plugin library, and ``BundleError`` for
    a graph that does not parse, does not build, or whose engine lacks a plugin layer.
    """
    check_target(bundle)
    tensorrt = import_tensorrt()
    gpu = Gpu()
    manifest = bundle.manifest
    plugins = plugins_for(manifest)
    creators = creators_of(manifest)
    load_plugins(tensorrt, plugins, creators, mend=BUILD_PLUGINS)
    folder = engine_folder(bundle.path, device_key(gpu.compute_capability))
    folder.mkdir(parents=True, exist_ok=True)
    builder = _GraphBuilder(tensorrt, folder, options, on_stage)
    try:
        plans = {
            name: builder.build(bundle.file(graph.file), graph, name)
            for name, graph in manifest.graphs.items()
        }
    except BaseException as error:
        for part in folder.glob(f"*{PART}"):
            part.unlink()
        if isinstance(error, OSError):
            raise ResourceError(
                f"{folder} cannot be written: {error.strerror}", hint="free disk space there"
            ) from None
        raise
    sidecar = Sidecar(
        schema="selfdraft.engine/1",
        selfdraft_version=__version__,
        built=found_here(tensorrt, gpu, bundle.path, plugins, board),
        plugins=creators,
        limits=options.limits,
        plans=plans,
        weights=manifest.precision.weights,
        kv=manifest.precision.kv,
        target=manifest.target,
    )
    _publish(folder, sidecar)
    return folder


def _publish(folder: Path, sidecar: Sidecar) -> None:
    """Put the new plans in place of old ones; between the first and the last there is no engine."""
    (folder / SIDECAR_NAME).unlink(missing_ok=True)
    for plan in sidecar.plans.values():
        (folder / f"{plan.file}{PART}").replace(folder / plan.file)
    write_sidecar(folder, sidecar)


class _GraphBuilder:
    """Builds one graph after another, with one logger and one timing cache."""

    def __init__(
        self, tensorrt: Any, folder: Path, options: BuildOptions, on_stage: OnStage
    ) -> None:
        self._tensorrt = tensorrt
        self._folder = folder
        self._options = options
        self._on_stage = on_stage
        self._logger = make_logger(tensorrt)

    def build(self, path: Path, graph: GraphSpec, name: str) -> PlanFile:
        """Parse, build, inspect and write one graph, as a part."""
        builder: trt.Builder = self._tensorrt.Builder(self._logger)
        network: trt.INetworkDefinition = self._parse(builder, path)
        monitor = progress_monitor(self._tensorrt, name, self._on_stage)
        config: trt.IBuilderConfig = self._config(builder, graph, monitor)
        plan: trt.IHostMemory | None = builder.build_serialized_network(network, config)
        raise_stopped(monitor)
        if plan is None:
            raise BundleError(
                f"{graph.file} does not build: {last_error(self._logger)}",
                hint="see all of TensorRT's messages with: selfdraft build BUNDLE -v",
            )
        self._inspect(plan, graph)
        cache: trt.ITimingCache = config.get_timing_cache()
        (self._folder / TIMING_CACHE).write_bytes(memoryview(cache.serialize()))
        return self._write(plan, name)

    def _parse(self, builder: trt.Builder, path: Path) -> trt.INetworkDefinition:
        flag = self._tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        network: trt.INetworkDefinition = builder.create_network(1 << int(flag))
        parser: trt.OnnxParser = self._tensorrt.OnnxParser(network, self._logger)
        self._on_stage(f"{path.stem}: parse", 0, 1)
        if not parser.parse_from_file(str(path.resolve())):
            raise BundleError(
                f"{path.name} does not parse: {'; '.join(_parser_errors(parser))}",
                hint=EXPORT_AGAIN,
            )
        self._on_stage(f"{path.stem}: parse", 1, 1)
        for index in range(network.num_inputs):
            tensor: trt.ITensor = network.get_input(index)
            if tensor.is_shape_tensor:
                raise BundleError(
                    f"{path.name} computes shapes from the values of {tensor.name}, so that every "
                    "step would wait for the host",
                    hint=EXPORT_AGAIN,
                )
        return network

    def _config(
        self, builder: trt.Builder, graph: GraphSpec, monitor: trt.IProgressMonitor
    ) -> trt.IBuilderConfig:
        tensorrt, options = self._tensorrt, self._options
        config: trt.IBuilderConfig = builder.create_builder_config()
        config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
        config.set_memory_pool_limit(tensorrt.MemoryPoolType.TACTIC_DRAM, options.tactic_bytes)
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        config.progress_monitor = monitor
        config.set_timing_cache(self._timing_cache(config), False)
        for profile_name in PROFILES:
            profile: trt.IOptimizationProfile = builder.create_optimization_profile()
            for span in shape_ranges(graph, options.limits, profile_name):
                shapes = (span.smallest, span.usual, span.largest)
                profile.set_shape(span.name, *(tensorrt.Dims(shape) for shape in shapes))
            if config.add_optimization_profile(profile) < 0:
                raise BundleError(
                    f"{graph.file}: TensorRT refuses the {profile_name} profile: "
                    f"{last_error(self._logger)}",
                    hint=EXPORT_AGAIN,
                )
        return config

    def _timing_cache(self, config: trt.IBuilderConfig) -> trt.ITimingCache:
        """Kernel timings of earlier builds; a cache of another TensorRT is left out."""
        path = self._folder / TIMING_CACHE
        stored = path.read_bytes() if path.is_file() else b""
        cache: trt.ITimingCache | None = config.create_timing_cache(stored)
        if cache is None:
            log.info("%s is of no use here: a new one is made", path)
            cache = config.create_timing_cache(b"")
        assert cache is not None
        return cache

    def _inspect(self, plan: trt.IHostMemory, graph: GraphSpec) -> None:
        """See that the engine is the manifest's graph, and that its plugin layers are there."""
        runtime: trt.Runtime = self._tensorrt.Runtime(self._logger)
        engine: trt.ICudaEngine | None = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise DeviceError(
                f"the engine of {graph.file} does not load: {last_error(self._logger)}",
                hint="check the board with: selfdraft doctor",
            )
        check_engine(self._tensorrt, engine, graph, mend=EXPORT_AGAIN)
        inspector: trt.EngineInspector = engine.create_engine_inspector()
        form = self._tensorrt.LayerInformationFormat.JSON
        check_plugins(inspector.get_engine_information(form), graph.plugin_nodes, graph=graph.file)

    def _write(self, plan: trt.IHostMemory, name: str) -> PlanFile:
        view = memoryview(plan)
        file = f"{name}.plan"
        (self._folder / f"{file}{PART}").write_bytes(view)
        return PlanFile(file=file, bytes=view.nbytes, sha256=hashlib.sha256(view).hexdigest())


def _parser_errors(parser: trt.OnnxParser) -> Iterator[str]:
    for index in range(min(parser.num_errors, 3)):
        error: trt.ParserError = parser.get_error(index)
        yield " ".join(error.desc().split())[:300]
