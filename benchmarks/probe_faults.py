"""Whether ``selfdraft probe`` names planted faults, and leaves healthy bundles alone.

    python -m benchmarks.probe_faults --work out/probe --json out/probe.json

The demo checkpoint with six kinds of fault in three severities each, with and without the checkpoint at
hand, and twenty healthy variants: other texts, prompts, exports, checkpoints. A fault counts where it
costs 10 points of acceptance. Nothing is timed; half an hour on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import planted_faults as plant
from demo.data import heldout_chats, texts
from selfdraft.cli.baseline import add_baseline
from selfdraft.cli.probe_run import ProbeOptions, ProbeReport, run_probe
from selfdraft.cli.probe_texts import baseline_text, replies_text, user_text
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions

ROOT = Path(__file__).parents[1]
DEMO, EARLY = ROOT / "demo" / "checkpoint", ROOT / "demo" / "checkpoint-early"
CALIBRATION = ROOT / "demo" / "calibration.txt"
TOKENS = 4096
WORTH = 0.10
"""Acceptance that a fault must cost to count."""
SPARSE = AttentionOptions(kind="sparse", budget_tokens=512, local_blocks=2)
EXPORTS: dict[str, ExportOptions] = {
    "fp32": ExportOptions(),
    "int8 KV": ExportOptions(attention=AttentionOptions(kv="int8")),
    "int4 g32": ExportOptions(weights="int4", int4_block=32),
    "int4 g64": ExportOptions(weights="int4", int4_block=64),
    "int4 g64, int8 KV": ExportOptions(
        weights="int4", int4_block=64, attention=AttentionOptions(kv="int8")
    ),
    "int4 backbone, int8 head": ExportOptions(weights="int4", mtp_weights="int8", lm_head="int8"),
    "sparse": ExportOptions(attention=SPARSE),
    "draft vocabulary": ExportOptions(draft_vocab=1024, draft_vocab_text=CALIBRATION),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bundle and text to probe."""

    name: str
    wanted: tuple[str, ...]
    """Causes that name it rightly; none: healthy."""
    bundle: Path
    text: Path | None = None
    prompts: Path | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case."""

    name: str
    wanted: tuple[str, ...]
    cost: float
    """Acceptance lost against the healthy bundle on the baseline text; 0 where healthy."""
    causes: tuple[str, ...]
    summary: str

    @property
    def right(self) -> bool:
        """Named rightly, or left alone."""
        if not self.wanted:
            return not self.causes
        return self.cost < WORTH or self.causes[:1] in [(one,) for one in self.wanted]


class Bench:
    """Bundles of one work folder, made once."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)

    def bundle(self, kind: str, checkpoint: Path = DEMO) -> Path:
        """A healthy export with its baseline."""
        name = f"{checkpoint.name}-{kind}".replace(" ", "_").replace(",", "")
        return self._once(name, partial(self._export, kind, checkpoint))

    def text(self, seed: int) -> Path:
        """Text of the demo's own generators."""
        file = self.work / f"text-{seed}.txt"
        if not file.is_file():
            file.write_text("\n".join(texts(seed, 300)), encoding="utf-8")
        return file

    def prompts(self, seed: int) -> Path:
        """Questions that the demo was not trained on, one a line."""
        file = self.work / f"prompts-{seed}.txt"
        if not file.is_file():
            asked = [chat.messages[0]["content"] for chat in heldout_chats(seed, 120)]
            lines = [" ".join(text.split()) for text in asked if len(text) < 200]
            file.write_text("\n".join(lines), encoding="utf-8")
        return file

    def faults(self) -> Iterator[Case]:
        """Six kinds in three severities, each with and without the checkpoint."""
        healthy, int4 = self.bundle("fp32"), self.bundle("int4 g32")
        for spread in (0.7, 1.2, 2.0):
            uneven = self._once(
                f"uneven-{spread}",
                lambda folder, spread=spread: plant.uneven_final_norm(DEMO, folder, spread=spread),
            )
            whole = self.bundle("fp32", uneven)
            planted = self._once(f"tap-{spread}", lambda f, b=whole: plant.wrong_tap(b, f))
            yield from self._both(f"wrong tap, spread {spread}", ("wiring",), planted, uneven)
        for noise in (0.6, 0.9, 1.5):
            planted = self._once(
                f"noise-{noise}", lambda f, n=noise: plant.perturbed_head(healthy, f, noise=n)
            )
            yield from self._both(f"perturbed head, {noise}", ("head_damage",), planted)
        for step in (3, 5, 7):
            planted = self._once(
                f"coarse-{step}", lambda f, s=step: plant.coarse_head(int4, f, step=s)
            )
            yield from self._both(f"coarse head, step {step}", ("quantization",), planted)
        for steps in (4, 15, 40):
            planted = self._once(f"moved-{steps}", partial(self._moved, steps))
            yield from self._both(f"fine-tuned, {steps} steps", ("fine_tuning",), planted)
        for levels in (3, 2, 1):
            planted = self._once(
                f"cache-{levels}",
                lambda f, n=levels: plant.coarse_cache(self.bundle("int8 KV"), f, levels=n),
            )
            yield from self._both(f"int8 KV, scale / {levels}", ("kv_precision",), planted)
        for share in (0.4, 0.7, 1.0):
            file = self.work / f"german-{share}.txt"
            plant.other_language(file, self.text(77).read_text(encoding="utf-8"), share=share)
            wanted = ("distribution_shift",)
            yield Case(name=f"German, {share:.0%}", wanted=wanted, bundle=healthy, text=file)

    def healthy(self) -> Iterator[Case]:
        """Twenty variants that nothing is wrong with."""
        for seed in range(101, 108):
            yield Case(
                name=f"text {seed}", wanted=(), bundle=self.bundle("fp32"), text=self.text(seed)
            )
        for seed in (1, 2, 3):
            yield Case(
                name=f"prompts {seed}",
                wanted=(),
                bundle=self.bundle("fp32"),
                prompts=self.prompts(seed),
            )
        for seed, kind in enumerate(list(EXPORTS)[1:], start=201):
            yield Case(name=kind, wanted=(), bundle=self.bundle(kind), text=self.text(seed))
        for seed, kind in ((301, "fp32"), (302, "int4 g32"), (303, "int8 KV")):
            bundle = self.bundle(kind, EARLY)
            yield Case(name=f"early, {kind}", wanted=(), bundle=bundle, text=self.text(seed))

    def run(self, case: Case) -> Outcome:
        """Probe it."""
        session = open_session(case.bundle, EngineOptions(threads=1))
        own = None
        if case.text is not None:
            own = user_text(session, case.text, tokens=TOKENS)
        elif case.prompts is not None:
            own = replies_text(session, case.prompts, tokens=TOKENS)
        options = ProbeOptions(
            baseline=baseline_text(session, "default", tokens=TOKENS),
            own=own,
            checkpoint=case.checkpoint,
        )
        report = run_probe(session, options, lambda *_: None)
        return Outcome(
            name=case.name,
            wanted=case.wanted,
            cost=_cost(report) if case.wanted else 0.0,
            causes=tuple(effect.cause for effect in report.verdict.causes),
            summary=report.verdict.summary,
        )

    def _both(
        self, name: str, wanted: tuple[str, ...], bundle: Path, checkpoint: Path = DEMO
    ) -> Iterator[Case]:
        yield Case(name=name, wanted=wanted, bundle=bundle)
        yield Case(name=f"{name}, checkpoint", wanted=wanted, bundle=bundle, checkpoint=checkpoint)

    def _moved(self, steps: int, folder: Path) -> Path:
        tuned = self._once(
            f"tuned-{steps}", lambda place: plant.fine_tuned(DEMO, place, steps=steps)
        )
        export_bundle(tuned, folder, ExportOptions(overwrite=True))
        other = folder.rename(folder.with_name(folder.name + "-weights"))
        return plant.moved_backbone(self.bundle("fp32"), other, folder)

    def _export(self, kind: str, checkpoint: Path, folder: Path) -> Path:
        options = {
            name: getattr(EXPORTS[kind], name) for name in ExportOptions.__dataclass_fields__
        }
        export_bundle(checkpoint, folder, ExportOptions(**options | {"calibrate": CALIBRATION}))
        files = {"default": CALIBRATION}
        add_baseline(folder, files, tokens=TOKENS, on_progress=lambda *_: None)
        return folder

    def _once(self, name: str, make: Callable[[Path], Path]) -> Path:
        done = self.work / f"{name}.done"
        folder = self.work / name
        if not done.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was ended
            make(folder)
            done.touch()
        return folder


