"""Checkpoint to bundle: the steps of an export in their order."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import selfdraft
from selfdraft.errors import ConfigError, DeviceError
from selfdraft.export.attention_options import coverage_notes
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.draft_vocab import planned_draft_ids
from selfdraft.export.families import ModelPlan, read_model
from selfdraft.export.kernel_checks import check_board
from selfdraft.export.options import MIN_CONTEXT, ExportOptions, ExportReport
from selfdraft.export.publish import (
    check_disk_space,
    check_output,
    hash_files,
    new_folder,
    resource_errors,
    sync_file,
    write_synced,
)
from selfdraft.export.source import Source, read_source
from selfdraft.export.text_files import TextFiles, read_text_files
from selfdraft.export.weight_plan import (
    HALF_TYPES,
    WeightsPlan,
    bytes_by_part,
    plan_embedding,
    plan_weights,
)
from selfdraft.export.weight_tuning import NO_TUNING, Tuning
from selfdraft.export.weights import write_weights
from selfdraft.manifest import (
    DEFAULT_CONTEXT,
    MANIFEST_NAME,
    SCHEMA_VERSION,
    AttentionPlan,
    FileSpec,
    GraphSpec,
    Limits,
    Manifest,
    Precision,
    TableType,
    manifest_to_json,
)
from selfdraft.measured import Measured

if TYPE_CHECKING:
    from selfdraft.export.calibrate import Calibrated

log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
"""Called with a stage (embedding, weights, graphs, hashes), done and total."""
GRAPH_BYTES = 32 * 2**20
"""Room left for graphs and manifest, whose size is not known before."""
UNMEASURED_NOTE = (
    "what quantising cost in perplexity and acceptance was not measured: give --calibrate TEXT"
)
WEIGHTS_FILE = "weights.safetensors"
EMBEDDING_FILE = "embedding.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Everything about an export that is known before a byte is written."""

    checkpoint: Checkpoint
    model: ModelPlan
    weights: WeightsPlan
    embedding: WeightsPlan
    text: TextFiles
    source: Source
    limits: Limits
    attention: AttentionPlan | None
    attention_notes: tuple[str, ...]
    extra_notes: tuple[str, ...] = ()

    @property
    def table_type(self) -> TableType:
        """Storage of the embedding."""
        return self.embedding.table_type

    @property
    def quantised(self) -> bool:
        """Whether the export rounds anything to 8 bits or fewer."""
        return self.weights.quantised or self.table_type == "int8"

    @property
    def num_bytes(self) -> int:
        """Disk space that the bundle needs at most."""
        small = sum(len(content) for content in self.contents.values())
        return self.weights.num_bytes + self.embedding.num_bytes + small + GRAPH_BYTES

    @property
    def contents(self) -> dict[str, bytes]:
        """Small files by name."""
        return {**self.source.contents, **self.text.contents}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the result."""
        parts = (self.model, self.weights, self.text, self.source)
        own = (note for part in parts for note in part.notes)
        return (*own, *self.attention_notes, *self.extra_notes)


def plan_export(checkpoint_path: Path, options: ExportOptions) -> ExportPlan:
    """Read and check the whole checkpoint except its weight values; nothing is written.

    Raises ``ConfigError`` for a checkpoint or an option that cannot be exported.
    """
    checkpoint = Checkpoint.open(checkpoint_path)
    model = read_model(checkpoint, context=options.context)
    vocab_size = model.spec.vocab_size
    text = read_text_files(checkpoint, vocab_size=vocab_size)
    weights = plan_weights(
        model,
        types=options.types,
        draft_ids=planned_draft_ids(model, text, options),
        packed={} if options.weights in ("fp32", *HALF_TYPES) else checkpoint.packed,
    )
    context_length = _context(model, options)
    attention = options.attention.plan(model.spec, model.sparse)
    check_board(model.spec, attention, options, context=context_length)
    return ExportPlan(
        checkpoint=checkpoint,
        model=model,
        weights=weights,
        embedding=plan_embedding(model, form=options.types.table(tied=model.spec.tied_head)),
        text=text,
        source=read_source(checkpoint, model, name=options.name),
        limits=Limits(
            context_length=context_length,
            candidates=min(options.candidates, vocab_size),
            prefill_rows=options.prefill_rows,
        ),
        attention=attention,
        attention_notes=coverage_notes(model.spec, attention, context_length),
    )


def check_place(checkpoint_path: Path, output: Path, options: ExportOptions) -> Path:
    """``output`` without links, once it is clear that a bundle may be put there.

    Raises ``ConfigError`` or ``ResourceError``.
    """
    for path in (output, checkpoint_path):
        try:
            os.stat(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ConfigError(
                    f"{path} is a link that leads back to itself", hint="remove the link"
                ) from None
    output = output.resolve()
    with resource_errors(output):
        check_output(output, overwrite=options.overwrite)
    _refuse_nested(checkpoint_path, output)
    return output


def export_bundle(
    checkpoint_path: Path,
    output: Path,
    options: ExportOptions,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write the bundle ``output``; it appears complete or not at all.

    Raises ``ConfigError`` for a checkpoint, option or output that cannot be, ``ResourceError``
    when disk space or the right to write is missing. Peak memory follows the largest matrix as stored.
    """
    started = time.monotonic()
    check_exporter()
    report = on_progress or (lambda stage, done, total: None)
    output = check_place(checkpoint_path, output, options)
    plan = plan_export(checkpoint_path, options)
    with resource_errors(output):
        check_disk_space(output, plan.num_bytes, smaller="export with --weights int4")
    for note in plan.notes:
        log.info("%s", note)
    calibrated = _calibrated(plan, options, report)
    if calibrated is not None:
        plan = replace(plan, weights=calibrated.weights, extra_notes=calibrated.notes)
    with new_folder(output, overwrite=options.overwrite) as folder:
        tuning = calibrated.tuning if calibrated else NO_TUNING
        written = _write_parts(plan, folder, options, report, tuning)
        measured = None
        if calibrated is not None:
            measured, notes = _measured(plan, calibrated, folder, report)
            plan = replace(plan, extra_notes=plan.extra_notes + notes)
        elif plan.quantised:
            plan = replace(plan, extra_notes=(UNMEASURED_NOTE,))
        files = hash_files(folder, lambda done, total: report("hashes", done, total))
        manifest = replace(_manifest(plan, options, written.graphs, files), measured=measured)
        write_synced(folder / MANIFEST_NAME, manifest_to_json(manifest).encode())
    return ExportReport(
        output=output,
        manifest=manifest,
        seconds=time.monotonic() - started,
        peak_rss_bytes=_peak_rss_bytes(),
        bytes_by_part=bytes_by_part([plan.embedding, plan.weights]),
        read_bytes=written.read_bytes,
        weight_seconds=written.seconds,
    )


