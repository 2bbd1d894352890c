"""What an export is told about attention, and the plan by layer that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.export.attention_checks import check_budget, check_plan, check_spread
from selfdraft.manifest import (
    BLOCK_TOKENS,
    AttentionPlan,
    AttentionSpec,
    ModelSpec,
)
from selfdraft.strict import closest_hint
from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD, KvDtype
from selfdraft.trt_plugins.cached_attention.coverage import seen_tokens
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op

KINDS = ("checkpoint", "dense", "sparse")
SELECTORS = ("mean_std", "min_max", "infllm_v2", "window")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Dense attention, or the block-sparse one of docs/attention.md. Raises ``ConfigError``."""

    kind: Literal["checkpoint", "dense", "sparse"] = "checkpoint"
    """``checkpoint``: sparse as its config asks (MiniCPM4), else dense."""
    selector: Literal["mean_std", "min_max", "infllm_v2", "window"] = "mean_std"
    budget_tokens: int = 4096
    """Tokens a row sees, sinks and local window included."""
    spread: float | None = None
    """Weight of a block's spread against its centre; None: the selector's default."""
    budget_share: float = 0.0
    """The budget is at least this share of the row's context."""
    sinks: int = 1
    """Blocks of 64 at the start that every row sees."""
    local_blocks: int = 8
    """Blocks of 64 up to the row's own that it always sees."""
    first_layers: int = 0
    """Layers at the start with a budget of their own."""
    first_budget_tokens: int | None = None
    """Budget of those; None: they are dense."""
    mtp_window: int = 1024
    """Tokens that the MTP layer sees beside the sinks."""
    kv: KvDtype | None = None
    """Storage of the KV cache; None: as the target computes."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("attention", self.kind, KINDS),
            ("selector", self.selector, SELECTORS),
        ):
            if value not in known:
                raise ConfigError(
                    f"{name} {value!r} is unknown{closest_hint(value, known)}",
                    hint=f"known: {', '.join(known)}",
                )
        changed = [name for name in _SPARSE_ONLY if getattr(self, name) != _default(name)]
        if self.kind != "sparse" and changed:
            raise ConfigError(
                f"{changed[0]} {getattr(self, changed[0])!r} has no meaning with dense attention",
                hint="add --attention sparse, or leave it out",
            )
        if self.first_budget_tokens is not None and not self.first_layers:
            raise ConfigError(
                f"first_budget_tokens {self.first_budget_tokens} is given for no layer",
                hint="say how many layers it is for: --first-layers 2",
            )
        check_spread(self)
        if self.mtp_window < 1:
            raise ConfigError(
                f"mtp_window is {self.mtp_window}", hint="choose 1 or more, e.g. 1024"
            )
        if self.kind == "sparse":
            check_budget(self)

    def plan(self, spec: ModelSpec, trained: AttentionSpec | None = None) -> AttentionPlan | None:
        """Attention of every layer; None where all are dense. Raises ``ConfigError``.

        ``trained``: the sparse attention that the checkpoint's config asks for.
        """
        if self.kind == "checkpoint" and trained is not None:
            layers = (trained,) * spec.num_layers
            return self._checked(spec, layers)
        if self.kind != "sparse":
            return None
        if not 0 <= self.first_layers <= spec.num_layers:
            raise ConfigError(
                f"first_layers is {self.first_layers}, the model has {spec.num_layers} layers",
                hint=f"choose 0 to {spec.num_layers}",
            )
        rest = spec.num_layers - self.first_layers
        first = self._layer(self.first_budget_tokens) if self.first_budget_tokens else None
        layers = ((first or AttentionSpec()),) * self.first_layers
        layers += (self._layer(self.budget_tokens),) * rest
        plan = self._checked(spec, layers)
        check_plan(self, plan, spec)
        return plan

    def _checked(self, spec: ModelSpec, layers: tuple[AttentionSpec, ...]) -> AttentionPlan:
        # A gated delta net selects nothing.
        layers = tuple(
            AttentionSpec() if spec.is_delta(index) else layer for index, layer in enumerate(layers)
        )
        plan = AttentionPlan(layers=layers, mtp=self._mtp() if spec.mtp else None)
        layer_ops(spec, plan)  # refuses what no body implements
        if spec.mtp:
            mtp_op(spec, plan)
        return plan

    def _layer(self, budget_tokens: int) -> AttentionSpec:
        return AttentionSpec(
            selector=self.selector,
            sinks=self.sinks,
            local_blocks=self.local_blocks,
            budget_tokens=budget_tokens,
            budget_share=self.budget_share,
            spread=self._spread(),
        )

    def _spread(self) -> float:
        """The one given, else the selector's own; 1 where scores have none."""
        return DEFAULT_SPREAD.get(self.selector, 1.0) if self.spread is None else self.spread

    def _mtp(self) -> AttentionSpec:
        # A window that begins inside a block needs one block more.
        blocks = max(-(-self.mtp_window // BLOCK_TOKENS) + 1, 2)
        return AttentionSpec(
            selector="window",
            sinks=self.sinks,
            local_blocks=blocks,
            budget_tokens=0,
            sliding_window=self.mtp_window,
        )


def coverage_notes(
    spec: ModelSpec, plan: AttentionPlan | None, context_length: int
) -> tuple[str, ...]:
    """A note when the layers of a sparse plan see the whole context anyway."""
    if plan is None:
        return ()
    seen = min(seen_tokens(op, length=context_length) for op in layer_ops(spec, plan))
    if seen < context_length:
        return ()
    told = f"the budget covers the context of {context_length} tokens"
    return (f"sparse attention never leaves anything out: {told}",)


_SPARSE_ONLY = (
    "selector",
    "spread",
    "budget_tokens",
    "budget_share",
    "sinks",
    "local_blocks",
    "first_layers",
    "first_budget_tokens",
    "mtp_window",
)


def _default(name: str) -> object:
    return AttentionOptions.__dataclass_fields__[name].default
