"""Whether a loop can do what it is asked: sparse prefill, and going on from a saved slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, get_args

from numpy.typing import NDArray

from selfdraft.errors import BundleError, ConfigError, ResourceError
from selfdraft.manifest import Manifest
from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS, STATE_LEN
from selfdraft.runtime.slot_cache import PrefillAttention, SlotCache
from selfdraft.strict import closest_hint

_ANEW = "save it anew with this bundle"


class Capabilities(Protocol):
    """What a loop must say about itself."""

    @property
    def context_length(self) -> int: ...

    @property
    def drafts(self) -> int: ...

    @property
    def prefill_attention(self) -> PrefillAttention: ...


def checked_prefill_attention(manifest: Manifest, wanted: str) -> PrefillAttention:
    """``wanted`` where the bundle can do it. Raises ``ConfigError``."""
    known = get_args(PrefillAttention)
    if wanted not in known:
        raise ConfigError(
            f"prefill {wanted!r} is unknown{closest_hint(wanted, known)}",
            hint=f"known: {', '.join(known)}",
        )
    if wanted == "dense":
        return "dense"
    if not has_sparse_layers(manifest):
        raise ConfigError(
            "prefill 'sparse' is asked for, but every layer of this bundle attends densely",
            hint="leave --prefill out, or export with: --attention sparse",
        )
    return "sparse"


def has_sparse_layers(manifest: Manifest) -> bool:
    """Whether any backbone layer chooses what it attends to."""
    plan = manifest.attention
    return plan is not None and any(layer.selector != "all" for layer in plan.layers)


def check_fits(cache: SlotCache, loop: Capabilities) -> None:
    """Refuse what the loop could go on from only with other results or with no room."""
    if len(cache.tokens) > loop.context_length:
        raise ResourceError(
            f"the saved cache has {len(cache.tokens)} tokens, the context holds "
            f"{loop.context_length}",
            hint=f"give --context {len(cache.tokens) + 1} or more, as far as the bundle goes",
        )
    if cache.prefill != loop.prefill_attention:
        raise ConfigError(
            f"the saved cache has a {cache.prefill} prefill, this run a {loop.prefill_attention} one",
            hint=f"give --prefill {cache.prefill}",
        )
    if loop.drafts and cache.cached and not cache.drafter_cached:
        raise ConfigError(
            "the saved cache has no rows of the MTP head, which drafting needs",
            hint="decode with --drafts 0, or save the cache in a run with drafts",
        )


def check_states(found: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> None:
    """Names, shapes and types of a saved cache. Raises ``BundleError`` that names the first one."""
    odd = sorted(found.keys() ^ wanted.keys())
    if odd:
        where = "lacks" if odd[0] in wanted else "holds an unknown state"
        raise BundleError(f"the saved cache {where}: {odd[0]}", hint=_ANEW)
    for name, array in wanted.items():
        given = found[name]
        # Floats may have another width: the reference holds fp32 caches as fp64.
        if given.shape != array.shape or given.dtype.kind != array.dtype.kind:
            raise BundleError(
                f"the saved cache has {name} {given.dtype} {list(given.shape)}, this bundle "
                f"{array.dtype} {list(array.shape)}",
                hint=_ANEW,
            )


def saved_state_len(cache: SlotCache) -> int:
    """Tokens inside the recurrent states of a saved cache; 0 where it has none, or no rows.

    Raises ``BundleError`` for states that its rows do not go on from.
    """
    found = cache.arrays.get(STATE_LEN)
    if found is None or not cache.cached:
        return 0
    length = int(found[0])
    if length % DELTA_BLOCK or not 0 <= length <= cache.cached <= length + LOG_ROWS:
        raise BundleError(
            f"the saved cache has {cache.cached} rows and recurrent states of {length} tokens",
            hint=_ANEW,
        )
    return length
