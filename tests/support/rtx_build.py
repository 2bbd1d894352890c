"""Parse and build one ONNX graph with NVIDIA's parser and builder (``tensorrt-rtx``), no GPU needed.

    python rtx_build.py GRAPH.onnx ROWS BATCH BLOCKS

A process of its own, since the builder may abort it. Prints one JSON line: layers, bytes of the plan,
seconds, and the parser's errors.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MODULE = "tensorrt_rtx_bindings"
LOGIT_ROWS = 4


def main(path: str, rows: int, batch: int, blocks: int) -> dict[str, Any]:
    import tensorrt_rtx_bindings as trt
    import tensorrt_rtx_libs  # noqa: F401  loads the libraries that the bindings link to

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)  # this flavour is always strongly typed
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        return {
            "parsed": False,
            "errors": [str(parser.get_error(i)) for i in range(parser.num_errors)],
        }
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    profile = builder.create_optimization_profile()
    most = {"batch": batch, "rows": rows, "logit_rows": min(rows, LOGIT_ROWS), "blocks": blocks}
    dims = {name: (1, max(1, size // 2), size) for name, size in most.items()}
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        names = symbols(path)[tensor.name]
        sizes = [tuple(dims[d][i] if isinstance(d, str) else d for d in names) for i in range(3)]
        profile.set_shape(tensor.name, *sizes)
    config.add_optimization_profile(profile)
    started = time.monotonic()
    plan = builder.build_serialized_network(network, config)
    return {
        "parsed": True,
        "built": plan is not None,
        "layers": network.num_layers,
        "plan_bytes": plan.nbytes if plan is not None else 0,
        "seconds": round(time.monotonic() - started, 1),
    }


def symbols(path: str) -> dict[str, list[str | int]]:
    """Axes of every graph input."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *(int(value) for value in sys.argv[2:]))))
