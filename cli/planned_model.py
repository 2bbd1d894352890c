"""The model that a plan or an advice is about: from a bundle's manifest, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from selfdraft.errors import ConfigError
from selfdraft.jetson.planner.geometry import Geometry, geometry_from_spec
from selfdraft.jetson.planner.storage import Storage, StoredWeights, stored_as, weight_bytes
from selfdraft.manifest import AttentionPlan, ModelSpec, TargetName, load_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """What is known before anything runs."""

    kind: Literal["bundle", "checkpoint"]
    spec: ModelSpec
    geometry: Geometry
    attention: AttentionPlan | None
    weights: Literal["fp32", "fp16", "bf16", "int4"]
    """As exported; a checkpoint's as the exporter would by default."""
    weight_bytes: dict[str, int]
    """Stored bytes by part: those of the bundle's files, or what the exporter would write."""
    kv: Literal["fp32", "fp16", "int8"]
    max_context: int
    prefill_rows: int
    target: TargetName = "cpu"
    """What it was exported for; a checkpoint is planned for the CPU."""
    storage: Storage | None = None
    """How a bundle is stored."""

    @property
    def device_weights(self) -> Literal["fp16", "int4"]:
        """What that becomes on a board, where nobody says otherwise."""
        return "int4" if self.weights == "int4" or self.kind == "checkpoint" else "fp16"

    @property
    def device_head(self) -> Literal["fp16", "int4"]:
        """The LM head on a board, where nobody says otherwise."""
        own = self.stored
        return "int4" if own is not None and own.storage.head == "int4" else "fp16"

    @property
    def stored(self) -> StoredWeights | None:
        """What a bundle for boards holds: it runs there as it is."""
        if self.target == "cpu" or self.storage is None:
            return None
        return StoredWeights(storage=self.storage, part_bytes=self.weight_bytes)

    @property
    def device_kv(self) -> Literal["fp16", "int8"]:
        """The KV cache on a board, where nobody says otherwise."""
        return "int8" if self.kv == "int8" else "fp16"


def planned_model(path: Path, *, draft_vocab: int | None = None) -> PlannedModel:
    """Read a bundle, a checkpoint, or a checkpoint of the hub (``ORG/NAME[@REVISION]``).

    Raises ``BundleError`` or ``ConfigError``; as ``local_checkpoint`` does for a name of the hub.
    """
    from selfdraft.export.hub import local_checkpoint

    path = local_checkpoint(path)
    if not path.is_dir():
        raise ConfigError(
            f"{path} is {'a file' if path.exists() else 'not there'}",
            hint="give the folder of a bundle or a checkpoint, or a hub name: ORG/NAME",
        )
    is_checkpoint = (path / "config.json").is_file() and not (path / "manifest.json").exists()
    if is_checkpoint:
        return _from_checkpoint(path, draft_vocab)
    model = _from_bundle(path)
    return model if draft_vocab is None else _with_draft_vocab(model, draft_vocab)


def _with_draft_vocab(model: PlannedModel, draft_vocab: int) -> PlannedModel:
    """The model of a bundle, drafting from fewer tokens than it does."""
    geometry = _trimmed(model.geometry, draft_vocab)
    assert model.storage is not None
    draft_head = weight_bytes(geometry, model.storage)["draft_head"]
    return replace(
        model, geometry=geometry, weight_bytes={**model.weight_bytes, "draft_head": draft_head}
    )


def _trimmed(geometry: Geometry, draft_vocab: int) -> Geometry:
    if not geometry.mtp:
        raise ConfigError(
            f"--draft-vocab {draft_vocab}: this model has no MTP head", hint="leave it out"
        )
    if draft_vocab >= geometry.vocab_size:
        raise ConfigError(
            f"--draft-vocab {draft_vocab} is not below the vocabulary, {geometry.vocab_size}",
            hint="choose fewer, e.g. --draft-vocab 32768",
        )
    return replace(geometry, draft_vocab_size=draft_vocab)


def _from_bundle(path: Path) -> PlannedModel:
    from selfdraft.cli.weight_sizes import bytes_by_part

    manifest = load_manifest(path)
    geometry = geometry_from_spec(manifest.model, name=manifest.source.name)
    return PlannedModel(
        kind="bundle",
        spec=manifest.model,
        geometry=geometry,
        attention=manifest.attention,
        weights=manifest.precision.weights,
        weight_bytes=bytes_by_part(path, manifest),
        kv=manifest.precision.kv,
        max_context=manifest.limits.context_length,
        prefill_rows=manifest.limits.prefill_rows,
        target=manifest.target,
        storage=stored_as(manifest.precision, target=manifest.target),
    )


def _from_checkpoint(path: Path, draft_vocab: int | None) -> PlannedModel:
    from selfdraft.export.checkpoint import Checkpoint
    from selfdraft.export.families import read_model
    from selfdraft.export.options import ExportOptions
    from selfdraft.export.source import source_name
    from selfdraft.export.weight_plan import bytes_by_part, plan_embedding, plan_weights

    checkpoint, default = Checkpoint.open(path), ExportOptions()
    plan = read_model(checkpoint)
    geometry = geometry_from_spec(plan.spec, name=source_name(path))
    if draft_vocab is not None:
        geometry = _trimmed(geometry, draft_vocab)
    weights = plan_weights(
        plan,
        types=default.types,
        draft_ids=None if draft_vocab is None else np.arange(draft_vocab),
        packed=checkpoint.packed,
    )
    return PlannedModel(
        kind="checkpoint",
        spec=plan.spec,
        geometry=geometry,
        attention=default.attention.plan(plan.spec, plan.sparse),
        weights=weights.backbone_type,
        weight_bytes=bytes_by_part([plan_embedding(plan), weights]),
        kv=default.kv,
        max_context=plan.max_context,
        prefill_rows=default.prefill_rows,
    )
