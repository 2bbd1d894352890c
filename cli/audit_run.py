"""Sparse against dense attention over one text, on the engine that will run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from selfdraft.cli.audit_recall import Recall, replay, state_error
from selfdraft.cli.audit_rows import audited_ops, audited_rows, blocks_of_row, leaves_out
from selfdraft.cli.text_passes import RowOutput, TextPasses
from selfdraft.errors import VerificationError
from selfdraft.runtime.divergence import divergence
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over many rows (and heads)."""

    mean: float
    p5: float
    least: float

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> Spread:
        """The spread of ``values`` of any shape."""
        return cls(
            mean=float(values.mean()),
            p5=float(np.percentile(values, 5)),
            least=float(values.min()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAudit:
    """One sparse layer over all audited rows."""

    layer: int
    selector: str
    recall: Spread
    """Part of the dense softmax that the selected blocks hold, over rows and query heads."""
    best_recall: float
    """Mean recall of the best choice of as many blocks: what a perfect selector would reach."""
    blocks_read: int
    blocks_in_use: int
    prefill_error: float
    """Relative difference of keys and values after a sparse and a dense prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAudit:
    """One audited row: KL(dense || sparse) of its next-token distribution, in nats."""

    position: int
    kl: float
    same_top: bool
    prefill_kl: float
    """The same when the prompt before it ran sparse too."""
    prefill_same_top: bool
    blocks_read: int
    """Summed over the sparse layers, as the engine counted."""
    blocks_in_use: int
    recall: float
    """Mean over sparse layers and heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Everything an audit found."""

    context: int
    """Tokens of the text that were run."""
    rows: tuple[RowAudit, ...]
    layers: tuple[LayerAudit, ...]
    rows_left_out: int
    """Rows for which some layer leaves blocks out; the others equal dense attention."""
    replay_error: float
    """Last hidden state of the recall pass against the engine's, relative to its largest."""

    @property
    def active(self) -> bool:
        """The engine read less than everything, as the selection asks: the sparse path ran."""
        return self.rows_left_out > 0

    @property
    def blocks_share(self) -> float:
        """Blocks read by blocks in use, over rows and layers."""
        in_use = sum(layer.blocks_in_use for layer in self.layers)
        return sum(layer.blocks_read for layer in self.layers) / in_use


def audit_text(
    session: Session, ids: Sequence[int], *, rows: int, on_progress: OnProgress
) -> AuditReport:
    """Audit the bundle of ``session`` over ``ids``, at about ``rows`` positions.

    Raises ``ConfigError`` for a bundle whose layers are all dense, ``VerificationError`` when the
    engine reads other blocks than the selection asks for.
    """
    ops = audited_ops(session.bundle.manifest)
    positions = audited_rows(list(ops.values()), length=len(ids), count=rows)
    walk = _Walk(session, ids, positions, on_progress)
    dense, sparse, written = walk.dense_prefill()
    _check_active(ops, positions, sparse)
    in_prefill, sparse_written = walk.sparse_prefill()
    on_progress("recall", 0, 1)
    recall = replay(session.bundle, written, ids, positions)
    on_progress("recall", 1, 1)
    errors = {
        layer: state_error(written, sparse_written, layer=layer, length=positions[-1] + 1)
        for layer in ops
    }
    return AuditReport(
        context=len(ids),
        rows=tuple(_row_audits(positions, dense, sparse, in_prefill, recall)),
        layers=tuple(_layer_audits(ops, positions, sparse, recall, errors)),
        rows_left_out=sum(any(leaves_out(op, p) for op in ops.values()) for p in positions),
        replay_error=_replay_error(recall, dense),
    )


class _Walk:
    """The engine over one text, stopping at the audited positions."""

    def __init__(
        self, session: Session, ids: Sequence[int], positions: Sequence[int], progress: OnProgress
    ) -> None:
        self._session, self._ids, self._positions = session, ids, positions
        self._progress = progress

    def dense_prefill(self) -> tuple[list[RowOutput], list[RowOutput], TextPasses]:
        """Each audited row behind a dense prefill, run dense and sparse; and the caches."""
        passes, dense, sparse = self._passes(), [], []
        for position in self._positions:
            self._fill(passes, position, "dense prefill", dense=True)
            sparse.append(passes.row(self._ids[position], dense=False))
            passes.cached = position
            dense.append(passes.row(self._ids[position], dense=True))
        return dense, sparse, passes

    def sparse_prefill(self) -> tuple[list[RowOutput], TextPasses]:
        """Each audited row with every row before it sparse; and the caches."""
        passes, rows = self._passes(), []
        for position in self._positions:
            self._fill(passes, position, "sparse prefill", dense=False)
            rows.append(passes.row(self._ids[position], dense=False))
        return rows, passes

    def _passes(self) -> TextPasses:
        options, limits = self._session.options, self._session.bundle.manifest.limits
        return TextPasses(
            self._session.backend,
            length=len(self._ids),
            chunk_rows=options.chunk or limits.prefill_rows,
        )

    def _fill(self, passes: TextPasses, end: int, stage: str, *, dense: bool) -> None:
        passes.fill(self._ids[passes.cached : end], dense=dense)
        self._progress(stage, end, len(self._ids) - 1)


def _check_active(
    ops: dict[int, CachedAttention], positions: Sequence[int], rows: Sequence[RowOutput]
) -> None:
    """The engine's counters against the number of blocks that each row must read."""
    for position, row in zip(positions, rows, strict=True):
        expected = {layer: blocks_of_row(op, position) for layer, op in ops.items()}
        if list(row.blocks_read) == list(expected.values()):
            continue
        pairs = zip(expected.items(), row.blocks_read, strict=False)
        where = next(((layer, want, got) for (layer, want), got in pairs if want != got), None)
        what = f"{len(row.blocks_read)} of {len(ops)} sparse layers were counted"
        if where:
            what = f"layer {where[0]} read {where[2]} blocks, its selection has {where[1]}"
        raise VerificationError(
            f"the sparse path did not run as asked: at position {position}, {what}",
            hint="export the bundle again; if it fails again, report this with --json",
        )


def _row_audits(
    positions: Sequence[int],
    dense: Sequence[RowOutput],
    sparse: Sequence[RowOutput],
    in_prefill: Sequence[RowOutput],
    recall: Recall,
) -> list[RowAudit]:
    by_row = np.stack(list(recall.selected.values())).mean(axis=(0, 2))  # [rows]
    audits = []
    for index, position in enumerate(positions):
        decode = divergence(dense[index].logits, sparse[index].logits)
        prefill = divergence(dense[index].logits, in_prefill[index].logits)
        audits.append(
            RowAudit(
                position=position,
                kl=decode.kl,
                same_top=decode.same_top,
                prefill_kl=prefill.kl,
                prefill_same_top=prefill.same_top,
                blocks_read=sum(sparse[index].blocks_read),
                blocks_in_use=sum(dense[index].blocks_read),
                recall=float(by_row[index]),
            )
        )
    return audits


def _layer_audits(
    ops: dict[int, CachedAttention],
    positions: Sequence[int],
    sparse: Sequence[RowOutput],
    recall: Recall,
    errors: dict[int, float],
) -> list[LayerAudit]:
    return [
        LayerAudit(
            layer=layer,
            selector=op.selector,
            recall=Spread.of(recall.selected[layer]),
            best_recall=float(recall.best[layer].mean()),
            blocks_read=sum(row.blocks_read[place] for row in sparse),
            blocks_in_use=sum(position // op.block + 1 for position in positions),
            prefill_error=errors[layer],
        )
        for place, (layer, op) in enumerate(ops.items())
    ]


def _replay_error(recall: Recall, dense: Sequence[RowOutput]) -> float:
    engine = np.stack([row.hidden for row in dense])
    return float(np.abs(recall.hidden - engine).max() / np.abs(engine).max())
