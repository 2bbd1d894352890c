"""Torch modules to ONNX graphs whose weights point into the bundle's weights file.

The modules are traced on fake tensors, so a graph costs no weight memory. For the ``cpu`` target
the function bodies of custom ops are inlined and their shared arithmetic is merged; for Orin custom
ops stay nodes, for the plugin library.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from selfdraft.embedding_table import INPUT_TYPES, SCALE, TABLE
from selfdraft.export.graph_passes import (
    attach_weights,
    detach_weights,
    fill_buffers,
    inline_and_merge,
    merge,
)
from selfdraft.export.modules import Backbone, MtpHead, half_matrices
from selfdraft.export.operators import check_operators
from selfdraft.export.plugin_nodes import plugin_nodes, prepare_layers
from selfdraft.export.targets import TARGETS, Target
from selfdraft.manifest import (
    AttentionPlan,
    Dim,
    GraphSpec,
    ModelSpec,
    StateKind,
    StateSpec,
    TableType,
    TargetName,
    TensorSpec,
)
from selfdraft.recurrent import STATE_LEN
from selfdraft.trt_plugins.cached_attention.contract import BLOCKS_READ, CachedAttention, KvDtype
from selfdraft.trt_plugins.cached_attention.from_manifest import mtp_op
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule, RowDtype
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import LayerOp, backbone_ops

log = logging.getLogger(__name__)

DTYPES = {"fp32": "float32", "fp16": "float16"}
STEP_INPUTS = ("past_len", "row_count", "attend_all")
StateForm = tuple[StateKind, str, tuple[Dim, ...]]
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
    candidates: int,
    target: TargetName,
    attention: AttentionPlan | None = None,
    kv_dtype: KvDtype | None = None,
    exact_rows: bool = True,
    table: TableType | None = None,
    weights_file: str = "weights.safetensors",
) -> dict[str, GraphSpec]:
    """Write ``backbone.onnx`` (and ``mtp.onnx``) into ``directory``; returns their specs.

    ``stored`` maps the weight names of docs/architecture.md to places in ``weights_file``.
    ``attention`` None: dense everywhere. ``kv_dtype`` and ``table`` (the embedding's storage) None:
    the target's own. ``exact_rows``: no kernels
    that round one row otherwise than several. Raises ``ConfigError`` for an operator that the
    target's TensorRT lacks.
    """
    engine = TARGETS[target]
    graphs = {}
    for name in ("backbone", "mtp") if spec.mtp else ("backbone",):
        kv = kv_dtype or engine.kv_types[0]
        ops = graph_ops(name, spec, attention, kv_dtype=kv, row_dtype=engine.plain)
        graph = graph_spec(name, spec, ops, candidates=candidates, engine=engine, table=table)
        model = _trace(name, spec, graph, ops, candidates=candidates, engine=engine)
        module = _meta_module(name, spec, ops)
        parameters = [key for key, _ in module.named_parameters()]
        values = detach_weights(model, {key: stored_name(name, key) for key in parameters})
        fill_buffers(model, {k: b.numpy() for k, b in module.named_buffers()})
        if engine.has_plugins:
            prepare_layers(model, name)
            merge(model)
        else:
            inline_and_merge(model, opset=engine.opset, exact_rows=exact_rows)
        attach_weights(model, values, stored, location=weights_file)
        _name_boundary(model, graph)
        _check_inputs(model)
        if engine.tensorrt is not None:
            check_operators(model, tensorrt=engine.tensorrt, file=graph.file)
            graph = replace(graph, plugin_nodes=plugin_nodes(model))
        ir.save(model, directory / graph.file)
        log.info("wrote %s: %d nodes", graph.file, sum(1 for _ in model.graph))
        graphs[name] = graph
    return graphs


def graph_ops(
    name: str,
    spec: ModelSpec,
    attention: AttentionPlan | None,
    *,
    kv_dtype: KvDtype,
    row_dtype: RowDtype = "fp32",
) -> tuple[LayerOp, ...]:
    """The op of every layer of one graph; ``row_dtype``: of gated delta nets."""
    if name == "backbone":
        return backbone_ops(spec, attention, kv_dtype=kv_dtype, row_dtype=row_dtype)
    return (mtp_op(spec, attention, kv_dtype=kv_dtype),)


def graph_spec(
    name: str,
    spec: ModelSpec,
    ops: Sequence[LayerOp],
    *,
    candidates: int,
    engine: Target = TARGETS["cpu"],
    table: TableType | None = None,
) -> GraphSpec:
    """Inputs, outputs and states of one graph on one target; ``table`` None: the target's own type."""
    hidden, vocab, plain = spec.hidden_size, spec.vocab_size, DTYPES[engine.plain]
    inputs = [
        TensorSpec(name="input_ids", dtype="int64", shape=("batch", "rows")),
        TensorSpec(name=TABLE, dtype=INPUT_TYPES[table or engine.plain], shape=(vocab, hidden)),
        *(TensorSpec(name=key, dtype="int64", shape=("batch",)) for key in STEP_INPUTS),
        TensorSpec(name="row_index", dtype="int64", shape=("batch", "logit_rows")),
    ]
    drafted = vocab
    if name == "mtp":
        assert spec.mtp is not None
        drafted = spec.mtp.draft_vocab_size or vocab
        inputs.append(TensorSpec(name="hidden", dtype=plain, shape=("batch", "rows", hidden)))
    if table == "int8":
        inputs.append(TensorSpec(name=SCALE, dtype="float32", shape=(vocab,)))
    listed: tuple[Dim, ...] = ("batch", "logit_rows", min(candidates, drafted))
    tops = [
        TensorSpec(name="top_values", dtype="float32", shape=listed),
        TensorSpec(name="top_ids", dtype="int64", shape=listed),
    ]
    if name == "backbone":
        head = [
            TensorSpec(name="hidden", dtype=plain, shape=("batch", "rows", hidden)),
            TensorSpec(name="logits", dtype=plain, shape=("batch", "logit_rows", vocab)),
        ]
    else:
        head = [
            TensorSpec(name="hidden_out", dtype=plain, shape=("batch", "logit_rows", hidden)),
            TensorSpec(name="draft_ids", dtype="int64", shape=("batch", "logit_rows")),
        ]
    sparse = sum(isinstance(op, CachedAttention) and op.selector != "all" for op in ops)
    counters = [TensorSpec(name=BLOCKS_READ, dtype="int64", shape=(sparse,))] if sparse else []
    return GraphSpec(
        file=f"{name}.onnx",
        inputs=tuple(inputs),
        outputs=tuple(head + tops + counters),
        taps=(head[0].name,),
        states=tuple(_states(name, ops, engine)),
    )


def _states(name: str, ops: Sequence[LayerOp], engine: Target) -> Iterator[StateSpec]:
    if any(isinstance(op, GatedDeltaRule) for op in ops):
        yield StateSpec(
            name=STATE_LEN,
            kind="recurrent",
            dtype="int64",
            shape=("batch", 1),
            input="state_len",
            output="state_len_out",
            aliased=not engine.has_plugins,
        )
    for layer, op in enumerate(ops):
        forms = _delta_forms(op) if isinstance(op, GatedDeltaRule) else _cache_forms(op, engine)
        for state in op.states:
            kind, dtype, shape = forms[state]
            yield StateSpec(
                name=f"{name}.{state}_{layer}",
                kind=kind,
                dtype=dtype,
                shape=shape,
                input=f"{state}_{layer}",
                output=f"{state}_{layer}_out",
                aliased=True,
            )


def _delta_forms(op: GatedDeltaRule) -> dict[str, StateForm]:
    kinds: dict[str, StateKind] = {"conv_rows": "conv"}
    return {
        name: (kinds.get(name, "recurrent"), op.state_types[name], ("batch", *shape))
        for name, shape in op.state_shapes.items()
    }


def _cache_forms(op: CachedAttention, engine: Target) -> dict[str, StateForm]:
    # The kernels read a (block, head) in one piece; the CPU's body a head.
    scales: tuple[Dim, ...] = (
        ("batch", "blocks", op.num_kv_heads, op.block)
        if engine.has_plugins
        else ("batch", op.num_kv_heads, "capacity")
    )
    cache: tuple[Dim, ...] = (*scales, op.head_dim)
    blocks: tuple[Dim, ...] = ("batch", op.num_kv_heads, "blocks")
    plain = DTYPES[engine.plain]
    cache_dtype = "int8" if op.kv_dtype == "int8" else plain
    return {
        "k_cache": ("kv", cache_dtype, cache),
        "v_cache": ("kv", cache_dtype, cache),
        "k_scale": ("kv", "float16", scales),
        "v_scale": ("kv", "float16", scales),
        "summary": ("summary", "float16", (*blocks, op.summary_vectors, op.head_dim)),
    }


def build_module(
    name: str, spec: ModelSpec, ops: Sequence[LayerOp], *, candidates: int
) -> torch.nn.Module:
    """The torch module behind graph ``name``, weights not filled in."""
    module: torch.nn.Module = (
        Backbone(spec, ops, candidates=candidates)
        if name == "backbone"
        else MtpHead(spec, _attention(ops[0]), candidates=candidates)
    )
    return module.eval()


def _attention(op: LayerOp) -> CachedAttention:
    assert isinstance(op, CachedAttention), "an MTP head's layer attends"
    return op


def _meta_module(name: str, spec: ModelSpec, ops: Sequence[LayerOp]) -> torch.nn.Module:
    """The module with parameters that have no storage; buffers are real."""
    with torch.device("meta"):
        return build_module(name, spec, ops, candidates=1)


def stored_name(graph: str, parameter: str) -> str:
    """Name in the weights file of a module's parameter: the LM head is shared, not prefixed."""
    return parameter if parameter.startswith("lm_head.") else f"{graph}.{parameter}"


def _trace(
    name: str,
    spec: ModelSpec,
    graph: GraphSpec,
    ops: Sequence[LayerOp],
    *,
    candidates: int,
    engine: Target,
) -> ir.Model:
    dynamic = torch.export.Dim.DYNAMIC
    # Distinct sizes above 1, so that no two axes are taken for one and none is specialised.
    sizes = {"batch": 2, "rows": 3, "logit_rows": 5, "capacity": 448, "blocks": 7}
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = build_module(name, spec, ops, candidates=candidates)
        if engine.plain == "fp16":
            module = half_matrices(module)
        example, shapes = [], []
        boundary: tuple[TensorSpec | StateSpec, ...] = (*graph.inputs, *graph.states)
        for tensor in boundary:
            dtype = getattr(torch, tensor.dtype)
            dims = [sizes[d] if isinstance(d, str) else d for d in tensor.shape]
            example.append(torch.zeros(dims, dtype=dtype))
            shapes.append({i: dynamic for i, d in enumerate(tensor.shape) if isinstance(d, str)})
        program = _quietly(
            torch.onnx.export,
            module,
            call_arguments(graph, example),
            dynamo=True,
            optimize=False,
            opset_version=engine.opset,
            input_names=_call_names(graph),
            output_names=[t.name for t in graph.outputs] + [s.output for s in graph.states],
            dynamic_shapes=call_arguments(graph, shapes),
        )
    model: ir.Model = program.model
    return model


def call_arguments(graph: GraphSpec, values: Sequence[Any]) -> tuple[Any, ...]:
    """``values`` of ``graph.inputs`` and then of its states as the module takes them.

    The states are one list, and the scale of an int8 embedding stands behind it.
    """
    count = len(graph.inputs)
    scale = [i for i, tensor in enumerate(graph.inputs) if tensor.name == SCALE]
    own = [values[i] for i in range(count) if i not in scale]
    return (*own, list(values[count:]), *(values[i] for i in scale))


def _call_names(graph: GraphSpec) -> list[str]:
    """Names of the inputs in the order of ``call_arguments``."""
    names = [t.name for t in graph.inputs] + [s.input for s in graph.states]
    return [name for name in names if name != SCALE] + [name for name in names if name == SCALE]


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
