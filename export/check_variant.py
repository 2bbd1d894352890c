"""The check variant of an Orin graph: the same nodes, with function bodies in place of plugins.

NVIDIA's parser and builder take it without a GPU, and ONNX Runtime runs it: the only way to execute an
Orin bundle on a workstation. It is made from the exported file itself, so what is checked is what is shipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from selfdraft.export.plugin_nodes import FOR_PLUGINS, OPS
from selfdraft.manifest import Manifest
from selfdraft.trt_plugins.cached_attention import contract as attention
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_masked_body import masked_function_text
from selfdraft.trt_plugins.gated_delta_rule import contract as delta
from selfdraft.trt_plugins.gated_delta_rule import onnx_body as delta_body
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.int4_matmul import contract as matmul
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.onnx_body import function_text

CHECK_OPSET = 21

BODIES: dict[tuple[str, str], Callable[[dict[str, Any], str], str]] = {
    (attention.OP_DOMAIN, attention.OP_NAME): lambda attributes, name: masked_function_text(
        CachedAttention(**attributes), name=name, opset=CHECK_OPSET
    ),
    (delta.OP_DOMAIN, delta.OP_NAME): lambda attributes, name: delta_body.function_text(
        GatedDeltaRule(**attributes), name=name, opset=CHECK_OPSET, checks=True
    ),
    (matmul.OP_DOMAIN, matmul.OP_NAME): lambda attributes, name: function_text(
        Int4MatMul(**attributes), name=name, opset=CHECK_OPSET
    ),
}
"""Text of an operator's body: (attributes, name)."""


def write_check_variant(bundle: Path, manifest: Manifest, folder: Path) -> None:
    """The check variant of both graphs of an Orin bundle in ``folder``, beside its weights.

    The weights are a hard link where the file system allows one, else a copy.
    """
    for graph in manifest.graphs.values():
        model = onnx.load(str(bundle / graph.file), load_external_data=False)
        onnx.save(check_variant(model), str(folder / graph.file))
    _link(bundle / manifest.weights_file, folder / manifest.weights_file)


def check_variant(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with a function for each int4 matrix and each attribute set of the others, and calls."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    known: dict[tuple[Any, ...], str] = {}
    for node in checked.graph.node:
        operator = (node.domain, node.op_type)
        if operator not in OPS:
            continue
        attributes = _attributes(node)
        own = node.name if node.op_type == matmul.OP_NAME else ""
        key = (*operator, own, *sorted(attributes.items()))
        if key not in known:
            known[key] = f"{node.op_type}_{len(known)}"
            text = BODIES[operator](attributes, known[key])
            checked.functions.append(onnx.parser.parse_function(text))
        node.op_type = known[key]
        del node.attribute[:]
    for opset in checked.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = CHECK_OPSET
    return checked


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The operator's own attributes."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values.items()
        if name not in FOR_PLUGINS
    }


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
