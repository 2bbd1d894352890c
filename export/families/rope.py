"""Rotary frequencies from config.json: default, linear and llama3 scaling."""

from __future__ import annotations

import math

from selfdraft.errors import ConfigError
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.manifest import RopeSpec

SCALING_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
    ),
}
COMMON_KEYS = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})


def read_rope(config: ConfigKeys, *, head_dim: int, default_theta: float) -> RopeSpec:
    """Frequencies of ``head_dim / 2`` pairs, scaling applied.

    Reads ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``, which holds both in newer
    configs. Raises ``ConfigError`` for another scaling or an unknown key of one.
    """
    newer, older = config.section("rope_parameters"), config.section("rope_scaling")
    if newer and older and _kind(newer) != _kind(older):
        raise ConfigError(
            f"config.json has rope_parameters of type {_kind(newer)!r} and rope_scaling of type "
            f"{_kind(older)!r}",
            hint="restore the config.json that came with the checkpoint",
        )
    scaling = newer or older
    theta = _theta(config, scaling, default_theta)
    if head_dim % 2:
        raise not_supported(
            f"head_dim {head_dim}, an odd size for rotary embedding,", hint="use another model"
        )
    _refuse_partial(config, scaling)
    inv_freq = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    kind = _kind(scaling)
    if scaling is not None and kind == "linear":
        factor = _required(scaling, "factor")
        inv_freq = [value / factor for value in inv_freq]
    elif scaling is not None and kind == "llama3":
        inv_freq = _llama3(inv_freq, scaling)
    return RopeSpec(inv_freq=tuple(inv_freq))


def _theta(config: ConfigKeys, scaling: ConfigKeys | None, default: float) -> float:
    outer = config.number("rope_theta")
    inner = scaling.number("rope_theta") if scaling else None
    if outer is not None and inner is not None and outer != inner:
        raise ConfigError(
            f"config.json says rope_theta = {outer:g}, its {scaling and scaling.where} {inner:g}",
            hint="restore the config.json that came with the checkpoint",
        )
    theta = outer if outer is not None else inner if inner is not None else default
    if theta <= 0:
        raise ConfigError(
            f"config.json says rope_theta = {theta:g}, expected more than 0",
            hint="restore the config.json that came with the checkpoint",
        )
    return theta


def _kind(scaling: ConfigKeys | None) -> str:
    if scaling is None:
        return "default"
    kind = scaling.text("rope_type") or scaling.text("type") or "default"
    if kind not in SCALING_KEYS:
        raise not_supported(
            f"rope scaling {kind!r}", hint=f"supported: {', '.join(sorted(SCALING_KEYS))}"
        )
    for key in scaling.values:
        if key not in SCALING_KEYS[kind] | COMMON_KEYS:
            raise not_supported(
                f"key {key!r} of {scaling.where} with rope scaling {kind!r}",
                hint="remove the key if it has no effect, else use another model",
            )
    return kind


def _refuse_partial(config: ConfigKeys, scaling: ConfigKeys | None) -> None:
    for keys in (config, scaling):
        factor = keys.number("partial_rotary_factor") if keys else None
        if factor is not None and factor != 1:
            raise not_supported(
                f"partial_rotary_factor {factor:g}",
                hint="use a model that rotates the whole head",
            )


def _required(scaling: ConfigKeys, key: str) -> float:
    value = scaling.number(key)
    if value is None or value <= 0:
        raise ConfigError(
            f"{scaling.where}: {key} is {value}, expected a number above 0",
            hint="restore the config.json that came with the checkpoint",
        )
    return value


def _llama3(inv_freq: list[float], scaling: ConfigKeys) -> list[float]:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between."""
    factor = _required(scaling, "factor")
    low = _required(scaling, "low_freq_factor")
    high = _required(scaling, "high_freq_factor")
    trained = _required(scaling, "original_max_position_embeddings")
    if high <= low:
        raise ConfigError(
            f"{scaling.where}: high_freq_factor {high:g} is not above low_freq_factor {low:g}",
            hint="restore the config.json that came with the checkpoint",
        )
    scaled = []
    for frequency in inv_freq:
        turns = trained * frequency / (2 * math.pi)  # full turns within the trained context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        scaled.append(frequency * (kept + (1 - kept) / factor))
    return scaled
