"""What a calibration text decides and proves: the tap, the scaling, and what quantising cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from selfdraft.export.chain_scores import chain_acceptance
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families.base import ModelPlan
from selfdraft.export.text_scores import Passed, Text, acceptance, pass_backbone, score
from selfdraft.export.tuning_search import ActivationSums, search_tuning
from selfdraft.export.weight_plan import WeightsPlan
from selfdraft.export.weight_reader import CheckpointReader, StoredReader, StoredTable
from selfdraft.export.weight_tuning import NO_TUNING, Tuning
from selfdraft.manifest import ModelSpec, Tap
from selfdraft.measured import Measured, Scores

OnProgress = Callable[[str, int, int], None]
TAPS: tuple[Tap, ...] = ("pre_norm", "post_norm")
LEAST_CHAINS = 64
"""Drafts behind a right first one below which their acceptance decides nothing."""
MOST_LOSS = 0.02
"""Acceptance that quantising may cost before the export speaks up."""
MOST_RATIO = 1.03
"""Perplexity after, by perplexity before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Outcome of a calibration."""

    weights: WeightsPlan
    """The plan with the better tap and the better recycled state."""
    tuning: Tuning
    text: Text
    tap_acceptance: dict[str, float]
    recycle_acceptance: dict[str, float]
    before: Scores
    notes: tuple[str, ...]
    activation_aware: bool


def calibrate(
    checkpoint: Checkpoint,
    model: ModelPlan,
    weights: WeightsPlan,
    text: Text,
    *,
    activation_aware: bool,
    on_progress: OnProgress,
) -> Calibrated:
    """Run the checkpoint's own weights over ``text``, choose the tap and find the scaling."""
    reader = CheckpointReader(checkpoint, model, weights)
    sums = ActivationSums() if activation_aware else None
    passed = pass_backbone(
        weights.spec,
        reader,
        reader,
        text,
        on_input=sums,
        on_layer=lambda done, total: on_progress("calibration", done, total),
    )
    tried: dict[str, float] = {}
    recycled: dict[str, float] = {}
    accepted, notes = None, []
    if weights.spec.mtp is not None:
        tried = {
            tap: acceptance(weights.spec, reader, reader, text, passed, tap=tap) for tap in TAPS
        }
        weights, note = _with_best_tap(weights, tried)
        notes = [note] if note else []
        assert weights.spec.mtp is not None
        accepted = tried[weights.spec.mtp.tap]
        recycled = _recycled(weights.spec, reader, text, passed)
        weights, note = _with_best_recycle(weights, recycled)
        notes += [note] if note else []
        assert weights.spec.mtp is not None
        if sums is not None:
            tap = weights.spec.mtp.tap
            acceptance(weights.spec, reader, reader, text, passed, tap=tap, on_input=sums)
    return Calibrated(
        weights=weights,
        tuning=NO_TUNING if sums is None else search_tuning(weights, reader, sums),
        text=text,
        tap_acceptance=tried,
        recycle_acceptance=recycled,
        before=Scores(perplexity=passed.perplexity, acceptance=accepted),
        notes=tuple(notes),
        activation_aware=activation_aware,
    )


def measure(
    calibrated: Calibrated,
    checkpoint: Checkpoint,
    model: ModelPlan,
    *,
    weights_file: Path,
    embedding_file: Path,
    quantised: bool,
) -> tuple[Measured, tuple[str, ...]]:
    """Scores of the stored weights beside those of the checkpoint, and what to say of them.

    Nothing is run again unless the export ``quantised`` something.
    """
    plan, text = calibrated.weights, calibrated.text
    fallback = CheckpointReader(checkpoint, model, plan)
    after = None
    if quantised:
        table = StoredTable(embedding_file)
        after = score(plan.spec, StoredReader(weights_file, fallback), table, text)
    measured = Measured(
        text=text.name,
        text_sha256=text.sha256,
        tokens=text.tokens,
        tap_acceptance=calibrated.tap_acceptance,
        recycle_acceptance=calibrated.recycle_acceptance,
        before=calibrated.before,
        after=after,
        activation_aware=calibrated.activation_aware,
    )
    return measured, cost_notes(measured)


def cost_notes(measured: Measured) -> tuple[str, ...]:
    """A note where quantising cost more than it may."""
    before, after = measured.before, measured.after
    if after is None:
        return ()
    notes = []
    ratio = after.perplexity / before.perplexity
    if not ratio <= MOST_RATIO:
        notes.append(
            f"quantising raised the perplexity on {measured.text} from {before.perplexity:.3f} to "
            f"{after.perplexity:.3f}: try a smaller --int4-block, --activation-aware or --lm-head int8"
        )
    if before.acceptance is not None and after.acceptance is not None:
        loss = before.acceptance - after.acceptance
        if loss > MOST_LOSS:
            notes.append(
                f"quantising lowered the acceptance on {measured.text} from "
                f"{before.acceptance:.1%} to {after.acceptance:.1%}: keep the head wider with "
                "--mtp-weights int8 --lm-head int8"
            )
    return tuple(notes)


def _with_best_tap(weights: WeightsPlan, tried: dict[str, float]) -> tuple[WeightsPlan, str | None]:
    """The plan with the tap that was accepted more; the family's own where they are equal."""
    mtp = weights.spec.mtp
    assert mtp is not None
    best = max(TAPS, key=lambda tap: (tried[tap], tap == mtp.tap))
    shown = ", ".join(f"{tap} {tried[tap]:.1%}" for tap in TAPS)
    if best == mtp.tap:
        return weights, None
    spec = replace(weights.spec, mtp=replace(mtp, tap=best))
    note = f"the MTP head reads the {best} hidden state, not {mtp.tap}: acceptance {shown}"
    return replace(weights, spec=spec), note


def _recycled(
    spec: ModelSpec, reader: CheckpointReader, text: Text, passed: Passed
) -> dict[str, float]:
    """Acceptance of drafts behind the first by recycled state; empty without enough right chains."""
    found = {
        recycle: chain_acceptance(spec, reader, reader, text, passed, recycle=recycle)
        for recycle in TAPS
    }
    if min(counts.tried for counts in found.values()) < LEAST_CHAINS:
        return {}
    return {recycle: counts.share for recycle, counts in found.items()}


def _with_best_recycle(
    weights: WeightsPlan, tried: dict[str, float]
) -> tuple[WeightsPlan, str | None]:
    """The plan that recycles what was accepted more; the family's own where they are equal."""
    mtp = weights.spec.mtp
    assert mtp is not None
    if not tried:
        return weights, None
    best = max(TAPS, key=lambda recycle: (tried[recycle], recycle == mtp.recycle))
    if best == mtp.recycle:
        return weights, None
    shown = ", ".join(f"{recycle} {tried[recycle]:.1%}" for recycle in TAPS)
    note = (
        f"drafts behind the first are fed the head's {best} state, not {mtp.recycle}: acceptance "
        f"{shown}"
    )
    spec = replace(weights.spec, mtp=replace(mtp, recycle=best))
    return replace(weights, spec=spec), note
