"""Which of the operators named NVIDIA's parser does not know: a JSON list."""

from __future__ import annotations

import json
import sys


def main(names: list[str]) -> list[str]:
    import tensorrt_rtx_bindings as trt
    import tensorrt_rtx_libs  # noqa: F401  loads the libraries that the bindings link to

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    parser = trt.OnnxParser(builder.create_network(0), logger)
    return [name for name in names if not parser.supports_operator(name)]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
