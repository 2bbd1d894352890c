"""One probe: measurements that differ in one thing each, and the effects that they show."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from selfdraft.cli.probe_engine import Rows, TextEngine
from selfdraft.cli.probe_positions import PositionShare, long_text_effects
from selfdraft.cli.probe_shares import (
    Difference,
    Share,
    known_difference,
    paired_difference,
    share_of,
    unpaired_difference,
)
from selfdraft.cli.probe_texts import ProbeText
from selfdraft.cli.probe_verdict import LEAST_EFFECT, Cause, Effect, Verdict, judge
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.probe_weights import WeightProbe
    from selfdraft.cli.session import Session
    from selfdraft.export.text_scores import Passed

OnProgress = Callable[[str, int, int], None]
LEAST_ROWS = 256
"""Of the user's text, to judge its kind by."""
SAME_PERPLEXITY = 0.01
"""Relative change of perplexity up to which the backbone counts as the one that was exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What a probe may use beside the bundle."""

    baseline: ProbeText | None
    own: ProbeText | None
    checkpoint: Path | None = None
    expected: float | None = None
    """Acceptance that the head should have; None: what was measured at export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One share of accepted first drafts."""

    text: str
    setting: str
    share: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Everything that was measured, what it means, and what could not be told."""

    measurements: tuple[Measurement, ...]
    positions: tuple[PositionShare, ...]
    effects: tuple[Effect, ...]
    verdict: Verdict
    expected: float | None
    perplexity: dict[str, float]
    untold: tuple[str, ...]


def run_probe(session: Session, options: ProbeOptions, on_progress: OnProgress) -> ProbeReport:
    """Measure and judge. Raises ``ConfigError`` without a head, or without any text."""
    manifest = session.bundle.manifest
    if not manifest.has_mtp:
        raise ConfigError("the bundle has no MTP head", hint="make one: selfdraft align CHECKPOINT")
    if options.baseline is None and options.own is None:
        raise ConfigError(
            "the bundle keeps no baseline text, and none is given",
            hint="give --text FILE or --prompts FILE, or export with --calibrate TEXT",
        )
    probe = _Probe(session, options, on_progress)
    for stage in (probe.deployed, probe.weights, probe.shift, probe.length):
        stage()
    return probe.report()


@dataclass
class _Probe:
    """State of a run; every stage adds measurements and effects."""

    session: Session
    options: ProbeOptions
    on_progress: OnProgress
    measurements: list[Measurement] = field(default_factory=list)
    positions: list[PositionShare] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    perplexity: dict[str, float] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manifest = self.session.bundle.manifest
        self.engine = TextEngine(self.session)
        self.texts = [t for t in (self.options.baseline, self.options.own) if t is not None]
        self.sparse = self.manifest.attention is not None
        self.weight_probe = self._weight_probe()  # refuses a wrong checkpoint before all else
        self.as_deployed: dict[str, Rows] = {}
        self.dense: dict[str, Rows] = {}

    @property
    def expected(self) -> float | None:
        """The level that the head should reach on the reference text."""
        if self.options.expected is not None:
            return self.options.expected
        measured = self.manifest.measured
        known = self.options.baseline is not None and measured is not None
        return measured.before.acceptance if known and measured is not None else None

    def deployed(self) -> None:
        """The bundle's own graphs over each text, with its attention and densely."""
        for done, text in enumerate(self.texts):
            self.on_progress("as deployed", done, len(self.texts))
            rows = _counted(text, self.engine.rows(text.ids, dense=not self.sparse))
            self._add(text.name, "as deployed", rows)
            self.as_deployed[text.name] = self.dense[text.name] = rows
            if self.sparse:
                dense = _counted(text, self.engine.rows(text.ids, dense=True))
                self.dense[text.name] = dense
                self._add(text.name, "dense attention", dense)
                self._effect("sparse_attention", text.name, "dense against sparse", dense, rows)
        self.on_progress("as deployed", len(self.texts), len(self.texts))

    def weights(self) -> None:
        """What only torch can change: cache, wiring, head."""
        probe = self.weight_probe
        if probe is None:
            self.untold.append(
                "torch is not installed (pip install 'selfdraft[export]'): wiring, KV precision and "
                "the head's weights were not looked at"
            )
            return
        for done, text in enumerate(self.texts):
            self.on_progress("weights", done, len(self.texts))
            self._weights_on(probe, text)
        self.on_progress("weights", len(self.texts), len(self.texts))
        if not probe.has_source:
            self.untold.append(
                "no --checkpoint was given: the head's weights were not compared with their source"
            )

    def shift(self) -> None:
        """The user's text against the baseline's."""
        if len(self.texts) < 2:
            self.untold.append(
                "only one text was measured: whether the kind of text matters cannot be told"
                + ("" if self.options.own else " (give --text FILE or --prompts FILE)")
            )
            return
        first, second = (self.as_deployed[text.name].agreed for text in self.texts)
        rows = int(second.count())
        if rows < LEAST_ROWS:
            self.untold.append(
                f"{self.texts[1].name} has {rows} rows: too few to tell whether its kind matters"
            )
            return
        gain = unpaired_difference(first, second)
        names = " against ".join(text.name for text in self.texts)
        self.effects.append(
            Effect(cause="distribution_shift", text=names, compared=names, gain=gain)
        )

    def length(self) -> None:
        """Far positions against near ones, on the longest text."""
        text = max(self.texts, key=lambda one: len(one.whole))
        found = long_text_effects(self.session, self.engine, text, sparse=self.sparse)
        if found is None:
            self.untold.append(
                "the text is too short to look at positions (give a longer --text, and --tokens)"
            )
            return
        self.positions, added = list(found[0]), found[1]
        self.effects += added

    def report(self) -> ProbeReport:
        """What came of it."""
        if self.expected is None:
            self.untold.append(
                "how many drafts should be accepted is not known (export with --calibrate TEXT, or "
                "give --expected SHARE): a head that fits badly as a whole cannot be told"
            )
        return ProbeReport(
            measurements=tuple(self.measurements),
            positions=tuple(self.positions),
            effects=tuple(self.effects),
            verdict=judge(self.effects),
            expected=self.expected,
            perplexity=self.perplexity,
            untold=tuple(self.untold),
        )

    def _weight_probe(self) -> WeightProbe | None:
        """None without torch."""
        if importlib.util.find_spec("torch") is None:
            return None
        from selfdraft.cli.probe_weights import WeightProbe

        return WeightProbe(self.session.bundle.path, self.manifest, self.options.checkpoint)

    def _weights_on(self, probe: WeightProbe, text: ProbeText) -> None:
        stored_text, passed = probe.stored_pass(text.ids)
        self.perplexity[f"{text.name}, as stored"] = passed.perplexity
        wirings = [(w, _counted(text, r)) for w, r in probe.wirings(stored_text, passed)]
        for wiring, rows in wirings:
            self._add(text.name, f"fp32 cache, {wiring.name}", rows)
        stored = wirings[0][1]
        best, best_rows = max(wirings, key=lambda pair: float(pair[1].agreed.mean()))
        compared = f"wiring {best.name} against {wirings[0][0].name}"
        if best != wirings[0][0]:
            self._effect("wiring", text.name, compared, best_rows, stored)
        self._engine_gap(text.name, wirings[1:], stored)
        if text is not self.texts[0]:
            return
        named = [e for e in self.effects if e.cause == "wiring" and e.named]
        chosen, rows = (best, best_rows) if named else (wirings[0][0], stored)
        if probe.has_source:
            head = _counted(text, probe.source_head(chosen, stored_text, passed))
            source_passed, plain = probe.source(chosen, text.ids)
            source = _counted(text, plain)
            self.perplexity[f"{text.name}, checkpoint"] = source_passed.perplexity
            self._add(text.name, "the checkpoint's head in fp32", head)
            self._add(text.name, "the checkpoint in fp32", source)
            self._source_effects(probe, text.name, stored=rows, head=head, source=source)
        else:
            self._unexplained(probe, text.name, rows, passed)

    def _engine_gap(self, name: str, others: Sequence[tuple[object, Rows]], stored: Rows) -> None:
        """The graphs against the same weights with an fp32 cache."""
        deployed = self.dense[name]
        kv = self.manifest.precision.kv
        if kv != "fp32":
            self._effect("kv_precision", name, f"fp32 against {kv} cache", stored, deployed)
            return
        gain = paired_difference(stored.agreed, deployed.agreed)
        same = float((stored.drafts == deployed.drafts).mean())
        closer = any(float((rows.drafts == deployed.drafts).mean()) > same for _, rows in others)
        compared = "the manifest's wiring against the graphs"
        if closer:
            self.effects.append(Effect(cause="wiring", text=name, compared=compared, gain=gain))
        elif self.manifest.precision.quantised:
            compared = "fp32 against int8 arithmetic"
            self.effects.append(
                Effect(cause="quantization", text=name, compared=compared, gain=gain)
            )

    def _source_effects(
        self, probe: WeightProbe, name: str, *, stored: Rows, head: Rows, source: Rows
    ) -> None:
        """Head, then backbone, then what the checkpoint itself lacks."""
        coarse = bool(probe.coarse())
        rounded = probe.head_change() == "rounded" or coarse
        cause: Cause = "quantization" if rounded else "head_damage"
        self._effect(cause, name, "the checkpoint's head against the stored one", head, stored)
        rounded = probe.backbone_change() == "rounded" or coarse
        cause = "quantization" if rounded else "fine_tuning"
        self._effect(cause, name, "the checkpoint against its head alone", source, head)
        if self.expected is not None:
            gain = known_difference(self.expected, source.agreed)
            compared = "what is expected against the checkpoint in fp32"
            self.effects.append(
                Effect(cause="fine_tuning", text=name, compared=compared, gain=gain)
            )

    def _unexplained(self, probe: WeightProbe, name: str, rows: Rows, passed: Passed) -> None:
        """Without the source: what is expected against the best that the stored weights give."""
        if self.expected is None:
            return
        gain = known_difference(self.expected, rows.agreed)
        cause, why = self._suspect(probe, passed.perplexity, gain)
        compared = f"what is expected against the stored weights, {why}"
        self.effects.append(Effect(cause=cause, text=name, compared=compared, gain=gain))

    def _suspect(
        self, probe: WeightProbe, perplexity: float, gain: Difference
    ) -> tuple[Cause, str]:
        if gain.value >= LEAST_EFFECT and (coarse := probe.coarse()):
            worst = min(coarse, key=lambda name: coarse[name])
            return "quantization", f"{worst} has {coarse[worst]:.1f} levels in 16 values"
        measured = self.manifest.measured
        if measured is None or self.options.baseline is None:
            return "fine_tuning", "whose head does not fit"
        recorded = (measured.after or measured.before).perplexity
        change = abs(math.log(perplexity / recorded))
        if change > SAME_PERPLEXITY:
            return "fine_tuning", f"whose perplexity is {perplexity:.3f}, once {recorded:.3f}"
        before = measured.before.acceptance
        after = measured.after.acceptance if measured.after else before
        if before is not None and after is not None and before - after >= LEAST_EFFECT:
            return "quantization", f"which gave {after:.1%} when they were quantised"
        if self.options.expected is not None:
            return "fine_tuning", "whose head never fitted better on this text"
        return "head_damage", "whose backbone has the perplexity that it had"

    def _add(self, text: str, setting: str, rows: Rows) -> None:
        found = share_of(rows.agreed)
        self.measurements.append(Measurement(text=text, setting=setting, share=found))

    def _effect(self, cause: Cause, text: str, compared: str, better: Rows, worse: Rows) -> None:
        gain = paired_difference(better.agreed, worse.agreed)
        assert np.isfinite(gain.value)
        self.effects.append(Effect(cause=cause, text=text, compared=compared, gain=gain))


def _counted(text: ProbeText, rows: Rows) -> Rows:
    """``rows`` with those left out that do not count in ``text``."""
    return rows if text.counted is None else replace(rows, counted=text.counted)
