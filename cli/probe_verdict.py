"""From effects to causes: what explains a drop in acceptance, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from selfdraft.cli.probe_shares import Difference

Cause = Literal[
    "wiring",
    "kv_precision",
    "sparse_attention",
    "quantization",
    "head_damage",
    "fine_tuning",
    "context",
    "distribution_shift",
]
LEAST_EFFECT = 0.03
"""Acceptance that a change must cost before it is named."""
LEAST_SHIFT = 0.06
"""The same between two texts: healthy ones differ too."""
LEAST_SURE = 0.01
"""What the lower end of the interval must exceed."""

CAUSE_TEXT: dict[Cause, str] = {
    "wiring": "the MTP head is wired otherwise than it was trained",
    "kv_precision": "the KV cache is stored too coarsely",
    "sparse_attention": "sparse attention leaves out what drafting needs",
    "quantization": "weights are quantised too far",
    "head_damage": "the MTP head's weights are not those that were trained",
    "fine_tuning": "the backbone changed under the MTP head, as fine-tuning does",
    "context": "drafts get worse at positions beyond what the head was trained for",
    "distribution_shift": "the text is of another kind than the head was trained on",
}
ADVICE: dict[Cause, str] = {
    "wiring": "export again with --calibrate TEXT, which chooses the tap by measurement; if the best "
    "wiring above is none that an export offers, the checkpoint's config does not fit its weights",
    "kv_precision": "export again with --kv fp32, or check the scales if the cache was meant to be int8",
    "sparse_attention": "export with a larger --budget, more --local-blocks, or a larger --mtp-window",
    "quantization": "export with the head wider: --mtp-weights int8 --lm-head int8, or a smaller "
    "--int4-block",
    "head_damage": "export again from the original checkpoint (selfdraft verify --checkpoint compares "
    "every tensor); if the checkpoint itself is damaged, train its head: selfdraft align CHECKPOINT "
    "--text FILE -o CHECKPOINT2",
    "fine_tuning": "train the head for the new backbone: selfdraft align CHECKPOINT --text FILE "
    "-o CHECKPOINT2, with replies of the fine-tuned model as text",
    "context": "keep --context within the trained length, or let drafting stop at long positions "
    "(--drafts auto)",
    "distribution_shift": "nothing is broken: train the head on text of this kind (selfdraft align), or "
    "accept fewer drafts here (--drafts auto)",
}
HEALTHY = "nothing explains a drop: no change that was tried gains enough to be named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one controlled change gains, on one text."""

    cause: Cause
    text: str
    """Name of the text, or of the two that are compared."""
    compared: str
    """The two measurements, better one first."""
    gain: Difference

    @property
    def named(self) -> bool:
        """Whether it is large and sure enough to be told as a cause."""
        least = LEAST_SHIFT if self.cause == "distribution_shift" else LEAST_EFFECT
        return self.gain.value >= least and self.gain.low > LEAST_SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Causes by the acceptance that they cost, the first one the heaviest."""

    causes: tuple[Effect, ...]
    summary: str
    advice: tuple[str, ...]


def judge(effects: Sequence[Effect]) -> Verdict:
    """The heaviest named effect of each cause."""
    heaviest: dict[Cause, Effect] = {}
    for effect in effects:
        known = heaviest.get(effect.cause)
        if effect.named and (known is None or effect.gain.value > known.gain.value):
            heaviest[effect.cause] = effect
    causes = tuple(sorted(heaviest.values(), key=lambda effect: -effect.gain.value))
    if not causes:
        return Verdict(causes=(), summary=HEALTHY, advice=())
    first = causes[0]
    summary = f"{CAUSE_TEXT[first.cause]}: {first.gain.value * 100:.1f} points ({first.compared})"
    return Verdict(
        causes=causes, summary=summary, advice=tuple(ADVICE[effect.cause] for effect in causes)
    )
