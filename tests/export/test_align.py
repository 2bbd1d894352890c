"""Training a head: what is written, what stays, and what it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.hybrid import write_hybrid
from support.refusals import refused

pytest.importorskip("torch")

import torch

from selfdraft.export.align.loss import IGNORED, loss_by_parts
from selfdraft.export.align.run import AlignOptions, align_checkpoint, choose_device
from selfdraft.export.align.training import HeadTrainer, TrainingOptions, rate_factor
from selfdraft.export.align.write_back import source_values, write_tensors
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.layerwise import run_layers
from selfdraft.export.weight_plan import WeightTypes, plan_weights
from selfdraft.export.weight_reader import CheckpointReader

QUICK = AlignOptions(
    steps=24, length=32, batch_tokens=256, score_every=8, learning_rate=1e-2, device="cpu"
)
NAMINGS = [("mimo", "mimo"), ("qwen3", "qwen"), ("glm4", "deepseek"), ("glm_ocr", "deepseek")]


def text_file(folder: Path, *, tokens: int = 2048) -> Path:
    """Letters that follow a rule, so that there is something to learn."""
    path = folder / "text.txt"
    letters = np.arange(tokens) * 7 % 26 + 97
    path.write_bytes(letters.astype(np.uint8).tobytes())
    return path


def reader_of(folder: Path) -> tuple[Checkpoint, Any, CheckpointReader]:
    checkpoint = Checkpoint.open(folder)
    model = read_model(checkpoint)
    plan = plan_weights(model, types=WeightTypes(), draft_ids=None, packed={})
    return checkpoint, model, CheckpointReader(checkpoint, model, plan)


def raw(folder: Path) -> dict[str, bytes]:
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint.read_raw(name).tobytes() for name in checkpoint.names()}


@pytest.mark.parametrize(("family", "mtp"), NAMINGS)
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_weights_written_back_are_those_that_were_read(tmp_path, family, mtp, dtype) -> None:
    """Joined, transposed, ordered, offset and scaled tensors find their way back, bit for bit."""
    folder = write_checkpoint(tmp_path, family, mtp=mtp, dtype=dtype, seed=2)
    checkpoint, model, reader = reader_of(folder)
    before = raw(folder)
    rules = {rule.target: rule for rule in model.rules if rule.target.startswith("mtp.")}
    weights = {target: torch.from_numpy(reader.tensor(target)) for target in rules}
    for rule in rules.values():
        for name in rule.sources:
            file, entry = checkpoint.tensors[name]
            with file.open("r+b") as opened:
                opened.seek(entry.offset)
                opened.write(bytes(entry.length))
    assert raw(folder) != before
    write_tensors(checkpoint, rules, weights)
    assert raw(folder) == before


def test_offset_and_factor_are_taken_back() -> None:
    from selfdraft.export.families.base import WeightRule

    rule = WeightRule(
        target="t", sources=("s",), layout="vector", source_shapes=((3,),), factor=2.0, offset=1.0
    )
    found = source_values(rule, torch.tensor([2.0, 4.0, 6.0]))
    assert found["s"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("shards", [1, 3])
def test_training_raises_acceptance_and_leaves_the_backbone(tmp_path, shards) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", dtype="BF16", shards=shards)
    report = align_checkpoint(folder, tmp_path / "d", [text_file(tmp_path)], QUICK)
    assert not report.new_head and report.after > report.before
    before, after = raw(folder), raw(tmp_path / "d")
    changed = {name for name in before if before[name] != after[name]}
    assert changed and all(name.startswith("model.mtp_layers.0.") for name in changed)
    assert set(before) == set(after)
    record = json.loads((tmp_path / "d" / "align.json").read_text())
    assert (record["before"], record["after"]) == (report.before, report.after)


@pytest.mark.parametrize("mtp", [True, False])
def test_hybrid_models_are_trained_and_given_heads_like_others(tmp_path, mtp) -> None:
    write_hybrid(tmp_path / "c", mtp=mtp)
    report = align_checkpoint(tmp_path / "c", tmp_path / "d", [text_file(tmp_path)], QUICK)
    assert report.new_head is not mtp and report.after > report.before
    before, after = raw(tmp_path / "c"), raw(tmp_path / "d")
    backbone = {name: data for name, data in before.items() if not name.startswith("mtp.")}
    assert backbone == {name: after[name] for name in backbone}
    checkpoint, model, reader = reader_of(tmp_path / "d")
    assert model.spec.mtp is not None
    rules = {rule.target: rule for rule in model.rules if rule.target.startswith("mtp.")}
    write_tensors(checkpoint, rules, {t: torch.from_numpy(reader.tensor(t)) for t in rules})
    assert raw(tmp_path / "d") == after


@pytest.mark.parametrize(
    ("family", "prefix", "head"),
    [
        ("mimo", "", "model.mtp_layers.0.input_proj.weight"),
        ("qwen3", "language_model.", "language_model.mtp.fc.weight"),
        ("qwen3", "model.language_model.", "mtp.fc.weight"),
        ("glm_ocr", "model.language_model.", "model.language_model.layers.2.eh_proj.weight"),
    ],
)
def test_dense_model_gets_a_head_in_its_own_naming(tmp_path, family, prefix, head) -> None:
    from safetensors.numpy import load_file

    folder = write_checkpoint(tmp_path / "c", family, mtp=None, prefix=prefix)
    report = align_checkpoint(folder, tmp_path / "d", [text_file(tmp_path)], QUICK)
    assert report.new_head and report.after >= report.before
    assert head in load_file(str(tmp_path / "d" / "model-mtp.safetensors"))
    model = reader_of(tmp_path / "d")[1]
    assert model.spec.mtp is not None
    assert not [text for text in model.notes if "MTP" in text]
    before, after = raw(folder), raw(tmp_path / "d")
    assert before == {name: after[name] for name in before}
    index = json.loads((tmp_path / "d" / "model.safetensors.index.json").read_text())
    assert index["weight_map"][head] == "model-mtp.safetensors"


@pytest.mark.parametrize("prefix", ["", "model.language_model."])
def test_hybrid_model_gets_a_head_that_attends(tmp_path, prefix) -> None:
    write_hybrid(tmp_path / "c", mtp=False, prefix=prefix)
    report = align_checkpoint(tmp_path / "c", tmp_path / "d", [text_file(tmp_path)], QUICK)
    assert report.new_head and report.after >= report.before
    added = set(raw(tmp_path / "d")) - set(raw(tmp_path / "c"))
    assert added == {name for name in write_hybrid(tmp_path / "x") if name.startswith("mtp.")}
    spec = reader_of(tmp_path / "d")[1].spec
    assert spec.mtp is not None and spec.delta is not None


def test_interrupt_keeps_the_best_so_far(tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 10

    report = align_checkpoint(folder, tmp_path / "d", [text_file(tmp_path)], QUICK, stopped=stopped)
    assert report.interrupted and report.steps == 10
    assert report.after >= report.before
    reader_of(tmp_path / "d")


def test_worse_heads_are_not_kept(tmp_path) -> None:
    """A rate that destroys everything leaves the weights as they came."""
    folder = write_checkpoint(tmp_path / "c", "mimo")
    good = align_checkpoint(folder, tmp_path / "d", [text_file(tmp_path)], QUICK)
    wild = replace(QUICK, learning_rate=1e3, steps=4)
    again = align_checkpoint(tmp_path / "d", tmp_path / "e", [text_file(tmp_path)], wild)
    assert again.before == good.after and again.after >= again.before
    if again.best_step == 0:
        assert raw(tmp_path / "d") == raw(tmp_path / "e")


def test_loss_in_parts_has_the_gradient_of_the_whole(monkeypatch) -> None:
    from selfdraft.export.align import loss as module

    draw = torch.Generator().manual_seed(0)
    head = torch.randn(8, 11, generator=draw)
    teacher = torch.randn(7, 8, generator=draw)
    targets = torch.tensor([1, 5, IGNORED, 2, 0, 10, IGNORED])
    found = []
    for slab in (2**26, 22):
        monkeypatch.setattr(module, "MAX_LOGITS", slab)
        weight = torch.eye(8, requires_grad=True)
        out = torch.arange(56.0).reshape(7, 8).sin() @ weight
        value, gradient = loss_by_parts(out, teacher, targets, head, distillation=0.3)
        out.backward(gradient)
        found.append((value, weight.grad.clone()))
    weight = torch.eye(8, requires_grad=True)
    logits = torch.arange(56.0).reshape(7, 8).sin() @ weight @ head
    kl = torch.nn.functional.kl_div(
        logits.log_softmax(-1), (teacher @ head).log_softmax(-1), log_target=True,
        reduction="batchmean",
    )  # fmt: skip
    whole = 0.3 * kl + 0.7 * torch.nn.functional.cross_entropy(logits, targets)
    whole.backward()
    for value, gradient in found:
        assert value == pytest.approx(whole.item(), rel=1e-5)
        assert torch.allclose(gradient, weight.grad, rtol=1e-4, atol=1e-6)


def test_everything_of_a_step_follows_the_device(tmp_path, monkeypatch) -> None:
    """The meta device stands for a GPU: a tensor left on the CPU would clash with it."""
    folder = write_checkpoint(tmp_path, "qwen3", mtp="qwen")
    _, model, reader = reader_of(folder)
    ids = np.random.default_rng(0).integers(0, 256, (4, 16))
    options = TrainingOptions(
        steps=2,
        batch_tokens=32,
        learning_rate=1e-3,
        distillation=0.5,
        drafts=3,
        seed=0,
        device="meta",
    )
    seen: list[torch.Tensor] = []

    def recorded(out: Any, teacher: Any, targets: Any, head: Any, **_: Any) -> Any:
        seen.extend([out, teacher, targets, out @ head])
        return 0.0, torch.ones_like(out)

    from selfdraft.export.align import training

    monkeypatch.setattr(training, "loss_by_parts", recorded)
    monkeypatch.setattr("selfdraft.export.attention_op.longest", lambda step: 15)
    hidden = torch.zeros(4, 16, model.spec.hidden_size)
    trainer = HeadTrainer(model.spec, reader, ids, hidden, options)
    trainer._backward(trainer._next_batch())
    assert all(tensor.device.type == "meta" for tensor in seen)


@pytest.mark.parametrize("family", [("mimo", "mimo"), ("glm4", "deepseek"), ("qwen3_5", "qwen")])
def test_trained_chains_are_those_that_decoding_drafts(tmp_path, family) -> None:
    """Drafts 1 to 3 of every chain at once against the head run step by step behind its cache."""
    from selfdraft.export.attention_op import StepTensors
    from selfdraft.export.layerwise import bare_head, empty_cache, fill_module, whole_step

    if family[0] == "qwen3_5":
        write_hybrid(tmp_path, seed=5)
    else:
        write_checkpoint(tmp_path, family[0], mtp=family[1], seed=5)
    _, model, reader = reader_of(tmp_path)
    ids = np.random.default_rng(1).integers(0, 256, (2, 12))
    hidden = run_layers(model.spec, reader, reader, ids)
    options = TrainingOptions(
        steps=1, batch_tokens=24, learning_rate=1e-3, distillation=0.5, drafts=3, seed=0,
        device="cpu",
    )  # fmt: skip
    trainer = HeadTrainer(model.spec, reader, ids, hidden, options)
    norm = torch.from_numpy(reader.tensor("backbone.norm"))
    normed = hidden / torch.sqrt(hidden.pow(2).mean(-1, keepdim=True) + model.spec.rms_norm_eps)
    normed = normed * norm
    with torch.no_grad():
        outs = trainer._drafts(trainer._local, hidden, normed)
    assert [out.shape[1] for out in outs] == [11, 10, 9] and len(outs[1]) == 1
    head = bare_head(model.spec)
    fill_module(head, reader, "mtp.")
    tap = hidden if model.spec.mtp.tap == "pre_norm" else normed
    table = torch.from_numpy(reader.embedding_rows(np.arange(256)))
    tokens = torch.from_numpy(ids)
    for start in (0, 4, 8):
        cache = empty_cache(model.spec, 1, 16)
        step, _ = whole_step(1, start + 1)
        rows = tokens[:1, 1 : start + 2]
        with torch.no_grad():
            z, cache, _ = head.block(rows, table, step, tap[:1, : start + 1], cache)
            fed = head.normed(z)[:, -1:]
            for depth in range(1, 3):
                at = torch.tensor([start + depth])
                one = StepTensors(at, torch.ones_like(at), torch.ones_like(at))
                token = tokens[:1, start + 1 + depth : start + 2 + depth]
                z, cache, _ = head.block(token, table, one, fed, cache)
                fed = head.normed(z)
                assert torch.allclose(outs[depth][0, start], fed[0, 0], atol=1e-4)


def test_every_draft_is_compared_with_the_position_that_it_is_for(tmp_path, monkeypatch) -> None:
    """Draft d of row p: taught by the backbone's row p + 1 + d, followed by the token p + 2 + d."""
    from selfdraft.export.align import training

    _, model, reader = reader_of(write_checkpoint(tmp_path, "mimo"))
    ids = np.random.default_rng(2).integers(0, 256, (1, 9))
    hidden = torch.arange(9.0)[None, :, None] + torch.rand(model.spec.hidden_size)
    options = TrainingOptions(
        steps=1, batch_tokens=9, learning_rate=1e-3, distillation=0.5, drafts=3, seed=0,
        device="cpu",
    )  # fmt: skip
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def recorded(out: Any, teacher: Any, targets: Any, head: Any, **_: Any) -> Any:
        seen.append((teacher, targets))
        return 0.0, torch.zeros_like(out)

    monkeypatch.setattr(training, "loss_by_parts", recorded)
    trainer = HeadTrainer(model.spec, reader, ids, hidden, options)
    trainer._backward(trainer._next_batch())
    scale = hidden.pow(2).mean(-1, keepdim=True) + model.spec.rms_norm_eps
    normed = hidden / scale.sqrt() * torch.from_numpy(reader.tensor("backbone.norm"))
    for depth, (teacher, targets) in enumerate(seen):
        assert torch.allclose(teacher, normed[0, 1 + depth :])
        assert targets.tolist() == [*ids[0, 2 + depth :].tolist(), IGNORED]
    assert len(seen) == 3


