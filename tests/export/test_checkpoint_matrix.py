"""Every family with and without a prefix, with a tied or an own head, and with what the config says of MTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.against_checkpoint import compare
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.bundle import export_bundle
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.describe import describe_checkpoint
from selfdraft.export.families import ModelPlan, read_model
from selfdraft.export.options import ExportOptions
from selfdraft.runtime.reference import ReferenceBackend

HEADS = {
    "mimo": "mimo",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "llama": "qwen",
    "minicpm": "deepseek",
    "glm4": "deepseek",
    "glm_ocr": "deepseek",
}
KEYS = {
    "mimo": "num_nextn_predict_layers",
    "qwen": "mtp_num_hidden_layers",
    "deepseek": "num_nextn_predict_layers",
}
FIRST_TENSORS = {
    "mimo": "mtp_layers.0.token_layernorm.weight",
    "qwen": "mtp.pre_fc_norm_embedding.weight",
    "deepseek": "layers.2.enorm.weight",
}
PREFIXES = ("", "model.language_model.", "language_model.")

pytestmark = [
    pytest.mark.parametrize("family", HEADS),
    pytest.mark.parametrize("prefix", PREFIXES),
    pytest.mark.parametrize("tied", [False, True]),
]


def written(folder: Path, family: Any, prefix: str, *, tied: bool, **options: Any) -> Path:
    chosen: dict[str, Any] = {"mtp": HEADS[family], **options}
    return write_checkpoint(folder, family, prefix=prefix, tied=tied, seed=4, **chosen)


def plan_of(folder: Path) -> ModelPlan:
    return read_model(Checkpoint.open(folder))


def refused_for_scalings(folder: Path, family: str, *, tied: bool) -> bool:
    """MiniCPM's factor of the logits would have to be in a tied table, or in what the head reads."""
    if (family, tied) != ("minicpm", True):
        return False
    with refused("MTP head on a tied LM head with scalings"):
        plan_of(folder)
    return True


def test_prefix_changes_nothing_but_names(tmp_path, family, prefix, tied) -> None:
    folder = written(tmp_path / "a", family, prefix, tied=tied)
    if refused_for_scalings(folder, family, tied=tied):
        return
    plan = plan_of(folder)
    plain = plan_of(written(tmp_path / "b", family, "", tied=tied))
    assert (plan.spec, plan.rules) == (plain.spec, plain.rules)
    assert plan.spec.tied_head is tied and plan.spec.mtp is not None
    assert {r.target for r in plan.rules if r.target == "lm_head.weight"} == (
        set() if tied else {"lm_head.weight"}
    )


def test_head_without_a_key_is_used_with_a_note(tmp_path, family, prefix, tied) -> None:
    silent = {KEYS[HEADS[family]]: ...}
    folder = written(tmp_path / "c", family, prefix, tied=tied, config=silent)
    if refused_for_scalings(folder, family, tied=tied):
        return
    plan = plan_of(folder)
    assert plan.spec == plan_of(written(tmp_path / "d", family, prefix, tied=tied)).spec
    assert len([note for note in plan.notes if "though no config key asks" in note]) == 1
    mtp = describe_checkpoint(folder)["mtp"]
    assert mtp["found"] is True and "no config key asks for it" in mtp["why"]


def test_key_without_tensors_is_an_error_that_names_one(tmp_path, family, prefix, tied) -> None:
    naming = HEADS[family]
    folder = written(tmp_path / "c", family, prefix, tied=tied, mtp=None, config={KEYS[naming]: 1})
    with refused(f"{KEYS[naming]} = 1", FIRST_TENSORS[naming]):
        plan_of(folder)
    facts = describe_checkpoint(folder)
    assert facts["mtp"]["found"] is None and f"{KEYS[naming]} = 1" in facts["mtp"]["why"]


@pytest.mark.slow
def test_bundle_computes_what_the_checkpoint_says(
    tmp_path, fake_graphs, family, prefix, tied
) -> None:
    source = written(tmp_path / "c", family, prefix, tied=tied, heads=6, layers=4)
    if refused_for_scalings(source, family, tied=tied):
        return
    export_bundle(source, tmp_path / "bundle", ExportOptions())
    backend = ReferenceBackend.from_bundle(tmp_path / "bundle")
    compare(backend, source, relative=2e-7 if family == "minicpm" else 1e-11)
