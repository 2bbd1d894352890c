"""Which standard ONNX operators TensorRT's parser knows, by the version from which it does.

``operators.json``: version → operators. Sources: the operator table of onnx-tensorrt for 10.1, and TensorRT's
release notes for what came later. The parser of ``tensorrt-rtx`` confirms the table in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import onnx_ir as ir

from selfdraft.errors import ConfigError
from selfdraft.export.plugin_nodes import OPS

TABLE = "operators.json"
STANDARD = ("", "ai.onnx")

Version = tuple[int, int]


@cache
def operators_since() -> Mapping[str, Version]:
    """First TensorRT version of each operator."""
    text = (files("selfdraft.export") / TABLE).read_text(encoding="utf-8")
    return {
        op: (int(version.split(".")[0]), int(version.split(".")[1]))
        for version, names in json.loads(text).items()
        for op in names
    }


def check_operators(model: ir.Model, *, tensorrt: Version, file: str) -> None:
    """Raise ``ConfigError`` naming the first node of ``model`` that TensorRT does not know.

    A custom operator must not bear the name of a standard one: the parser would take that, whatever the
    domain.
    """
    for node in model.graph:
        problem = _problem(node.domain, node.op_type, tensorrt)
        if problem is not None:
            raise ConfigError(
                f"{file}: node {node.name!r} is {node.op_type}, {problem}",
                hint="export with --target cpu, and report the model's family",
            )
    if model.functions:
        name = next(iter(model.functions))[1]
        raise ConfigError(
            f"{file} holds the local function {name}, which would hide a plugin",
            hint="export the bundle again",
        )


def _problem(domain: str, op_type: str, tensorrt: Version) -> str | None:
    since = operators_since().get(op_type)
    wanted = ".".join(str(part) for part in tensorrt)
    if domain not in STANDARD:
        if since is not None:
            return f"a custom operator with the name of one that TensorRT knows since {since[0]}.{since[1]}"
        known = (domain, op_type) in OPS
        return None if known else f"which no plugin of ours implements ({domain})"
    if since is None:
        return f"which TensorRT {wanted} does not know"
    if since > tensorrt:
        return f"which TensorRT knows from {since[0]}.{since[1]} on, not {wanted}"
    return None
