"""int4 weights: exact rows need no padding; without them ``--bit-exact`` makes steps alike.

Sparse bundles among them: the rows of a step sum over lists of blocks of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import load_manifest
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture(scope="module", params=[None, False], ids=["exact_rows", "one_row_kernel"])
def int4_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "bundle"
    options = ExportOptions(weights="int4", exact_rows=request.param)
    export_bundle(DEMO / "checkpoint-early", folder, options)
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token_of_an_int4_bundle(int4_bundle: Path, temperature: float) -> None:
    exact_rows = load_manifest(int4_bundle).precision.exact_rows
    session = open_session(int4_bundle, EngineOptions(threads=2, bit_exact=not exact_rows))
    params = SamplingParams(temperature=temperature, seed=3)
    replies: dict[int, list[Any]] = {}
    rejected = 0
    for drafts in (0, 1, 3):
        loop = session.loop(drafts=drafts, context=160)
        replies[drafts] = []
        for first in range(20, 260, 30):
            loop.reset(0)
            request = Request(
                prompt_ids=(1, first, first + 1), sampling=params, max_tokens=64, ignore_eos=True
            )
            generation = Generation(loop, {0: request})
            replies[drafts].append([event.token for event in generation])
            rejected += sum(generation.result.drafted) - sum(generation.result.accepted)
    assert replies[1] == replies[0] and replies[3] == replies[0]
    assert rejected > 100


@pytest.fixture(scope="module")
def sparse_int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse-int4") / "bundle"
    attention = AttentionOptions(kind="sparse", budget_tokens=256, local_blocks=2)
    export_bundle(
        DEMO / "checkpoint-early", folder, ExportOptions(weights="int4", attention=attention)
    )
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token_of_a_sparse_int4_bundle(
    sparse_int4: Path, temperature: float
) -> None:
    assert load_manifest(sparse_int4).precision.exact_rows
    session = open_session(sparse_int4, EngineOptions(threads=2))
    params = SamplingParams(temperature=temperature, seed=5)
    replies: dict[int, list[Any]] = {}
    rejected = blocks_left_out = 0
    for drafts in (0, 1, 2, 4):
        loop = session.loop(drafts=drafts, context=600)
        replies[drafts] = []
        for first in range(20, 200, 30):
            loop.reset(0)
            prompt = tuple(3 + (first + 7 * i + i * i) % 500 for i in range(500))
            request = Request(prompt_ids=prompt, sampling=params, max_tokens=48, ignore_eos=True)
            generation = Generation(loop, {0: request})
            replies[drafts].append([event.token for event in generation])
            rejected += sum(generation.result.drafted) - sum(generation.result.accepted)
            attention = generation.result.attention
            assert attention is not None
            blocks_left_out += attention.blocks_in_use - attention.blocks_read
    assert all(replies[drafts] == replies[0] for drafts in replies)
    assert rejected > 100 and blocks_left_out > 0
