"""One alignment from checkpoint to checkpoint."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import selfdraft
from selfdraft.errors import ConfigError, DeviceError
from selfdraft.export.align.new_head import add_head
from selfdraft.export.align.texts import TrainingText, read_training_text
from selfdraft.export.align.training import HeadTrainer, TrainingOptions, Weights
from selfdraft.export.align.write_back import check_writable, write_tensors
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.families.base import ModelPlan
from selfdraft.export.layerwise import run_layers
from selfdraft.export.publish import (
    ALIGN_RECORD,
    check_disk_space,
    check_output,
    new_folder,
    resource_errors,
)
from selfdraft.export.text_files import read_text_files
from selfdraft.export.text_scores import Passed, acceptance, pass_backbone
from selfdraft.export.weight_plan import WeightsPlan, WeightTypes, plan_weights
from selfdraft.export.weight_reader import CheckpointReader
from selfdraft.manifest import Tap

OnProgress = Callable[[str, int, int], None]
OnScore = Callable[[int, float], None]
"""Called with the steps done and the acceptance on the held-out text."""
SCHEMA = "selfdraft.align/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignOptions:
    """Options of an alignment. Raises ``ConfigError`` naming a value that cannot be."""

    tokens: int = 262_144
    """Tokens of text that are used at most; their hidden states are held in memory."""
    length: int = 256
    """Tokens of a sequence."""
    steps: int = 600
    batch_tokens: int = 2048
    learning_rate: float = 3e-3
    distillation: float = 0.9
    """Weight of the backbone's distribution against the text's own tokens."""
    drafts: int = 3
    """Drafts of a chain that are trained; later ones on a part of the text."""
    score_every: int = 50
    """Steps between two measurements on the held-out text."""
    seed: int = 0
    device: str = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        least = {"tokens": 1, "length": 8, "steps": 1, "batch_tokens": 8, "drafts": 1}
        least |= {"score_every": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}", hint=f"give {smallest} or more"
                )
        if not 0.0 <= self.distillation <= 1.0 or not self.learning_rate > 0.0:
            raise ConfigError(
                f"distillation is {self.distillation}, learning rate {self.learning_rate}",
                hint="distillation lies between 0 and 1, a learning rate above 0",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignReport:
    """What came of it; acceptance of first drafts on the held-out text, teacher-forced."""

    output: Path
    new_head: bool
    tap: Tap
    text: str
    text_sha256: str
    train_tokens: int
    held_out_tokens: int
    before: float
    after: float
    best_step: int
    steps: int
    interrupted: bool
    device: str
    seconds: float


def align_checkpoint(
    checkpoint_path: Path,
    output: Path,
    texts: list[Path],
    options: AlignOptions,
    *,
    on_progress: OnProgress | None = None,
    on_score: OnScore | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> AlignReport:
    """Write ``output``: the checkpoint with its MTP head trained, or with one added.

    The weights with the best acceptance on the held-out text are kept, the untrained ones among them.
    ``stopped`` is asked between steps; training then ends with what it has. Raises ``ConfigError``,
    ``ResourceError``, or ``DeviceError`` for a device that is not there.
    """
    started = time.monotonic()
    report = on_progress or (lambda stage, done, total: None)
    device = choose_device(options.device)
    source = Checkpoint.open(checkpoint_path)
    files = [file for file in sorted(checkpoint_path.iterdir()) if file.is_file()]
    with resource_errors(output):
        check_output(output, overwrite=options.overwrite)
        check_disk_space(output, int(1.1 * sum(file.stat().st_size for file in files)))
    text = _training_text(source, texts, options)
    with new_folder(output, overwrite=options.overwrite) as folder:
        for done, file in enumerate(files):
            report("copy", done, len(files))
            shutil.copyfile(file, folder / file.name)
        report("copy", len(files), len(files))
        aligned = _Alignment(folder, text, replace(options, device=device), report)
        aligned.train(on_score or (lambda step, score: None), stopped)
        result = aligned.report(output, time.monotonic() - started)
        record: dict[str, Any] = {"schema": SCHEMA, "selfdraft": selfdraft.__version__}
        record |= {"source": checkpoint_path.resolve().name, "options": asdict(options)}
        content = json.dumps(record | asdict(result), indent=1, default=str) + "\n"
        (folder / ALIGN_RECORD).write_text(content, encoding="utf-8")
    return result


def choose_device(asked: str) -> str:
    """``cuda`` where ``auto`` finds one, else ``cpu``; ``DeviceError`` for one that is not there."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.split(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {asked!r}", hint="give auto, cpu or cuda")
    if asked != "cpu" and not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device", hint="give --device cpu")
    return asked