def test_rows_in_parts_give_the_same_hidden_states(tmp_path, monkeypatch) -> None:
    from selfdraft.export import layerwise

    _, model, reader = reader_of(write_checkpoint(tmp_path, "mimo"))
    ids = np.random.default_rng(0).integers(0, 256, (5, 12))
    whole = run_layers(model.spec, reader, reader, ids)
    monkeypatch.setattr(layerwise, "ROWS_AT_ONCE", 24)
    assert torch.allclose(run_layers(model.spec, reader, reader, ids), whole, atol=1e-6)


def test_rate_rises_stays_and_falls() -> None:
    factors = [rate_factor(step, 200) for step in range(200)]
    assert factors[0] == pytest.approx(0.05) and factors[20] == factors[79] == 1.0
    assert factors[80:] == sorted(factors[80:], reverse=True)
    assert factors[-1] == pytest.approx(0.05, abs=1e-3)


def test_what_cannot_be_aligned_is_refused(tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with refused("sequences"):
        align_checkpoint(folder, tmp_path / "d", [short], QUICK)
    with refused("none.txt"):
        align_checkpoint(folder, tmp_path / "d", [tmp_path / "none.txt"], QUICK)
    with refused("steps is 0"):
        AlignOptions(steps=0)
    with refused("tpu"):
        choose_device("tpu")
    assert not (tmp_path / "d").exists()
