"""What the demo checkpoint promises: it drafts well, answers, and recalls; wrong wiring shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from selfdraft.manifest import MtpSpec
from selfdraft.runtime.generation import Generation, generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.weights import load_tensors

GREEDY = SamplingParams(temperature=0.0)


def _acceptance(backend: Any, prompts: list[list[int]], *, drafts: int = 1) -> float:
    """Share of first drafts accepted over greedy replies."""
    loop = DecodeLoop(backend, drafts=drafts, context_length=512)
    drafted = accepted = 0
    for prompt in prompts:
        loop.reset(0)
        generation = Generation(
            loop, {0: Request(prompt_ids=tuple(prompt), sampling=GREEDY, max_tokens=48)}
        )
        for _ in generation:
            pass
        drafted += generation.result.drafted[0]
        accepted += generation.result.accepted[0]
    return accepted / drafted


def _rewired(demo: Any, **changes: Any) -> ReferenceBackend:
    """The demo under a manifest that wires the MTP head otherwise.

    The gain of the final norm is made uneven, and the LM head and the head's own norm undo that:
    backbone and first drafts compute what they did, but the two taps no longer look alike.
    """
    manifest = demo.bundle.manifest
    wiring: MtpSpec = dataclasses.replace(manifest.model.mtp, **changes)
    changed = dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, mtp=wiring))
    weights = load_tensors(demo.bundle.file(manifest.weights_file))
    gain = np.exp(np.random.default_rng(0).standard_normal(manifest.model.hidden_size))
    for name, factor in (
        ("backbone.norm", gain),
        ("mtp.final_norm", gain),
        ("lm_head.weight", 1 / gain[:, None]),
    ):
        weights[name] = (weights[name] * factor).astype(np.float32)
    embedding = load_file(demo.bundle.file(manifest.embedding_file))["embedding"]
    return ReferenceBackend(changed, weights, embedding)


def test_demo_accepts_most_first_drafts(demo: Any) -> None:
    assert _acceptance(demo.backend, demo.prompts) >= 0.80


def test_early_checkpoint_rejects_often(early: Any) -> None:
    assert 0.35 <= _acceptance(early.backend, early.prompts) <= 0.85


@pytest.mark.parametrize("changes", [{"tap": "post_norm"}, {"concat": "embedding_first"}], ids=str)
def test_wrong_wiring_of_the_demo_is_seen_in_its_acceptance(
    demo: Any, changes: dict[str, str]
) -> None:
    prompts = demo.prompts[:6]
    right = _acceptance(_rewired(demo), prompts)
    assert right == pytest.approx(_acceptance(demo.backend, prompts), abs=0.02)
    assert _acceptance(_rewired(demo, **changes), prompts) < right - 0.05


def test_reference_and_ort_give_the_demo_the_same_words(demo: Any) -> None:
    for prompt in demo.prompts[:4]:
        engine = [e.token for e in generate(demo.backend, prompt, GREEDY, max_tokens=24)]
        oracle = [e.token for e in generate(_rewired(demo), prompt, GREEDY, max_tokens=24)]
        assert engine == oracle


def test_demo_answers_its_showcase(demo: Any) -> None:
    right = 0
    for prompt, words in zip(demo.prompts, demo.keywords, strict=True):
        tokens = [e.token for e in generate(demo.backend, prompt, GREEDY, max_tokens=64)]
        text = demo.tokenizer.decode(tokens)
        right += all(word.lower() in text.lower() for word in words)
    assert right >= 0.7 * len(demo.prompts), f"{right} of {len(demo.prompts)}"


def test_trimmed_draft_vocabulary_keeps_the_output(demo: Any, trimmed: Any) -> None:
    for prompt in demo.prompts[:6]:
        full = [e.token for e in generate(demo.backend, prompt, GREEDY, max_tokens=32)]
        assert [e.token for e in generate(trimmed.backend, prompt, GREEDY, max_tokens=32)] == full
    assert _acceptance(trimmed.backend, demo.prompts[:6]) > 0.3
