"""What an engine is built for, and the shapes of its optimization profiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.manifest import (
    BLOCK_TOKENS,
    MAX_STEP_ROWS,
    Dim,
    GraphSpec,
    Limits,
    Manifest,
    capacity_for,
)
from selfdraft.runtime.loop_options import MAX_DRAFTS

ProfileName = Literal["decode", "prefill"]
PROFILES: tuple[ProfileName, ...] = ("decode", "prefill")
"""Index of a profile in an engine is its place here."""
DECODE_ROWS = MAX_DRAFTS + 1
PROMPT_ROWS = MAX_STEP_ROWS + 1
"""Fewest rows of a pass over a prompt. From here on the attention plugin runs its prefill kernel, below
it that of decode steps: padded, a prompt's last rows are computed like its first ones."""
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Largest shapes that an engine runs."""

    batch: int
    context: int
    """Tokens of prompt and reply of each slot."""
    decode_rows: int = DECODE_ROWS
    prefill_rows: int

    @property
    def capacity(self) -> int:
        """Cache slots of each sequence."""
        return capacity_for(self.context)

    def applied_to(self, manifest: Manifest) -> Manifest:
        """``manifest`` with what the engine holds of a context and takes of a prompt at a time."""
        limits = dataclasses.replace(
            manifest.limits,
            context_length=self.context,
            prefill_rows=min(self.prefill_rows, manifest.limits.prefill_rows),
        )
        return dataclasses.replace(manifest, limits=limits)

    def profile_of(self, rows: int) -> ProfileName:
        """The profile for a pass over ``rows`` rows."""
        return "decode" if rows <= self.decode_rows else "prefill"

    def largest(self, profile: ProfileName) -> Sizes:
        """The largest size of every symbol."""
        return {
            "batch": self.batch,
            "rows": self.decode_rows if profile == "decode" else self.prefill_rows,
            "logit_rows": self.decode_rows,
            "capacity": self.capacity,
            "blocks": self.capacity // BLOCK_TOKENS,
        }

    def usual(self, profile: ProfileName) -> Sizes:
        """What the builder chooses its kernels for: one sequence, two rows or a whole chunk."""
        usual = {"batch": 1, "logit_rows": 2, "rows": 2}
        if profile == "prefill":
            usual |= {"logit_rows": 1, "rows": self.prefill_rows}
        return self.largest(profile) | usual


SMALLEST: Sizes = {
    "batch": 1,
    "rows": 1,
    "logit_rows": 1,
    "capacity": BLOCK_TOKENS,
    "blocks": 1,
}


def engine_limits(
    limits: Limits, *, batch: int = 1, context: int | None = None, prefill_rows: int | None = None
) -> EngineLimits:
    """The limits asked for, ``None`` taking the bundle's. Raises ``ConfigError``."""
    context = limits.context_length if context is None else context
    rows = limits.prefill_rows if prefill_rows is None else prefill_rows
    if not 2 <= context <= limits.context_length:
        raise ConfigError(
            f"context is {context}, the bundle holds {limits.context_length} tokens",
            hint=f"choose 2 to {limits.context_length}, or export with a larger --context",
        )
    for name, value in (("batch", batch), ("prefill_rows", rows)):
        if value < 1:
            raise ConfigError(f"{name} is {value}", hint="choose 1 or more")
    return EngineLimits(batch=batch, context=context, prefill_rows=max(rows, PROMPT_ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """Smallest, usual and largest shape of one input in a profile."""

    name: str
    smallest: tuple[int, ...]
    usual: tuple[int, ...]
    largest: tuple[int, ...]


def shape_ranges(
    graph: GraphSpec, limits: EngineLimits, profile: ProfileName
) -> Iterator[ShapeRange]:
    """The range of every input, states among them, that has a symbol in its shape."""
    shapes = [(tensor.name, tensor.shape) for tensor in graph.inputs]
    shapes += [(state.input, state.shape) for state in graph.states]
    for name, shape in shapes:
        if any(isinstance(dim, str) for dim in shape):
            yield ShapeRange(
                name=name,
                smallest=resolve(shape, SMALLEST),
                usual=resolve(shape, limits.usual(profile)),
                largest=resolve(shape, limits.largest(profile)),
            )


def resolve(shape: tuple[Dim, ...], sizes: Sizes) -> tuple[int, ...]:
    """``shape`` with its symbols replaced."""
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)
