"""Parse one ONNX file with NVIDIA's parser while a plugin library is loaded.

    python rtx_parse.py GRAPH.onnx LIBRARY.so

A process of its own: this flavour of TensorRT has no plugins and aborts once it adds the layer. Everything
that the logger hears goes to stdout at once, so that what came before the abort is seen.
"""

from __future__ import annotations

import sys
from typing import Any


def main(path: str, library: str) -> None:
    import tensorrt_rtx_bindings as trt
    import tensorrt_rtx_libs  # noqa: F401  loads the libraries that the bindings link to

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            print(f"{str(severity).rpartition('.')[2]} {message}", flush=True)

    logger = Logger()
    builder = trt.Builder(logger)
    registry = trt.get_plugin_registry()
    assert registry.load_library(library) is not None, f"{library} does not load"
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(path)
    print(f"PARSED {parsed} LAYERS {network.num_layers}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
