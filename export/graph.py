"""Torch modules to ONNX graphs whose weights point into the bundle's weights file.

The modules are traced on fake tensors, so a graph costs no weight memory. For the ``cpu`` target
the function bodies of custom ops are inlined and their shared arithmetic is merged.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from selfdraft.export.graph_passes import (
    attach_weights,
    detach_weights,
    fill_buffers,
    inline_and_merge,
)
from selfdraft.export.modules import Backbone, MtpHead
from selfdraft.manifest import Dim, GraphSpec, ModelSpec, StateSpec, TensorSpec

log = logging.getLogger(__name__)

OPSET = 21
STEP_INPUTS = ("past_len", "row_count", "attend_all")
GRAPH_PARAMETERS = {"backbone": "backbone.", "mtp": "mtp."}


class StoredLike(Protocol):
    """Where a tensor lies in the weights file (``export.weights.StoredTensor``)."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


def build_graphs(
    spec: ModelSpec,
    stored: Mapping[str, StoredLike],
    *,
    directory: Path,
    weights: Literal["fp32", "int4"],
    int4_block: int | None,
    candidates: int,
    target: str,
    weights_file: str = "weights.safetensors",
) -> dict[str, GraphSpec]:
    """Write ``backbone.onnx`` (and ``mtp.onnx``) into ``directory``; returns their specs.

    ``stored`` maps the weight names of docs/architecture.md to places in ``weights_file``.
    """
    assert target == "cpu" and (weights == "fp32" or int4_block is not None)
    graphs = {}
    for name in ("backbone", "mtp") if spec.mtp else ("backbone",):
        graph = graph_spec(name, spec, candidates=candidates)
        model = _trace(name, spec, graph, candidates=candidates)
        module = _meta_module(name, spec)
        parameters = [key for key, _ in module.named_parameters()]
        values = detach_weights(model, {key: stored_name(name, key) for key in parameters})
        fill_buffers(model, {k: b.numpy() for k, b in module.named_buffers()})
        inline_and_merge(model, opset=OPSET)
        attach_weights(model, values, stored, location=weights_file, block=int4_block)
        _name_boundary(model, graph)
        _check_inputs(model)
        ir.save(model, directory / graph.file)
        log.info("wrote %s: %d nodes", graph.file, sum(1 for _ in model.graph))
        graphs[name] = graph
    return graphs


def graph_spec(name: str, spec: ModelSpec, *, candidates: int) -> GraphSpec:
    """Inputs, outputs and states of one graph on the ``cpu`` target."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    inputs = [
        TensorSpec(name="input_ids", dtype="int64", shape=("batch", "rows")),
        TensorSpec(name="embedding", dtype="float32", shape=(vocab, hidden)),
        *(TensorSpec(name=key, dtype="int64", shape=("batch",)) for key in STEP_INPUTS),
        TensorSpec(name="row_index", dtype="int64", shape=("batch", "logit_rows")),
    ]
    drafted = vocab
    if name == "mtp":
        assert spec.mtp is not None
        drafted = spec.mtp.draft_vocab_size or vocab
        inputs.append(TensorSpec(name="hidden", dtype="float32", shape=("batch", "rows", hidden)))
    listed: tuple[Dim, ...] = ("batch", "logit_rows", min(candidates, drafted))
    tops = [
        TensorSpec(name="top_values", dtype="float32", shape=listed),
        TensorSpec(name="top_ids", dtype="int64", shape=listed),
    ]
    if name == "backbone":
        head = [
            TensorSpec(name="hidden", dtype="float32", shape=("batch", "rows", hidden)),
            TensorSpec(name="logits", dtype="float32", shape=("batch", "logit_rows", vocab)),
        ]
    else:
        head = [
            TensorSpec(name="hidden_out", dtype="float32", shape=("batch", "logit_rows", hidden)),
            TensorSpec(name="draft_ids", dtype="int64", shape=("batch", "logit_rows")),
        ]
    return GraphSpec(
        file=f"{name}.onnx",
        inputs=tuple(inputs),
        outputs=tuple(head + tops),
        taps=(head[0].name,),
        states=tuple(_states(name, spec)),
    )


def _states(name: str, spec: ModelSpec) -> Iterator[StateSpec]:
    layers = spec.num_layers if name == "backbone" else 1
    for layer in range(layers):
        for kind in ("k", "v"):
            label = f"{kind}_cache_{layer}"
            yield StateSpec(
                name=f"{name}.{label}",
                kind="kv",
                dtype="float32",
                shape=("batch", spec.num_kv_heads, "capacity", spec.head_dim),
                input=label,
                output=f"{label}_out",
                aliased=True,
            )


def build_module(name: str, spec: ModelSpec, *, candidates: int) -> torch.nn.Module:
    """The torch module behind graph ``name``, weights not filled in."""
    module: torch.nn.Module = (
        Backbone(spec, candidates=candidates)
        if name == "backbone"
        else MtpHead(spec, candidates=candidates)
    )
    return module.eval()


def _meta_module(name: str, spec: ModelSpec) -> torch.nn.Module:
    """The module with parameters that have no storage; buffers are real."""
    with torch.device("meta"):
        return build_module(name, spec, candidates=1)


def stored_name(graph: str, parameter: str) -> str:
    """Name in the weights file of a module's parameter: the LM head is shared, not prefixed."""
    return parameter if parameter.startswith("lm_head.") else f"{graph}.{parameter}"


def _trace(name: str, spec: ModelSpec, graph: GraphSpec, *, candidates: int) -> ir.Model:
    from selfdraft.export.attention_op import onnx_translation

    dynamic = torch.export.Dim.DYNAMIC
    # Distinct sizes above 1, so that no two axes are taken for one and none is specialised.
    sizes = {"batch": 2, "rows": 3, "logit_rows": 5, "capacity": 128}
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = build_module(name, spec, candidates=candidates)
        example, shapes = [], []
        boundary: tuple[TensorSpec | StateSpec, ...] = (*graph.inputs, *graph.states)
        for tensor in boundary:
            dtype = torch.int64 if tensor.dtype == "int64" else torch.float32
            dims = [sizes[d] if isinstance(d, str) else d for d in tensor.shape]
            example.append(torch.zeros(dims, dtype=dtype))
            shapes.append({i: dynamic for i, d in enumerate(tensor.shape) if isinstance(d, str)})
        plain = len(graph.inputs)
        program = _quietly(
            torch.onnx.export,
            module,
            (*example[:plain], example[plain:]),
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=[t.name for t in graph.inputs] + [s.input for s in graph.states],
            output_names=[t.name for t in graph.outputs] + [s.output for s in graph.states],
            dynamic_shapes=(*shapes[:plain], shapes[plain:]),
            custom_translation_table={
                torch.ops.selfdraft.cached_attention.default: onnx_translation()
            },
        )
    model: ir.Model = program.model
    return model


def _quietly(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` with the exporter's own chatter kept off the terminal."""
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _name_boundary(model: ir.Model, graph: GraphSpec) -> None:
    """Give graph inputs and outputs the manifest's dimensions; drop stale inner shapes."""
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    wanted = {t.name: t.shape for t in (*graph.inputs, *graph.outputs)}
    for state in graph.states:
        wanted[state.input] = wanted[state.output] = state.shape
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.name is not None
        value.shape = ir.Shape(wanted[value.name])


def _check_inputs(model: ir.Model) -> None:
    """Tracing merges example tensors that are one object: every input must have a reader."""
    unread = [v.name for v in model.graph.inputs if not v.uses() and v.name != "attend_all"]
    assert not unread, f"graph inputs without a consumer: {unread}"
