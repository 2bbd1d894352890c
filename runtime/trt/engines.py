"""Plans from disk to engines: checks first, then deserialising without a second copy in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.errors import BundleError, DeviceError
from selfdraft.manifest import GraphSpec, Manifest
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.library import (
    Plugins,
    creators_of,
    find_plugins,
    last_error,
    load_plugins,
    make_logger,
)
from selfdraft.runtime.trt.limits import PROFILES, EngineLimits
from selfdraft.runtime.trt.sidecar import (
    Board,
    Built,
    build_command,
    check_graphs,
    check_sidecar,
    device_key,
    engine_folder,
    manifest_sha256,
    read_sidecar,
)

if TYPE_CHECKING:
    import tensorrt as trt

ONNX_TYPES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "int64": "INT64",
    "int32": "INT32",
    "int8": "INT8",
}
"""TensorRT's names of the manifest's types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines of a bundle, ready to run."""

    by_graph: Mapping[str, trt.ICudaEngine]
    limits: EngineLimits
    logger: trt.ILogger
    runtime: trt.Runtime
    """Must live as long as the engines."""

    @property
    def scratch_bytes(self) -> int:
        """Activation memory of the largest pass; passes run one after another and share it."""
        return max(_scratch_bytes(engine) for engine in self.by_graph.values())


def _scratch_bytes(engine: trt.ICudaEngine) -> int:
    return int(engine.device_memory_size_v2)


def found_here(
    tensorrt: Any, gpu: Gpu, bundle: Path, plugins: Plugins | None, board: Board
) -> Built:
    """What an engine would be built with on this machine."""
    return Built(
        tensorrt=str(tensorrt.__version__),
        gpu=gpu.name,
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.multiprocessors,
        board=board,
        plugins_sha256=plugins.sha256 if plugins else None,
        manifest_sha256=manifest_sha256(bundle),
    )


def plugins_for(manifest: Manifest) -> Plugins | None:
    """The plugin library, where the graphs have plugin nodes. Raises ``DeviceError``."""
    return find_plugins() if creators_of(manifest) else None


def open_engines(
    tensorrt: Any, gpu: Gpu, bundle: Path, manifest: Manifest, board: Board
) -> Engines:
    """The engines of ``bundle`` for this device.

    Raises ``BundleError`` with the command that mends it for every mismatch that the sidecar, the
    plugin library or the engine itself shows.
    """
    mend = build_command(bundle)
    key = device_key(gpu.compute_capability)
    sidecar = read_sidecar(bundle, key)
    plugins = plugins_for(manifest)
    check_sidecar(bundle, sidecar, found_here(tensorrt, gpu, bundle, plugins, board))
    check_graphs(bundle, manifest, sidecar)
    load_plugins(tensorrt, plugins, sidecar.plugins, mend=mend)
    logger = make_logger(tensorrt)
    runtime: trt.Runtime = tensorrt.Runtime(logger)
    engines = {}
    for name, graph in manifest.graphs.items():
        path = engine_folder(bundle, key) / sidecar.plans[name].file
        engines[name] = _deserialise(runtime, logger, path, mend=mend)
        check_engine(tensorrt, engines[name], graph, mend=mend)
    return Engines(by_graph=engines, limits=sidecar.limits, logger=logger, runtime=runtime)


def _deserialise(
    runtime: trt.Runtime, logger: trt.ILogger, path: Path, *, mend: str
) -> trt.ICudaEngine:
    """A plan by way of its page cache, which is given back afterwards: CUDA counts it as used."""
    with path.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            engine: trt.ICudaEngine | None = runtime.deserialize_cuda_engine(plan)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if engine is None:
        raise BundleError(f"{path} is no engine for this TensorRT: {last_error(logger)}", hint=mend)
    return engine


def check_engine(tensorrt: Any, engine: trt.ICudaEngine, graph: GraphSpec, *, mend: str) -> None:
    """Raise ``BundleError`` unless the engine's tensors are those of the manifest's graph."""
    wanted = {tensor.name: tensor.dtype for tensor in (*graph.inputs, *graph.outputs)}
    for state in graph.states:
        wanted |= {state.input: state.dtype, state.output: state.dtype}
    found = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
    if found != set(wanted):
        odd = min(found ^ set(wanted))
        where = "the manifest" if odd in found else "the engine"
        raise BundleError(f"{graph.file}: {where} has no tensor {odd!r}", hint=mend)
    for name, dtype in wanted.items():
        own = engine.get_tensor_dtype(name)
        if own != getattr(tensorrt, ONNX_TYPES[dtype]):
            raise BundleError(
                f"{graph.file}: the engine has {own} as {name}, the manifest {dtype}", hint=mend
            )
        if engine.get_tensor_location(name) != tensorrt.TensorLocation.DEVICE:
            raise DeviceError(
                f"{graph.file}: the engine wants {name} on the host, where no step could change "
                "it without waiting",
                hint="report this with the output of: selfdraft build BUNDLE -vv",
            )
    if engine.num_optimization_profiles != len(PROFILES):
        raise BundleError(
            f"{graph.file}: the engine has {engine.num_optimization_profiles} profiles, not "
            f"{len(PROFILES)}",
            hint=mend,
        )
