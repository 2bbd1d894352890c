"""``--bit-exact`` on int4 weights: plain and speculative decoding run the same padded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture(scope="module")
def int4_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "bundle"
    export_bundle(DEMO / "checkpoint-early", folder, ExportOptions(weights="int4"))
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token_of_an_int4_bundle(int4_bundle: Path, temperature: float) -> None:
    session = open_session(int4_bundle, EngineOptions(threads=2, bit_exact=True))
    assert not session.bundle.manifest.precision.exact_rows
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
