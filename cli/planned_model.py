"""The model that a plan or an advice is about: from a bundle's manifest, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from selfdraft.errors import ConfigError
from selfdraft.jetson.planner.geometry import Geometry, geometry_from_spec
from selfdraft.manifest import AttentionPlan, ModelSpec, load_manifest

if TYPE_CHECKING:
    from selfdraft.jetson.planner.storage import Storage

INT4_BLOCK = 32
"""The exporter's own choice, where a checkpoint is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """What is known before anything runs."""

    kind: Literal["bundle", "checkpoint"]
    spec: ModelSpec
    geometry: Geometry
    attention: AttentionPlan | None
    weights: Literal["fp32", "fp16", "int4"]
    """As exported; a checkpoint's as the exporter would by default."""
    int4_block: int | None
    kv: Literal["fp32", "fp16", "int8"]
    max_context: int
    prefill_rows: int

    @property
    def device_weights(self) -> Literal["fp16", "int4"]:
        """What that becomes on a board, where nobody says otherwise."""
        return "int4" if self.weights == "int4" or self.kind == "checkpoint" else "fp16"

    @property
    def device_kv(self) -> Literal["fp16", "int8"]:
        """The KV cache on a board, where nobody says otherwise."""
        return "int8" if self.kv == "int8" else "fp16"

    def exported(self, weights: Literal["fp32", "fp16", "int4"]) -> Storage:
        """How the exporter stores the model: for the ``cpu`` target, fp16 for Orin."""
        from selfdraft.jetson.planner.storage import cpu_storage, device_storage, fit_block

        if weights == "fp16":
            return device_storage(self.geometry, weights="fp16", head="fp16")
        block = self.int4_block or fit_block(self.geometry, INT4_BLOCK)
        return cpu_storage(weights, block if weights == "int4" else None)


def planned_model(path: Path, *, draft_vocab: int | None = None) -> PlannedModel:
    """Read a bundle or a checkpoint. Raises ``BundleError`` or ``ConfigError``."""
    is_checkpoint = (path / "config.json").is_file() and not (path / "manifest.json").exists()
    model = _from_checkpoint(path) if is_checkpoint else _from_bundle(path)
    if draft_vocab is None:
        return model
    if not model.geometry.mtp:
        raise ConfigError(
            f"--draft-vocab {draft_vocab}: this model has no MTP head", hint="leave it out"
        )
    if draft_vocab >= model.geometry.vocab_size:
        raise ConfigError(
            f"--draft-vocab {draft_vocab} is not below the vocabulary, {model.geometry.vocab_size}",
            hint="choose fewer, e.g. --draft-vocab 32768",
        )
    return replace(model, geometry=replace(model.geometry, draft_vocab_size=draft_vocab))


def _from_bundle(path: Path) -> PlannedModel:
    manifest = load_manifest(path)
    geometry = geometry_from_spec(manifest.model, name=manifest.source.name)
    return PlannedModel(
        kind="bundle",
        spec=manifest.model,
        geometry=geometry,
        attention=manifest.attention,
        weights=manifest.precision.weights,
        int4_block=manifest.precision.int4_block,
        kv=manifest.precision.kv,
        max_context=manifest.limits.context_length,
        prefill_rows=manifest.limits.prefill_rows,
    )


def _from_checkpoint(path: Path) -> PlannedModel:
    from selfdraft.export.checkpoint import Checkpoint
    from selfdraft.export.families import read_model
    from selfdraft.export.options import ExportOptions
    from selfdraft.export.source import source_name

    checkpoint, default = Checkpoint.open(path), ExportOptions()
    plan = read_model(checkpoint)
    groups = [linear.group for linear in checkpoint.packed.values()]
    return PlannedModel(
        kind="checkpoint",
        spec=plan.spec,
        geometry=geometry_from_spec(plan.spec, name=source_name(path)),
        attention=default.attention.plan(plan.spec, plan.sparse),
        weights=default.weights or ("int4" if groups else "fp32"),
        int4_block=max(groups, default=None),
        kv=default.kv,
        max_context=plan.max_context,
        prefill_rows=default.prefill_rows,
    )