def check_exporter(command: str = "export") -> None:
    """Raise ``DeviceError`` when the packages that trace graphs are missing; ``command`` asks."""
    for name in ("torch", "onnx", "onnxscript", "onnx_ir"):
        if importlib.util.find_spec(name) is None:
            raise DeviceError(
                f"{name} is not installed, {command} needs it",
                hint="pip install 'selfdraft[export]'",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Graphs, and what the weights took."""

    graphs: dict[str, GraphSpec]
    read_bytes: int
    seconds: float


def _write_parts(
    plan: ExportPlan,
    folder: Path,
    options: ExportOptions,
    report: OnProgress,
    tuning: Tuning,
) -> _Written:
    """Write every file but the manifest."""
    started = time.monotonic()
    for stage, weights, file in (
        ("embedding", plan.embedding, EMBEDDING_FILE),
        ("weights", plan.weights, WEIGHTS_FILE),
    ):
        write_weights(
            plan.checkpoint, weights, folder / file, partial(report, stage), tuning=tuning
        )
    seconds = time.monotonic() - started
    for name, content in plan.contents.items():
        write_synced(folder / name, content)
    from selfdraft.export.graph import build_graphs  # torch takes seconds to import

    report("graphs", 0, 1)
    graphs = build_graphs(
        plan.weights.spec,
        plan.weights.tensors,
        directory=folder,
        candidates=plan.limits.candidates,
        target=options.target,
        attention=plan.attention,
        kv_dtype=options.kv,
        exact_rows=_exact_rows(options, plan.weights),
        table=plan.table_type,
    )
    for graph in graphs.values():
        sync_file(folder / graph.file)
    report("graphs", 1, 1)
    return _Written(graphs=graphs, read_bytes=plan.checkpoint.num_bytes, seconds=seconds)


def _calibrated(plan: ExportPlan, options: ExportOptions, report: OnProgress) -> Calibrated | None:
    """What the calibration text decides, or None without one."""
    if options.calibrate is None:
        return None
    from selfdraft.export.calibrate import calibrate
    from selfdraft.export.text_scores import read_text

    return calibrate(
        plan.checkpoint,
        plan.model,
        plan.weights,
        read_text(options.calibrate, plan.text.tokenizer),
        activation_aware=options.activation_aware,
        on_progress=report,
    )


def _measured(
    plan: ExportPlan, calibrated: Calibrated, folder: Path, report: OnProgress
) -> tuple[Measured, tuple[str, ...]]:
    """What the stored weights give on the text."""
    from selfdraft.export.calibrate import measure

    report("measurement", 0, 1)
    found = measure(
        calibrated,
        plan.checkpoint,
        plan.model,
        weights_file=folder / WEIGHTS_FILE,
        embedding_file=folder / EMBEDDING_FILE,
        quantised=plan.quantised,
    )
    report("measurement", 1, 1)
    return found


def _manifest(
    plan: ExportPlan,
    options: ExportOptions,
    graphs: dict[str, GraphSpec],
    files: dict[str, FileSpec],
) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        selfdraft_version=selfdraft.__version__,
        target=options.target,
        model=plan.weights.spec,
        graphs=graphs,
        precision=Precision(
            weights=plan.weights.backbone_type,
            embedding=plan.table_type,
            lm_head=plan.weights.type_of("lm_head."),
            mtp=plan.weights.type_of("mtp.p", "mtp.layer."),
            int4_block=plan.weights.int4_block,
            activations=plan.weights.plain,
            kv=options.kv,
            exact_rows=_exact_rows(options, plan.weights),
        ),
        limits=plan.limits,
        text=plan.text.spec,
        sampling=plan.text.sampling,
        source=plan.source.spec,
        files=files,
        attention=plan.attention,
        weights_file=WEIGHTS_FILE,
        embedding_file=EMBEDDING_FILE,
        notes=plan.notes,
    )


def _exact_rows(options: ExportOptions, weights: WeightsPlan) -> bool:
    """Speculation needs them: int8 arithmetic in int4 matmuls amplifies any rounding difference."""
    if options.engine.has_plugins:
        return True
    if options.exact_rows is not None:
        return options.exact_rows
    return weights.int4_block is None or weights.spec.mtp is not None


def _context(model: ModelPlan, options: ExportOptions) -> int:
    if model.max_context < MIN_CONTEXT:
        raise ConfigError(
            f"config.json says max_position_embeddings = {model.max_context}, expected "
            f"{MIN_CONTEXT} or more",
            hint="restore the config.json that came with the checkpoint",
        )
    if options.context is None:
        return min(model.max_context, DEFAULT_CONTEXT)
    if options.context > model.max_context:
        raise ConfigError(
            f"context {options.context} is more than the checkpoint's max_position_embeddings, "
            f"{model.max_context}",
            hint=f"choose --context {model.max_context} or less",
        )
    return options.context


def _refuse_nested(checkpoint_path: Path, output: Path) -> None:
    """Replacing the output must never remove the checkpoint."""
    if checkpoint_path.resolve().is_relative_to(output):
        raise ConfigError(
            f"the checkpoint {checkpoint_path} lies in the output folder {output}",
            hint="choose an output folder outside",
        )


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
