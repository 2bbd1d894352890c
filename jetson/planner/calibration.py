"""Fits the speed model to published figures and tells how well it predicts what it did not see.

Rows and sources are data (``published.json``). Free: the bandwidth share, the time of a layer, and
one factor for each framework with more than one row; Edge-LLM's is 1. The other two efficiencies
come from one figure each, so nothing checks them. Rows whose power mode nobody stated are
predicted and counted, but never fitted.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal

import numpy as np

from selfdraft.jetson.modules import module_named
from selfdraft.jetson.planner.geometry import Geometry
from selfdraft.jetson.planner.reading import dense_attention
from selfdraft.jetson.planner.speed import (
    REFERENCE_GPU_MHZ,
    Clocks,
    Efficiencies,
    Model,
    backbone_bytes,
    clocks_of,
    prefill_ms,
    speculative_ms,
    step_ms,
)
from selfdraft.jetson.planner.storage import device_storage
from selfdraft.strict import record_from_json

REFERENCE_FRAMEWORK = "Edge-LLM"
UNSTATED_CONTEXT = 256
"""Taken for rows that name no context; docs/planner.md shows how little hangs on it."""
PREFILL_CHUNK = 2048
ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published decode speed of one sequence."""

    model: str
    tok_per_s: float
    framework: str
    weights: Literal["int4", "fp16"] = "int4"
    head: Literal["int4", "fp16"] = "fp16"
    context: int | None = None
    device: str = "agx-orin-64"
    super_config: bool = False
    mode: str = "MAXN"
    mode_stated: bool = True
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeRow:
    """A published speed with drafts, whose head drafts with the whole LM head."""

    model: str
    plain_tok_per_s: float
    tok_per_s: float
    tokens_per_step: float
    drafts: int
    context: int

    @property
    def ratio(self) -> float:
        """Speculative by plain."""
        return self.tok_per_s / self.plain_tok_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """A published speed of computing a prompt."""

    model: str
    tok_per_s: float
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The whole table."""

    models: tuple[Geometry, ...]
    decode: tuple[Row, ...]
    speculative: tuple[SpeculativeRow, ...]
    checks: tuple[Row, ...]
    """Never fitted: other people's figures to hold the result against."""
    prefill: PrefillRow
    low_power: Row
    """The one figure at a low GPU clock."""

    def geometry(self, name: str) -> Geometry:
        """Sizes of the model ``name``."""
        return next(model for model in self.models if model.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row beside what the model says of it."""

    row: Row
    tok_per_s: float

    @property
    def error(self) -> float:
        """Predicted by measured, less one."""
        return self.tok_per_s / self.row.tok_per_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Efficiencies, and the factor of every framework that was fitted."""

    efficiencies: Efficiencies
    frameworks: dict[str, float]

    def of(self, framework: str) -> Efficiencies:
        """The efficiencies of one framework; an unknown one counts as the reference."""
        return replace(self.efficiencies, framework=self.frameworks.get(framework, 1.0))


@functools.cache
def published() -> Published:
    """The table of ``published.json``."""
    text = (files("selfdraft.jetson.planner") / "published.json").read_text(encoding="utf-8")
    return record_from_json(Published, json.loads(text))


@functools.cache
def fitted() -> Fit:
    """The fit to every row; what ``selfdraft plan`` uses."""
    return fit(published())


def fit(table: Published, *, without: Row | None = None) -> Fit:
    """Efficiencies from the table, less one row."""
    rows = [row for row in table.decode if row.mode_stated and row is not without]
    several = {name for name, n in Counter(r.framework for r in table.decode).items() if n > 1}
    terms = np.array([_terms(table, row) for row in rows])  # [rows, 2]
    measured = np.array([_measured_ms(row) for row in rows])
    factors = np.ones(len(rows))
    for _ in range(ROUNDS):
        # Least squares of relative errors in the two straight terms.
        scaled = terms * (factors / measured)[:, None]
        coefficients, *_ = np.linalg.lstsq(scaled, np.ones(len(rows)), rcond=None)
        for name in several - {REFERENCE_FRAMEWORK}:
            own = [i for i, row in enumerate(rows) if row.framework == name]
            ratios = measured[own] / (terms[own] @ coefficients)
            factors[own] = np.exp(np.mean(np.log(ratios)))
    found = Efficiencies(
        bandwidth=1 / float(coefficients[0]),
        layer_us=float(coefficients[1]),
        sm_bytes_per_clock=math.inf,
        tensor=math.inf,
    )
    kept = {row.framework: float(factors[i]) for i, row in enumerate(rows)}
    return Fit(
        efficiencies=_single_figures(table, found),
        frameworks={name: kept[name] for name in sorted(several)},
    )


def leave_one_out(table: Published) -> tuple[Prediction, ...]:
    """Each decode row as a fit to the other rows predicts it."""
    return tuple(predict(table, fit(table, without=row), row) for row in table.decode)


def predict(table: Published, fit: Fit, row: Row) -> Prediction:
    """What a fit says of a row."""
    return Prediction(row=row, tok_per_s=1e3 / _predicted_ms(table, row, fit.of(row.framework)))


def mean_error(predictions: Sequence[Prediction]) -> float:
    """Mean of the errors' magnitudes."""
    return float(np.mean([abs(prediction.error) for prediction in predictions]))


def speculative_ratio(table: Published, fit: Fit, row: SpeculativeRow) -> float:
    """Speculative by plain speed as the model says, at the published tokens a step."""
    model, clocks = _model(table, row.model), _clocks(table.decode[0])
    own = fit.of(REFERENCE_FRAMEWORK)
    plain = step_ms(model, clocks, own, length=row.context)
    step = speculative_ms(model, clocks, own, length=row.context, drafts=row.drafts)
    return row.tokens_per_step * plain / step


def _terms(table: Published, row: Row) -> tuple[float, float]:
    """Milliseconds to read at the peak bandwidth, and of layers for each microsecond of one."""
    model, clocks = _row_model(table, row), _clocks(row)
    reads = backbone_bytes(model, length=row.context or UNSTATED_CONTEXT)
    layers = model.geometry.num_layers * REFERENCE_GPU_MHZ / clocks.gpu_mhz / 1e3
    return reads / 1e6 / clocks.bandwidth_gb_s, layers


def _single_figures(table: Published, efficiencies: Efficiencies) -> Efficiencies:
    """The two efficiencies that one published figure each decides."""
    row = table.low_power
    model, clocks = _row_model(table, row), _clocks(row)
    left_ms = _measured_ms(row) - efficiencies.layers_ms(model.geometry.num_layers, clocks)
    reads = backbone_bytes(model, length=UNSTATED_CONTEXT)
    per_clock = reads / left_ms / 1e3 / (clocks.num_sms * clocks.gpu_mhz)
    found = replace(efficiencies, sm_bytes_per_clock=per_clock, tensor=1.0)
    return replace(found, tensor=_tensor_share(table, found))


def _tensor_share(table: Published, efficiencies: Efficiencies) -> float:
    row = table.prefill
    clocks, model = _clocks(table.decode[0]), _model(table, row.model)
    ideal = prefill_ms(model, clocks, efficiencies, length=row.context, chunk=PREFILL_CHUNK)
    overhead = efficiencies.layers_ms(model.geometry.num_layers, clocks)
    return (ideal - overhead) / (1e3 * row.context / row.tok_per_s - overhead)


def _predicted_ms(table: Published, row: Row, efficiencies: Efficiencies) -> float:
    length = row.context or UNSTATED_CONTEXT
    return step_ms(_row_model(table, row), _clocks(row), efficiencies, length=length)


def _measured_ms(row: Row) -> float:
    return 1e3 / row.tok_per_s


def _row_model(table: Published, row: Row) -> Model:
    return _model(table, row.model, weights=row.weights, head=row.head)


def _model(
    table: Published,
    name: str,
    *,
    weights: Literal["int4", "fp16"] = "int4",
    head: Literal["int4", "fp16"] = "fp16",
) -> Model:
    geometry = table.geometry(name)
    return Model(
        geometry=geometry,
        storage=device_storage(geometry, weights=weights, head=head),
        attention=dense_attention(geometry, kv="fp16"),
    )


def _clocks(row: Row) -> Clocks:
    module = module_named(row.device)
    return clocks_of(module, module.mode(row.mode, super_config=row.super_config))
