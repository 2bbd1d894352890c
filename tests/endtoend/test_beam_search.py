"""Beam search on the demo finds what transformers finds with the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfdraft.runtime.beam_search import BeamOptions, beam_search

DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"
NUM_PROMPTS = 20


@pytest.fixture(scope="module")
def backbone() -> Any:
    """The demo's backbone as transformers runs it, in fp32."""
    torch = pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    transformers = pytest.importorskip(
        "transformers", reason="the other beam search: pip install 'selfdraft[bench]'"
    )
    config = json.loads((DEMO / "config.json").read_text())
    # The layout is that of Qwen2; transformers knows no model type "mimo".
    for name in ("model_type", "architectures", "torch_dtype", "num_nextn_predict_layers"):
        config.pop(name)
    model = transformers.Qwen2ForCausalLM.from_pretrained(
        DEMO, config=transformers.Qwen2Config(**config), dtype=torch.float32
    )
    return model.eval()


def _theirs(model: Any, prompt: list[int], options: BeamOptions, max_tokens: int) -> Any:
    import torch

    ids = torch.tensor([prompt])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=options.num_beams,
        num_return_sequences=options.num_beams,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        max_new_tokens=max_tokens,
        do_sample=False,
        temperature=None,
        top_k=None,
        top_p=None,
        output_scores=True,
        return_dict_in_generate=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        BeamOptions(num_beams=4),
        BeamOptions(num_beams=3, length_penalty=2.0, early_stopping=True),
        BeamOptions(num_beams=4, length_penalty=-0.5),
        BeamOptions(num_beams=2, length_penalty=0.0, early_stopping="never"),
    ],
    ids=["plain", "long, early", "short", "never early"],
)
def test_beams_and_scores_are_those_of_transformers(
    demo: Any, backbone: Any, options: BeamOptions
) -> None:
    # The showcase prompts, and their openings, whose continuations are less certain.
    prompts = [*demo.prompts[:14], *(prompt[:5] for prompt in demo.prompts[:6])]
    assert len(prompts) == NUM_PROMPTS
    eos = demo.bundle.manifest.text.eos_ids
    lengths = set()
    for prompt in prompts:
        ours = beam_search(demo.backend, prompt, options, max_tokens=24)
        theirs = _theirs(backbone, prompt, options, 24)
        sequences = [_cut(row[len(prompt) :], eos) for row in theirs.sequences.tolist()]
        assert [list(beam.tokens) for beam in ours.beams] == sequences
        np.testing.assert_allclose(
            [beam.score for beam in ours.beams], theirs.sequences_scores.numpy(), atol=1e-3
        )
        lengths |= {len(tokens) for tokens in sequences}
    assert len(lengths) > 3


def _cut(tokens: list[int], eos: tuple[int, ...]) -> list[int]:
    """Without the padding behind the end token."""
    end = next((i for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[: end + 1]
