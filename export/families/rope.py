"""Rotary frequencies from config.json: default, linear, llama3 and LongRoPE scaling.

Every family is brought to one form: pairs (i, i + d/2) of the whole head. Pairs that a family does
not rotate get frequency 0, and ``head_order`` moves each dimension to its place in that form.
"""

from __future__ import annotations

import math

from selfdraft.errors import ConfigError
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.families.base import Family, HeadOrder, RotaryForm
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
    "longrope": frozenset(
        {
            "factor",
            "attention_factor",
            "short_factor",
            "long_factor",
            "original_max_position_embeddings",
        }
    ),
}
COMMON_KEYS = frozenset(
    {
        "type",
        "rope_type",
        "rope_theta",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
    }
)
"""``mrope_*`` share the pairs out among the axes of an image; in a text all axes are equal."""


def head_order(form: RotaryForm, *, head_dim: int, rotated: int) -> HeadOrder | None:
    """For each dimension of the one form, the checkpoint's dimension; None where they agree."""
    pairs, rest = rotated // 2, list(range(rotated, head_dim))
    if form == "interleaved":
        first, second = list(range(0, rotated, 2)), list(range(1, rotated, 2))
    else:
        first, second = list(range(pairs)), list(range(pairs, rotated))
    half = len(rest) // 2
    order = (*first, *rest[:half], *second, *rest[half:])
    return None if order == tuple(range(head_dim)) else order


def rotated_dims(config: ConfigKeys, family: Family, *, head_dim: int) -> int:
    """Dimensions of a head that are rotated. Raises ``ConfigError`` for an odd number."""
    factor = 1.0 if family.partial_rotary is None else family.partial_rotary
    for keys in (config, config.section("rope_parameters"), config.section("rope_scaling")):
        said = keys.number("partial_rotary_factor") if keys else None
        factor = factor if said is None else said
    if factor != 1 and family.partial_rotary is None:
        raise not_supported(
            f"partial_rotary_factor {factor:g}", hint="use a model that rotates the whole head"
        )
    rotated = int(head_dim * factor)
    if head_dim % 2 or rotated % 2 or not 0 < rotated <= head_dim:
        raise not_supported(
            f"head_dim {head_dim} with {rotated} rotated dimensions, not an even part of it,",
            hint="use another model",
        )
    return rotated


def read_rope(
    config: ConfigKeys,
    *,
    head_dim: int,
    rotated: int,
    default_theta: float,
    context: int | None = None,
) -> RopeSpec:
    """Frequencies of ``head_dim / 2`` pairs, scaling applied.

    Reads ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``, which holds both in newer
    configs. ``context``: tokens that the bundle will hold; LongRoPE has a set of factors for short
    and one for long contexts. Raises ``ConfigError`` for another scaling or an unknown key of one.
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
    inv_freq = [theta ** (-2 * i / rotated) for i in range(rotated // 2)]
    kind, scale = _kind(scaling), 1.0
    if scaling is not None and kind == "linear":
        factor = _required(scaling, "factor")
        inv_freq = [value / factor for value in inv_freq]
    elif scaling is not None and kind == "llama3":
        inv_freq = _llama3(inv_freq, scaling)
    elif scaling is not None and kind == "longrope":
        inv_freq, scale = _longrope(inv_freq, scaling, config, context)
    if scale != 1.0 and rotated != head_dim:
        raise not_supported(
            "an attention factor with a partly rotated head", hint="use another model"
        )
    still = (0.0,) * ((head_dim - rotated) // 2)
    return RopeSpec(inv_freq=(*inv_freq, *still), scale=scale)


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


def _longrope(
    inv_freq: list[float], scaling: ConfigKeys, config: ConfigKeys, context: int | None
) -> tuple[list[float], float]:
    """Each frequency divided by its factor, and the factor on cos and sin (arXiv 2402.13753).

    Published code switches to the long factors when a sequence outgrows the trained context, which
    changes cached keys with it; a bundle has one set, chosen by the context that it is made for.
    """
    trained = _required(scaling, "original_max_position_embeddings")
    most = config.positive("max_position_embeddings") or trained
    long_set = (most if context is None else context) > trained
    factors = _factors(scaling, "long_factor" if long_set else "short_factor", len(inv_freq))
    scale = scaling.number("attention_factor")
    if scale is None:
        ratio = most / trained
        scale = math.sqrt(1 + math.log(ratio) / math.log(trained)) if ratio > 1 else 1.0
    return [value / factor for value, factor in zip(inv_freq, factors, strict=True)], scale


def _factors(scaling: ConfigKeys, key: str, count: int) -> list[float]:
    found = scaling.values.get(key)
    values = found if isinstance(found, list) else []
    if len(values) != count or not all(type(f) in (int, float) and f > 0 for f in values):
        shown = f"{len(values)} values" if values else repr(found)
        raise ConfigError(
            f"{scaling.where}: {key} has {shown}, expected {count} numbers above 0",
            hint="restore the config.json that came with the checkpoint",
        )
    return [float(value) for value in values]
