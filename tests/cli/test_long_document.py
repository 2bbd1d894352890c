"""A document of 32K tokens on a random sparse bundle, as a user reads one: memory, cache, audit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sparse_bundle import export_sparse

from selfdraft.runtime.prefill import WEIGHT_BYTES

pytest.importorskip("torch", reason="the exporter needs torch: pip install 'selfdraft[export]'")

pytestmark = pytest.mark.slow

TOKENS = 32_768
CHUNK = 1024
"""Rows whose weights would take twice ``WEIGHT_BYTES`` at the end of the document."""
BUDGET = 2048


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_sparse(
        tmp_path_factory.mktemp("long"), context=36_864, budget_tokens=BUDGET, local_blocks=8
    )


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every character is a token of the test tokenizer."""
    file = tmp_path_factory.mktemp("text") / "book.txt"
    sentence = "the quick brown fox jumps over the lazy dog, again and again; "
    file.write_text((sentence * (TOKENS // len(sentence) + 1))[: TOKENS - 8], encoding="utf-8")
    return file


def generate(bundle: Path, prompt: str, *options: object, env: dict[str, str]) -> dict[str, Any]:
    """The record of a run in a process of its own, whose peak memory is its own."""
    command = [sys.executable, "-m", "selfdraft", "generate", str(bundle), "-", "--raw", "--json"]
    command += ["--backend", "ort", "--drafts", "1", "--max-tokens", "8", *map(str, options)]
    done = subprocess.run(
        command, input=prompt, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_document_is_read_in_bounded_memory_and_its_cache_gives_the_same_reply(
    bundle: Path, document: Path, tmp_path: Path, process_environment: dict[str, str]
) -> None:
    env = process_environment
    text, cache = document.read_text(encoding="utf-8"), tmp_path / "book.cache"
    short = generate(bundle, text[:300], "--chunk", CHUNK, env=env)
    whole = generate(bundle, text, "--chunk", CHUNK, "--save-cache", cache, env=env)
    assert whole["prompt_tokens"] > TOKENS - 64 and whole["reused_tokens"] == 0
    assert whole["attention"]["mode"] == "sparse" and whole["attention"]["share"] < 0.15
    # Scores, biased scores and weights of a chunk, the bias of its rows, buffers of other sizes before.
    more = whole["peak_rss_bytes"] - short["peak_rss_bytes"]
    assert more <= 5.5 * WEIGHT_BYTES + whole["state_bytes"], more / WEIGHT_BYTES
    again = generate(bundle, text, "--load-cache", cache, env=env)
    assert again["reused_tokens"] == whole["prompt_tokens"] - 1
    assert again["tokens"] == whole["tokens"]


def test_audit_reports_the_error_of_a_sparse_prefill(
    run: Any, bundle: Path, document: Path
) -> None:
    options = ("--text", document, "--rows", 3, "--backend", "ort", "--json")
    result = run("audit", bundle, *options)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["context"] > TOKENS - 64 and report["active"]
    for layer in report["layers"]:
        assert layer["blocks_read"] == 3 * BUDGET // 64
    # The first layer's keys and values come from the embedding alone.
    errors = [layer["prefill_error"] for layer in report["layers"]]
    assert errors[0] < 1e-6 < errors[1] < 1.0
