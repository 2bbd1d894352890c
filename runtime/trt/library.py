"""TensorRT's Python module and the plugin library: imported and loaded only where an engine is used."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.errors import BundleError, DeviceError
from selfdraft.manifest import Manifest
from selfdraft.runtime.bundle import file_sha256

if TYPE_CHECKING:
    import tensorrt as trt

log = logging.getLogger(__name__)

OLDEST = (10, 3)
PLUGIN_VARIABLE = "SELFDRAFT_PLUGIN_PATH"
HOME_VARIABLE = "SELFDRAFT_HOME"
PLUGIN_NAME = "libselfdraft_plugins.so"
BUILD_PLUGINS = "build it on this board: selfdraft plugins build --install"


def import_tensorrt() -> Any:
    """The module ``tensorrt``. Raises ``DeviceError`` where it is missing or older than 10.3."""
    try:
        import tensorrt

        version = str(tensorrt.__version__)
    except (ImportError, AttributeError) as error:  # the type stubs alone have no version
        raise DeviceError(
            f"tensorrt cannot be imported: {error}",
            hint="TensorRT comes with JetPack; make the environment with: python3 -m venv "
            "--system-site-packages .venv",
        ) from None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise DeviceError(
            f"TensorRT {version} is too old, engines need 10.3", hint="update to JetPack 6.1"
        )
    return tensorrt


def make_logger(tensorrt: Any) -> trt.ILogger:
    """A TensorRT logger that writes to ours, and keeps its errors for our own messages."""

    class Logger(tensorrt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (tensorrt.ILogger.ERROR, tensorrt.ILogger.INTERNAL_ERROR):
                self.errors.append(" ".join(msg.split()))
                log.info("TensorRT: %s", msg)
            elif severity == tensorrt.ILogger.WARNING:
                log.info("TensorRT: %s", msg)
            else:
                log.debug("TensorRT: %s", msg)

    logger: trt.ILogger = Logger()
    return logger


def last_error(logger: trt.ILogger) -> str:
    """The newest error that TensorRT told ``logger``, shortened."""
    errors: list[str] = getattr(logger, "errors", [])
    return errors[-1][:300] if errors else "TensorRT gave no reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Creator:
    """What a plugin library must offer."""

    name: str
    version: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """The plugin library of this machine."""

    path: str
    sha256: str


def creators_of(manifest: Manifest) -> tuple[Creator, ...]:
    """Every kind of plugin node in the graphs, once, in order of name."""
    nodes = [node for graph in manifest.graphs.values() for node in graph.plugin_nodes]
    kinds = {(node.op, node.version, node.namespace) for node in nodes}
    return tuple(Creator(name=n, version=v, namespace=s) for n, v, s in sorted(kinds))


def find_plugins() -> Plugins:
    """The library of ``SELFDRAFT_PLUGIN_PATH``, else of selfdraft's own folder.

    Raises ``DeviceError`` where there is none.
    """
    named = os.environ.get(PLUGIN_VARIABLE)
    home = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".cache" / "selfdraft")
    path = (Path(named) if named else home / "plugins" / PLUGIN_NAME).resolve()
    if not path.is_file():
        said = f" ({PLUGIN_VARIABLE}={named})" if named else ""
        raise DeviceError(f"there is no plugin library at {path}{said}", hint=BUILD_PLUGINS)
    return Plugins(path=str(path), sha256=file_sha256(path))


def load_plugins(
    tensorrt: Any, plugins: Plugins | None, wanted: Sequence[Creator], *, mend: str
) -> None:
    """Load the library by its absolute path, and see that it has every creator ``wanted``.

    Once a process: TensorRT refuses a library whose plugins are registered already. Raises ``DeviceError`` for a library that does not load, ``BundleError`` for one that lacks
    a creator: the parser and the engine would only say that something was not found.
    """
    registry: trt.IPluginRegistry = tensorrt.get_plugin_registry()
    missing = _unregistered(registry, wanted)
    if plugins is not None and len(missing) == len(wanted):
        handle = registry.load_library(plugins.path)
        if handle is None:
            raise DeviceError(f"{plugins.path} does not load in TensorRT", hint=BUILD_PLUGINS)
        log.info("loaded %s", plugins.path)
        missing = _unregistered(registry, wanted)
    if missing:
        where = plugins.path if plugins else "TensorRT"
        name, version = f"{missing[0].namespace}::{missing[0].name}", missing[0].version
        raise BundleError(f"{where} has no plugin {name} version {version}", hint=mend)


def _unregistered(registry: trt.IPluginRegistry, wanted: Sequence[Creator]) -> list[Creator]:
    return [c for c in wanted if registry.get_creator(c.name, c.version, c.namespace) is None]
