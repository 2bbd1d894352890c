"""Controlled re-measurements that torch does: other wirings, fp32 caches, the checkpoint's head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from selfdraft.cli.probe_engine import Rows
from selfdraft.export.bundle_reader import BundleReader, HeadFrom, ShiftedNorms, checkpoint_reader
from selfdraft.export.int4 import dequantize, pack, quantize
from selfdraft.export.storage_check import coarse_matrices, distance, head_matrices
from selfdraft.export.text_scores import Passed, Text, first_drafts, pass_backbone
from selfdraft.export.weight_plan import LM_HEAD
from selfdraft.export.weight_reader import CheckpointReader, WeightReader
from selfdraft.manifest import Concat, Manifest, MatrixType, ModelSpec, Tap

TAPS: tuple[Tap, ...] = ("pre_norm", "post_norm")
CONCATS: tuple[Concat, ...] = ("hidden_first", "embedding_first")
Change = Literal["same", "rounded", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """One way to connect the head."""

    tap: Tap
    concat: Concat
    norms: Literal["as stored", "plus one"]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.tap}, {self.concat}, norms {self.norms}"


class WeightProbe:
    """Text passes with the weights of one bundle and, where given, of its checkpoint."""

    def __init__(self, bundle: Path, manifest: Manifest, checkpoint: Path | None) -> None:
        assert manifest.model.mtp is not None
        self._manifest, self.spec = manifest, manifest.model
        self._stored = BundleReader(bundle, manifest)
        self._source: CheckpointReader | None = None
        if checkpoint is not None:
            self._source = checkpoint_reader(checkpoint, manifest, self._stored)
        mtp = manifest.model.mtp
        self.wired = Wiring(tap=mtp.tap, concat=mtp.concat, norms="as stored")

    @property
    def has_source(self) -> bool:
        """Whether a checkpoint was given."""
        return self._source is not None

    def stored_pass(self, ids: NDArray[np.int64]) -> tuple[Text, Passed]:
        """The backbone as stored, with fp32 arithmetic, an fp32 cache and dense attention."""
        text = Text(name="", sha256="", ids=ids)
        return text, pass_backbone(self.spec, self._stored, self._stored, text)

    def wirings(self, text: Text, passed: Passed) -> Iterator[tuple[Wiring, Rows]]:
        """Every wiring with the stored head, that of the manifest first."""
        others = [
            Wiring(tap=tap, concat=concat, norms="as stored") for tap in TAPS for concat in CONCATS
        ]
        shifted = [replace(self.wired, tap=tap, norms="plus one") for tap in TAPS]
        for wiring in dict.fromkeys([self.wired, *others, *shifted]):
            plus = wiring.norms == "plus one"
            reader: WeightReader = ShiftedNorms(self._stored) if plus else self._stored
            yield wiring, self._rows(reader, wiring, text, passed)

    def source_head(self, wiring: Wiring, text: Text, passed: Passed) -> Rows:
        """The checkpoint's head in fp32 on the stored backbone."""
        assert self._source is not None
        return self._rows(HeadFrom(self._source, self._stored), wiring, text, passed)

    def source(self, wiring: Wiring, ids: NDArray[np.int64]) -> tuple[Passed, Rows]:
        """The checkpoint alone, in fp32."""
        assert self._source is not None
        text = Text(name="", sha256="", ids=ids)
        passed = pass_backbone(self.spec, self._source, self._source, text)
        drafts = first_drafts(
            _wired(self.spec, wiring), self._source, self._source, text, passed, tap=wiring.tap
        )
        return passed, _as_rows(drafts, passed)

    def coarse(self) -> dict[str, float]:
        """Matrices stored more coarsely than their type says, with the levels found in 16 values."""
        precision = self._manifest.precision
        types: dict[str, MatrixType] = dict.fromkeys(head_matrices(self.spec), precision.mtp)
        if not self.spec.tied_head:
            types[LM_HEAD] = precision.lm_head
        for layer in range(self.spec.num_layers):
            types[f"backbone.layers.{layer}.down.weight"] = precision.weights
        return coarse_matrices(self._stored, types)

    def head_change(self) -> Change:
        """How the stored head relates to the checkpoint's."""
        return self._change(head_matrices(self.spec))

    def backbone_change(self) -> Change:
        """How the stored backbone relates to the checkpoint's, by its layers' widest matrices."""
        layers = range(self.spec.num_layers)
        return self._change(tuple(f"backbone.layers.{i}.down.weight" for i in layers))

    def _change(self, names: tuple[str, ...]) -> Change:
        assert self._source is not None
        errors, rounding = [], []
        for name in names:
            source, stored = self._source.tensor(name), self._stored.tensor(name)
            errors.append(distance(stored, source))
            rounding.append(distance(_rounded(source), source))
        if max(errors) < 1e-6:
            return "same"
        quantised = self._manifest.precision.quantised
        measured = self._manifest.measured
        if quantised and measured is not None and measured.activation_aware:
            return "rounded"  # scaled on purpose, so that distances say nothing
        fits = all(e <= max(1.5 * r, 0.01) for e, r in zip(errors, rounding, strict=True))
        return "rounded" if quantised and fits else "other"

    def _rows(self, reader: WeightReader, wiring: Wiring, text: Text, passed: Passed) -> Rows:
        spec = _wired(self.spec, wiring)
        drafts = first_drafts(spec, reader, self._stored, text, passed, tap=wiring.tap)
        return _as_rows(drafts, passed)


def _as_rows(drafts: Tensor, passed: Passed) -> Rows:
    return Rows(drafts=drafts.numpy(), choices=passed.choices[:, 1:].numpy())


def _wired(spec: ModelSpec, wiring: Wiring) -> ModelSpec:
    assert spec.mtp is not None
    return replace(spec, mtp=replace(spec.mtp, tap=wiring.tap, concat=wiring.concat))


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix at the coarsest that an export stores: int4 in its largest block."""
    block = next((size for size in (128, 64, 32, 16) if len(values) % size == 0), 1)
    codes, scales = quantize(values, block)
    return dequantize(pack(codes), scales, len(values))