def _training_text(
    checkpoint: Checkpoint, texts: list[Path], options: AlignOptions
) -> TrainingText:
    vocab = read_model(checkpoint).spec.vocab_size
    tokenizer = read_text_files(checkpoint, vocab_size=vocab).tokenizer
    return read_training_text(
        texts, tokenizer, length=options.length, tokens=options.tokens, seed=options.seed
    )


class _Alignment:
    """Training in a copy of the checkpoint."""

    def __init__(
        self, folder: Path, text: TrainingText, options: AlignOptions, report: OnProgress
    ) -> None:
        self._text, self._options, self._report = text, options, report
        checkpoint = Checkpoint.open(folder)
        model = read_model(checkpoint)
        self.new_head = model.spec.mtp is None
        if self.new_head:
            add_head(checkpoint, model.spec, _reader(checkpoint, model))
            checkpoint = Checkpoint.open(folder)
            model = read_model(checkpoint)
        self._checkpoint, self._spec = checkpoint, model.spec
        self._rules = {r.target: r for r in model.rules if r.target.startswith("mtp.")}
        check_writable(checkpoint, self._rules)
        self._reader = _reader(checkpoint, model)
        self._passed = self._pass_held_out()
        self.before = self.after = self._score()
        self.best_step = self.steps = 0
        self.interrupted = False

    def train(self, on_score: OnScore, stopped: Callable[[], bool]) -> None:
        """Run the steps; the file holds the best weights whenever this ends."""
        on_score(0, self.before)
        trainer = self._trainer()
        kept = trainer.weights()
        total, every = self._options.steps, self._options.score_every
        for step in range(total):
            self.interrupted = stopped()
            if self.interrupted:
                break
            self._report("training", step, total)
            trainer.step(step)
            self.steps = step + 1
            if self.steps % every == 0 or self.steps == total:
                kept = self._keep_better(trainer.weights(), kept, on_score)
        if self.interrupted and self.steps % every:
            self._keep_better(trainer.weights(), kept, on_score)
        self._report("training", total, total)

    def report(self, output: Path, seconds: float) -> AlignReport:
        """What was done."""
        assert self._spec.mtp is not None
        return AlignReport(
            output=output,
            new_head=self.new_head,
            tap=self._spec.mtp.tap,
            text=self._text.held_out.name,
            text_sha256=self._text.held_out.sha256,
            train_tokens=self._text.train.size,
            held_out_tokens=self._text.held_out.tokens,
            before=self.before,
            after=self.after,
            best_step=self.best_step,
            steps=self.steps,
            interrupted=self.interrupted,
            device=self._options.device,
            seconds=seconds,
        )

    def _trainer(self) -> HeadTrainer:
        options = self._options
        hidden = run_layers(
            self._spec,
            self._reader,
            self._reader,
            self._text.train,
            device=options.device,
            on_layer=lambda done, total: self._report("backbone", done, total),
        )
        settings = TrainingOptions(
            steps=options.steps,
            batch_tokens=options.batch_tokens,
            learning_rate=options.learning_rate,
            distillation=options.distillation,
            drafts=options.drafts,
            seed=options.seed,
            device=options.device,
        )
        return HeadTrainer(self._spec, self._reader, self._text.train, hidden, settings)

    def _pass_held_out(self) -> Passed:
        return pass_backbone(self._spec, self._reader, self._reader, self._text.held_out)

    def _score(self) -> float:
        """Acceptance of the head in the file, its rounding included."""
        assert self._spec.mtp is not None
        held_out, tap = self._text.held_out, self._spec.mtp.tap
        return acceptance(self._spec, self._reader, self._reader, held_out, self._passed, tap=tap)

    def _keep_better(self, weights: Weights, kept: Weights, on_score: OnScore) -> Weights:
        """The better of two heads, which the file then holds."""
        write_tensors(self._checkpoint, self._rules, weights)
        score = self._score()
        on_score(self.steps, score)
        if score > self.after:
            self.after, self.best_step = score, self.steps
            return weights
        write_tensors(self._checkpoint, self._rules, kept)
        return kept


def _reader(checkpoint: Checkpoint, model: ModelPlan) -> CheckpointReader:
    plan: WeightsPlan = plan_weights(model, types=WeightTypes(), draft_ids=None, packed={})
    return CheckpointReader(checkpoint, model, plan)
