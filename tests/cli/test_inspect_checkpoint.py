"""``selfdraft inspect`` on a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoints import checkpoint_config, random_tensors, write_checkpoint
from support.packings import CONFIGS, pack_checkpoint

MTP_KEY = {"num_nextn_predict_layers": 1}


def facts_of(run: Any, folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run("inspect", folder, "--json").stdout)
    return facts


def test_family_geometry_and_head_are_told(run: Any, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", dtype="BF16")
    facts = facts_of(run, folder)
    assert (facts["model"]["family"], facts["model"]["num_layers"]) == ("mimo", 2)
    assert facts["mtp"]["found"] and "num_nextn_predict_layers = 1" in facts["mtp"]["why"]
    stored = (folder / "model.safetensors").stat().st_size
    assert sum(facts["bytes_by_part"].values()) == facts["bytes"] < stored
    assert list(facts["bytes_by_type"]) == ["BF16"]
    text = run("inspect", folder).stdout
    assert "4/2 heads of 16" in text and "engines disagree" in text and "hidden_first" in text


def test_missing_head_is_told_with_the_reason(run: Any, tmp_path: Path) -> None:
    plain = facts_of(run, write_checkpoint(tmp_path / "a", "qwen3", mtp=None))
    assert plain["mtp"] == {
        "found": False,
        "why": "no tensors of a known naming, and no config key asks for it",
    }
    promised = write_checkpoint(tmp_path / "b", "qwen3", mtp=None, config=MTP_KEY)
    facts = facts_of(run, promised)
    assert facts["mtp"]["found"] is None and "= 1" in facts["mtp"]["why"]
    assert "mtp.pre_fc_norm_embedding.weight" in facts["refused"]["problem"]
    assert "export would refuse" in run("inspect", promised).stdout
    silent = facts_of(
        run, write_checkpoint(tmp_path / "c", config={"num_nextn_predict_layers": ...})
    )
    assert silent["mtp"]["found"] and "no config key" in silent["mtp"]["why"]


def test_what_export_would_write_is_told(run: Any, tmp_path: Path) -> None:
    sparse = {
        "kernel_size": 32,
        "kernel_stride": 16,
        "init_blocks": 1,
        "block_size": 64,
        "window_size": 2048,
        "topk": 64,
    }
    folder = write_checkpoint(tmp_path / "c", "minicpm", mtp=None, config={"sparse_config": sparse})
    export = facts_of(run, folder)["export"]
    assert export["default"]["weights"] == "fp32" and export["int4"]["weights"] == "int4"
    assert export["int4"]["disk_bytes_at_most"] < export["default"]["disk_bytes_at_most"]
    assert export["default"]["selectors"] == ["infllm_v2"]
    odd = write_checkpoint(tmp_path / "d", "llama", intermediate=72)
    assert "72" in facts_of(run, odd)["export"]["int4"]["refused"]


def test_packed_checkpoint_and_other_towers_are_told(run: Any, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2}
    sizes |= {"vocab": 288, "head_dim": 16, "intermediate": 96, "context": 512}
    settings = checkpoint_config("llama", mtp="mimo", tied=False, **sizes)
    tensors = random_tensors(settings, "llama", mtp="mimo")
    packed, _ = pack_checkpoint(tensors, "gptq", act_order=True)
    folder = write_checkpoint(
        tmp_path / "c",
        "llama",
        drop=tuple(name for name in tensors if name not in packed),
        extra=packed,
        config={"quantization_config": CONFIGS["gptq"]},
    )
    facts = facts_of(run, folder)
    assert facts["packed"] == {
        "method": "gptq",
        "linears": 14,
        "groups": [32],
        "act_order": True,
    }
    assert "gptq: 14 linears in groups of 32, act-order" in run("inspect", folder).stdout
    tower = {"model.visual.w": np.ones((4, 4), dtype=np.float32)}
    inner = write_checkpoint(tmp_path / "d", "qwen3", prefix="model.language_model.", extra=tower)
    assert "left out: model.visual.*" in run("inspect", inner).stdout


def test_folder_that_is_neither_is_refused(run: Any, tmp_path: Path) -> None:
    done = run("inspect", tmp_path)
    assert done.exit_code == 3 and "is neither bundle nor checkpoint" in done.stderr
