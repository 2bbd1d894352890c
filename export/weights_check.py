"""Stored weights against the checkpoint they came from, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors import safe_open

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.options import types_of
from selfdraft.export.targets import TARGETS
from selfdraft.export.weight_plan import HALF_TYPES, WeightTypes, plan_embedding, plan_weights
from selfdraft.export.weights import write_weights
from selfdraft.manifest import Manifest, ModelSpec, load_manifest


def compare_weights(bundle: Path, checkpoint_path: Path) -> tuple[list[str], int]:
    """Tensors of ``bundle`` that differ from a fresh export of the checkpoint, and how many ran.

    The checkpoint's weights are laid out again as the manifest says and compared bit for bit.
    Raises ``ConfigError`` when the checkpoint is another model.
    """
    manifest = load_manifest(bundle)
    if manifest.measured is not None and manifest.measured.activation_aware:
        raise ConfigError(
            f"{bundle} has weights scaled by the activations of {manifest.measured.text}, which its "
            "checkpoint alone does not give",
            hint="compare a bundle that was exported without --activation-aware",
        )
    checkpoint = Checkpoint.open(checkpoint_path)
    model = read_model(checkpoint, context=manifest.limits.context_length)
    draft_ids = None
    stored = bundle / manifest.weights_file
    if manifest.model.mtp is not None and manifest.model.mtp.draft_vocab_size is not None:
        with safe_open(str(stored), "numpy") as file:
            draft_ids = file.get_tensor("mtp.draft_ids")
    weights = plan_weights(
        model,
        types=_types(manifest),
        draft_ids=draft_ids,
        packed={} if manifest.precision.weights in ("fp32", *HALF_TYPES) else checkpoint.packed,
    )
    if _without_tap(weights.spec) != _without_tap(manifest.model):
        raise ConfigError(
            f"{checkpoint_path} is not the model of {bundle}: its geometry or wiring differs",
            hint="give the checkpoint that the bundle was exported from",
        )
    differing, compared = [], 0
    with TemporaryDirectory() as folder:
        for plan, place in (
            (weights, stored),
            (
                plan_embedding(model, form=manifest.precision.embedding),
                bundle / manifest.embedding_file,
            ),
        ):
            fresh = Path(folder) / place.name
            write_weights(checkpoint, plan, fresh)
            differing += _differing(fresh, place, sorted(plan.tensors))
            compared += len(plan.tensors)
    return differing, compared


def _types(manifest: Manifest) -> WeightTypes:
    precision = manifest.precision
    return types_of(
        TARGETS[manifest.target],
        weights=precision.weights,
        lm_head=precision.lm_head,
        mtp=precision.mtp,
        embedding=precision.embedding,
        int4_block=precision.int4_block,
    )


def _without_tap(spec: ModelSpec) -> ModelSpec:
    """The model apart from what a calibration may choose; it changes no weight."""
    if spec.mtp is None:
        return spec
    mtp = replace(spec.mtp, tap="post_norm", recycle="post_norm")
    return replace(spec, mtp=mtp)


def _differing(fresh: Path, stored: Path, names: list[str]) -> list[str]:
    with safe_open(str(fresh), "numpy") as one, safe_open(str(stored), "numpy") as other:
        return [
            name
            for name in names
            if not np.array_equal(one.get_tensor(name), other.get_tensor(name))
        ]
