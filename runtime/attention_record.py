"""What the attention of a request read: counters for its record, from the engine's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from selfdraft.errors import BundleError, DeviceError
from selfdraft.manifest import BLOCK_TOKENS, Manifest
from selfdraft.runtime.backend import BackboneOutput, Step

BLOCKS_READ = "blocks_read"
"""Output of a backbone graph with sparse layers: one counter for each of them."""
AttentionMode = Literal["dense", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRecord:
    """Blocks of KV that the decode steps of one request read, as the engine counted them.

    Of steps that several slots share, the counts are those of the slot that read most.
    """

    mode: AttentionMode
    """``sparse``: selectors were at work in at least one layer; else every layer is dense."""
    steps: int
    rows: int
    """Query rows of this request, drafts included."""
    blocks_read: int
    """Summed over steps and sparse layers; 0 where all layers are dense."""
    blocks_in_use: int
    """What dense attention would have read in those layers."""

    @property
    def share(self) -> float | None:
        """``blocks_read`` by ``blocks_in_use``; None where nothing was counted."""
        return self.blocks_read / self.blocks_in_use if self.blocks_in_use else None


class StepBlocks(NamedTuple):
    """One decode step, summed over the sparse layers."""

    read: int
    in_use: int


NO_BLOCKS = StepBlocks(0, 0)
"""Every step of a bundle whose layers are all dense."""


def sparse_layers(manifest: Manifest) -> tuple[int, ...]:
    """Backbone layers whose attention selects blocks."""
    plan = manifest.attention
    if plan is None:
        return ()
    return tuple(i for i, layer in enumerate(plan.layers) if layer.selector != "all")


def check_attention(manifest: Manifest) -> None:
    """Refuse a bundle whose graph does not do what its manifest says of attention.

    Raises ``BundleError``. For engines that run the graphs on a CPU.
    """
    mend = "export the bundle again with: selfdraft export CHECKPOINT -o BUNDLE"
    if manifest.target != "cpu":
        raise BundleError(
            f"the bundle is for {manifest.target}, whose kernels no CPU engine has",
            hint="use --backend tensorrt on the board, or export with --target cpu",
        )
    if manifest.precision.kv == "fp16":
        raise BundleError("the KV cache is fp16, which no CPU engine runs", hint=mend)
    if "backbone" not in manifest.graphs:
        raise BundleError("the manifest has no graph 'backbone'", hint=mend)
    outputs = {output.name: output for output in manifest.graphs["backbone"].outputs}
    counted = outputs[BLOCKS_READ].shape[0] if BLOCKS_READ in outputs else 0
    wanted = len(sparse_layers(manifest))
    if counted != wanted:
        raise BundleError(
            f"the backbone graph is sparse in {counted} layers, the manifest plans {wanted}",
            hint=mend,
        )


class BlockCounter:
    """Reads the counters of a backend's steps."""

    def __init__(self, manifest: Manifest, *, backend: str) -> None:
        self._backend = backend
        self._layers = len(sparse_layers(manifest))

    @property
    def mode(self) -> AttentionMode:
        """The mode of every step."""
        return "sparse" if self._layers else "dense"

    def count(self, step: Step, output: BackboneOutput) -> StepBlocks:
        """What ``step`` read.

        Raises ``DeviceError`` when the engine does not tell for each sparse layer of the bundle:
        nothing would show then whether it ran dense.
        """
        if output.blocks_read is None and not self._layers:
            return NO_BLOCKS
        found = [] if output.blocks_read is None else output.blocks_read.tolist()
        if len(found) != self._layers:
            raise DeviceError(
                f"backend {self._backend} counted the blocks of {len(found)} layers, the bundle "
                f"has {self._layers} with sparse attention",
                hint="export the bundle again with this selfdraft, or use --backend reference",
            )
        if not found:
            return NO_BLOCKS
        longest = max((step.past_len + step.row_count).tolist())
        return StepBlocks(sum(found), self._layers * -(-longest // BLOCK_TOKENS))
