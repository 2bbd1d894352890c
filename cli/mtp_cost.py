"""What the MTP head adds to the memory of a device, and how much that is of the backbone's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfdraft.cli.console import bytes_text

if TYPE_CHECKING:
    from selfdraft.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpCost:
    """Bytes that the head adds, by what they hold."""

    weights: int
    draft_head: int
    """Of its own; the LM head once more where an engine drafts from that."""
    states: int
    buffers: int
    """Inputs and outputs of its passes; 0 on the ``cpu`` target, where they are not planned."""
    backbone: int
    """Weights, LM head and states of the backbone; the embedding belongs to both."""
    lm_head_once: bool

    @property
    def total(self) -> int:
        """All that is added."""
        return self.weights + self.draft_head + self.states + self.buffers

    @property
    def share(self) -> float | None:
        """``total`` by ``backbone``; None where the weights were pruned."""
        return self.total / self.backbone if self.backbone else None

    @property
    def text(self) -> str:
        """One line for people."""
        parts = {
            "weights": self.weights,
            "draft head": self.draft_head,
            "states": self.states,
            "buffers": self.buffers,
        }
        shown = ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items() if size)
        of = "" if self.share is None else f", {self.share:.1%} of the backbone"
        again = "" if self.lm_head_once else "; the LM head is held twice (export: --draft-vocab)"
        return f"MTP adds {bytes_text(self.total)}{of} ({shown}){again}"


def mtp_cost(manifest: Manifest, parts: Mapping[str, int], *, context: int) -> MtpCost:
    """The cost for one sequence of ``context`` tokens; ``parts`` are stored bytes by part."""
    from selfdraft.runtime.trt.allocation import GraphAllocation, plan_allocation
    from selfdraft.runtime.trt.limits import engine_limits

    plan = plan_allocation(manifest, engine_limits(manifest.limits, context=context), drafts=1)
    nothing = GraphAllocation(states=0, buffers=0)
    own, target = plan.get("mtp", nothing), plan.get("backbone", nothing)
    on_board = manifest.target != "cpu"
    # Two engines cannot share a constant.
    twice = on_board and "draft_head" not in parts and "lm_head" in parts
    backbone = parts.get("backbone", 0)
    if backbone:
        backbone += parts.get("lm_head", 0) + target.states
    return MtpCost(
        weights=parts.get("mtp", 0),
        draft_head=parts["lm_head"] if twice else parts.get("draft_head", 0),
        states=own.states,
        buffers=own.buffers if on_board else 0,
        backbone=backbone,
        lm_head_once=not twice,
    )
