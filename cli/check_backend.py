"""An Orin bundle on a workstation: its check variant on ONNX Runtime (docs/tensorrt.md)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from selfdraft.cli.graphs_backend import GraphsBackend
from selfdraft.errors import DeviceError
from selfdraft.manifest import Manifest
from selfdraft.runtime.graph_check import check_graph


class CheckBackend(GraphsBackend):
    """The graphs of a board with function bodies in place of its kernels.

    Raises ``DeviceError`` where onnx or onnxruntime is missing, ``BundleError`` for a graph that is not the
    one that the manifest describes.
    """

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        for name, extra in (("onnx", "export"), ("onnxruntime", "cpu")):
            if importlib.util.find_spec(name) is None:
                raise DeviceError(
                    f"{name} is not installed, checking a bundle for {manifest.target} needs it",
                    hint=f"pip install 'selfdraft[{extra}]'",
                )
        super().__init__("check variant", bundle, manifest, CheckGraphs(bundle, manifest))


class CheckGraphs:
    """Sessions over the check variant of both graphs."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        import onnxruntime as ort

        from selfdraft.export.check_variant import write_check_variant

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Lets the int4 matrices be unpacked once, when the session opens.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._sessions = {}
        with TemporaryDirectory(dir=bundle.parent, prefix=f".{bundle.name}.check-") as folder:
            write_check_variant(bundle, manifest, Path(folder))
            for name, graph in manifest.graphs.items():
                session = ort.InferenceSession(str(Path(folder) / graph.file), options)
                check_graph(session, graph)
                self._sessions[name] = session

    def run(self, name: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of graph ``name`` by name, states included; ``feed`` has every input."""
        session = self._sessions[name]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feed)), strict=True))
