"""int4 weights: speculation changes no token, on any processor.

Attention gives a row the same bits among others as alone, sparse attention too. The int4 matrix
products do so on some processors; on others their kernel for one row is another one, and plain
steps are padded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import load_manifest
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

DEMO = Path(__file__).parents[2] / "demo"
BUDGET = 256
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "one_row_kernel": {"exact_rows": False},
    "sparse": {"attention": AttentionOptions(kind="sparse", budget_tokens=BUDGET, local_blocks=2)},
}
"""Exports of the early demo checkpoint, whose drafts are often rejected."""
PROMPT_TOKENS = {"dense": 3, "one_row_kernel": 3, "sparse": BUDGET + 150}


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundle of a kind, exported at its first use."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind) / "bundle"
            export_bundle(
                DEMO / "checkpoint-early", folder, ExportOptions(weights="int4", **KINDS[kind])
            )
            made[kind] = folder
        return made[kind]

    return get


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_steps_let_drafts_change_no_token(
    bundle_of: Callable[[str], Path], kind: str, temperature: float
) -> None:
    session = open_session(bundle_of(kind), EngineOptions(threads=2, bit_exact=True))
    _assert_drafts_change_nothing(session, kind, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_drafts_change_no_token_of_an_int4_bundle_by_default(
    bundle_of: Callable[[str], Path], kind: str, temperature: float
) -> None:
    """Plain steps have two rows where this processor's int4 kernel for one rounds otherwise."""
    assert load_manifest(bundle_of(kind)).precision.exact_rows
    session = open_session(bundle_of(kind), EngineOptions(threads=2))
    _assert_drafts_change_nothing(session, kind, temperature)


def _assert_drafts_change_nothing(session: Session, kind: str, temperature: float) -> None:
    plain, _, read = _replies(session, kind, 0, temperature)
    rejected = 0
    for drafts in (1, 3):
        tokens, count, _ = _replies(session, kind, drafts, temperature)
        assert tokens == plain, f"K = {drafts}"
        rejected += count
    assert rejected > 50
    assert (read < 1) == (kind == "sparse")


def _replies(
    session: Session, kind: str, drafts: int, temperature: float
) -> tuple[list[list[int]], int, float]:
    """Tokens of six replies, rejected drafts in all, and the share of blocks that was read."""
    params = SamplingParams(temperature=temperature, seed=3)
    length = PROMPT_TOKENS[kind]
    loop = session.loop(drafts=drafts, context=length + 80)
    tokens, rejected, read, used = [], 0, 0, 0
    for first in range(20, 200, 30):
        loop.reset(0)
        prompt = tuple(3 + (first + 7 * i + i * i) % 500 for i in range(length))
        request = Request(prompt_ids=prompt, sampling=params, max_tokens=48, ignore_eos=True)
        generation = Generation(loop, {0: request})
        tokens.append([event.token for event in generation])
        result = generation.result
        rejected += sum(result.drafted) - sum(result.accepted)
        read += result.attention.blocks_read
        used += result.attention.blocks_in_use
    return tokens, rejected, read / used if used else 1.0
