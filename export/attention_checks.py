"""Refusals of attention options that would do something else than they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfdraft.errors import ConfigError
from selfdraft.manifest import BLOCK_TOKENS, AttentionPlan, ModelSpec
from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD

if TYPE_CHECKING:
    from selfdraft.export.attention_options import AttentionOptions


def check_budget(options: AttentionOptions) -> None:
    """Refuse a budget that the selector cannot spend."""
    if options.selector == "window":
        given = [name for name in ("budget_tokens", "budget_share") if _changed(options, name)]
        if given:
            raise ConfigError(
                f"{given[0]} {getattr(options, given[0])} has no meaning with selector 'window', "
                "which sees sinks and local blocks alone",
                hint="set the window by --local-blocks, or choose selector mean_std",
            )
        return
    always = (options.sinks + options.local_blocks) * BLOCK_TOKENS
    for name in ("budget_tokens", "first_budget_tokens"):
        budget = getattr(options, name)
        if budget is not None and budget <= always and not options.budget_share:
            raise ConfigError(
                f"{name} {budget} leaves selector {options.selector!r} nothing to choose: "
                f"{options.sinks} sink and {options.local_blocks} local blocks have "
                f"{always} tokens",
                hint=f"give {always + BLOCK_TOKENS} or more, fewer --local-blocks, "
                "or --selector window",
            )


def check_spread(options: AttentionOptions) -> None:
    """Refuse a spread for a selector whose scores have none."""
    if options.spread is not None and options.selector not in DEFAULT_SPREAD:
        raise ConfigError(
            f"spread {options.spread} has no meaning with selector {options.selector!r}",
            hint=f"leave it out, or choose selector {' or '.join(DEFAULT_SPREAD)}",
        )


def check_plan(options: AttentionOptions, plan: AttentionPlan, spec: ModelSpec) -> None:
    """Refuse a plan that is sparse in name only, and options for a head that is not there."""
    if all(layer.selector == "all" for layer in plan.layers):
        raise ConfigError(
            f"first_layers {options.first_layers} without a budget makes all {spec.num_layers} "
            "layers dense",
            hint="give fewer --first-layers, a --first-budget, or --attention dense",
        )
    if spec.mtp is None and _changed(options, "mtp_window"):
        raise ConfigError(
            f"mtp_window {options.mtp_window} is given, but the checkpoint has no MTP head",
            hint="leave it out",
        )


def _changed(options: AttentionOptions, name: str) -> bool:
    return bool(getattr(options, name) != type(options).__dataclass_fields__[name].default)