def _cost(report: ProbeReport) -> float:
    """Expected on the baseline text less what the bundle does there, or on the user's text."""
    deployed = {m.text: m.share.value for m in report.measurements if m.setting == "as deployed"}
    assert report.expected is not None
    return report.expected - min(deployed.values())


def _known(file: Path | None) -> list[Outcome]:
    """Outcomes of an earlier run that was ended."""
    if file is None or not file.is_file():
        return []
    records = json.loads(file.read_text(encoding="utf-8"))
    tuples = ("wanted", "causes")
    return [Outcome(**{**one, **{key: tuple(one[key]) for key in tuples}}) for one in records]


def _report(outcome: Outcome) -> None:
    mark = "ok   " if outcome.right else "WRONG"
    named = ", ".join(outcome.causes) or "nothing"
    print(f"{mark} {outcome.name}: cost {outcome.cost * 100:.1f}, named {named}", flush=True)


def main() -> None:
    """Command line; exit status 1 when a fault is misnamed or more than one alarm is false."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--work", type=Path, default=Path("out/probe"))
    parser.add_argument("--json", type=Path, help="outcomes; those that it holds are kept")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no case after these")
    args = parser.parse_args()
    bench, outcomes, started = Bench(args.work), _known(args.json), time.monotonic()
    names = {outcome.name for outcome in outcomes}
    for case in itertools.chain(bench.faults(), bench.healthy()):
        if time.monotonic() - started > args.seconds:
            break
        if case.name in names or args.only not in case.name:
            continue
        outcomes.append(bench.run(case))
        _report(outcomes[-1])
        if args.json:
            content = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
            args.json.write_text(content + "\n", encoding="utf-8")
    missed = [o.name for o in outcomes if o.wanted and not o.right]
    alarms = [o.name for o in outcomes if not o.wanted and not o.right]
    strong = sum(o.cost >= WORTH for o in outcomes if o.wanted)
    print(f"{strong} faults cost 10 points or more; misnamed: {missed or 'none'}")
    print(f"false alarms: {alarms or 'none'}")
    sys.exit(int(bool(missed) or len(alarms) > 1))


if __name__ == "__main__":
    main()
