"""Backbones of bundles against transformers' models, on random weights in the published layout.

The MTP heads, which transformers drops, are compared in test_bundle_against_checkpoint.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_tokenizer

from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.runtime.backend import Step
from selfdraft.runtime.reference import ReferenceBackend

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (dev)")

MOST = 1e-4
"""Largest difference of a logit, fp32 against fp64."""
LENGTH = 48
COMMON: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 60,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.4 * i for i in range(8)],
    "original_max_position_embeddings": 32,
}
MINICPM = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 20}
GRANITE = {
    "embedding_multiplier": 12,
    "residual_multiplier": 1.4 / 2,  # scale_depth / sqrt(4 layers)
    "logits_scaling": 60 / 20,  # hidden / dim_model_base
    "attention_multiplier": 16**-0.5,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_group_of_3": ("Qwen2", {}),
    "qwen2_tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3_group_of_5": ("Qwen3", {"num_attention_heads": 5, "num_key_value_heads": 1}),
    "llama3_rope": ("Llama", {"rope_parameters": LLAMA3, "num_attention_heads": 10}),
    "llama_longrope": ("Llama", {"rope_parameters": LONGROPE}),
    "glm4_bias": ("Glm4", {"attention_bias": True}),
    "glm4_whole_rotary": ("Glm4", {"partial_rotary_factor": 1.0, "attention_bias": False}),
    "minicpm": ("Granite", GRANITE),
    "minicpm_tied_longrope": (
        "Granite",
        GRANITE | {"tie_word_embeddings": True, "rope_parameters": LONGROPE},
    ),
}


def published(folder: Path, case: str) -> Any:
    """Transformers' model with random weights, saved as its checkpoints are published."""
    name, changes = CASES[case]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**COMMON | changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            size = 0.4 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
            size = 0.5 if "embed_tokens" in key else size
            parameter.normal_(0.0, size)
            if "norm" in key:
                parameter.add_(1.0)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if name == "Granite":
        _make_minicpm(folder)
    return model


def _make_minicpm(folder: Path) -> None:
    """The same arithmetic under MiniCPM's keys; transformers 5 has no class for it."""
    config = json.loads((folder / "config.json").read_text())
    for key in GRANITE:
        del config[key]
    config |= MINICPM | {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_bundle_are_those_of_transformers(tmp_path, fake_graphs, case) -> None:
    model = published(tmp_path / "c", case)
    ids = np.random.default_rng(7).integers(0, 256, (1, LENGTH))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits[0].numpy()
    export_bundle(tmp_path / "c", tmp_path / "bundle", ExportOptions())
    backend = ReferenceBackend.from_bundle(tmp_path / "bundle")
    states = backend.allocate(batch=1, capacity=128)
    one = np.ones(1, dtype=np.int64)
    step = Step(
        past_len=one * 0, row_count=one * LENGTH, attend_all=one, row_index=np.arange(LENGTH)[None]
    )
    found = backend.run_backbone(states, step, ids).logits[0]
    assert np.abs(expected).max() > 0.5
    assert np.abs(found - expected).max() <= MOST
