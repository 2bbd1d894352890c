"""Saved caches: going on from one is as if nothing had been saved; others are refused by name."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from selfdraft.errors import BundleError, ConfigError, ResourceError, ToolkitError
from selfdraft.manifest import AttentionPlan, AttentionSpec, FileSpec
from selfdraft.runtime.cache_file import check_target, load_cache, save_cache
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request

PROMPT = (0, *(int(t) for t in np.random.default_rng(6).integers(1, 64, size=330)))
QUESTION = (5, 41, 7)


def turn(loop: DecodeLoop, prompt: tuple[int, ...], *, count: int = 24) -> Any:
    loop.begin({0: Request(prompt_ids=prompt, max_tokens=count)})
    while loop.active:
        loop.step()
    return loop.result(0)


def told(result: Any) -> tuple[Any, ...]:
    """What a record says apart from times."""
    return (result.tokens, result.accepted, result.drafted, result.reused_tokens, result.steps)


def saved_loop(backend: Any, path: Path, **options: Any) -> DecodeLoop:
    """A loop after one turn, saved to ``path``."""
    loop = DecodeLoop(backend, **options)
    turn(loop, PROMPT)
    save_cache(path, loop.slot_cache(0), backend.manifest)
    return loop


def loaded_loop(backend: Any, path: Path, **options: Any) -> DecodeLoop:
    loop = DecodeLoop(backend, **options)
    loop.restore(0, load_cache(path, backend.manifest).slot)
    return loop


@pytest.fixture(scope="module")
def sparse(tiny: ModuleType, copy_model: ModuleType, sparse_model: ModuleType) -> Any:
    return sparse_model.backend(tiny, copy_model)


@pytest.fixture
def saved(sparse: Any, tmp_path: Path) -> Path:
    saved_loop(sparse, tmp_path / "one.cache", drafts=1)
    return tmp_path / "one.cache"


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize(
    ("selector", "kv", "is_sparse"),
    [
        ("mean_std", "fp32", True),
        ("min_max", "int8", True),
        ("infllm_v2", "fp32", True),
        ("mean_std", "fp32", False),
        ("mean_std", "int8", False),
    ],
)
def test_going_on_from_a_file_equals_never_having_saved(
    tiny: ModuleType,
    copy_model: ModuleType,
    sparse_model: ModuleType,
    tmp_path: Path,
    drafts: int,
    selector: str,
    kv: str,
    is_sparse: bool,
) -> None:
    backend = sparse_model.backend(
        tiny, copy_model, selector=selector, kv=kv, sparse=is_sparse, budget=320
    )
    path = tmp_path / "turn.cache"
    going_on = saved_loop(backend, path, drafts=drafts)
    fresh = loaded_loop(backend, path, drafts=drafts)
    assert fresh.tokens(0) == going_on.tokens(0)
    second = (*going_on.tokens(0), *QUESTION)
    assert told(turn(fresh, second)) == told(turn(going_on, second))
    ours, theirs = fresh.slot_cache(0), going_on.slot_cache(0)
    assert ours.lengths == theirs.lengths
    for name, array in theirs.arrays.items():
        np.testing.assert_array_equal(ours.arrays[name], array, err_msg=name)


@pytest.mark.parametrize("drafts", [0, 1])
def test_document_is_paid_for_once(sparse: Any, tmp_path: Path, drafts: int) -> None:
    """Another question about the same text: as computed from scratch, but only the question is."""
    saved_loop(sparse, tmp_path / "text.cache", drafts=drafts)
    loop = loaded_loop(sparse, tmp_path / "text.cache", drafts=drafts)
    asked = turn(loop, (*PROMPT, *QUESTION))
    scratch = turn(DecodeLoop(sparse, drafts=drafts), (*PROMPT, *QUESTION))
    assert asked.tokens == scratch.tokens and scratch.reused_tokens == 0
    assert len(PROMPT) - 1 <= asked.reused_tokens < len(PROMPT) + len(QUESTION)


def test_plain_decoding_takes_a_cache_with_head_rows(sparse: Any, saved: Path) -> None:
    second = (*loaded_loop(sparse, saved, drafts=1).tokens(0), *QUESTION)
    speculative = turn(loaded_loop(sparse, saved, drafts=1), second)
    assert turn(loaded_loop(sparse, saved, drafts=0), second).tokens == speculative.tokens


def test_sparse_prefill_goes_on_as_such(sparse: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"drafts": 1, "prefill_attention": "sparse"}
    going_on = saved_loop(sparse, tmp_path / "s.cache", **options)
    fresh = loaded_loop(sparse, tmp_path / "s.cache", **options)
    second = (*going_on.tokens(0), *QUESTION * 20)
    assert told(turn(fresh, second)) == told(turn(going_on, second))


def test_other_slots_of_a_batch_are_left_alone(sparse: Any, saved: Path) -> None:
    loop = DecodeLoop(sparse, batch=2, drafts=1)
    first = turn(loop, (*QUESTION, 9))
    loop.restore(1, load_cache(saved, sparse.manifest).slot)
    again = turn(loop, (*QUESTION, 9, *first.tokens, 3))
    alone = DecodeLoop(sparse, drafts=1)
    turn(alone, (*QUESTION, 9))
    assert again.tokens == turn(alone, (*QUESTION, 9, *first.tokens, 3)).tokens
    prompt = (*loop.tokens(1), *QUESTION)
    loop.begin({1: Request(prompt_ids=prompt, max_tokens=9)})
    while loop.active:
        loop.step()
    assert loop.result(1).tokens == turn(loaded_loop(sparse, saved), prompt, count=9).tokens


def test_only_the_used_part_is_written(sparse: Any, saved: Path) -> None:
    cache = load_cache(saved, sparse.manifest).slot
    used = cache.cached
    assert cache.arrays["backbone.k_cache_0"].shape[1] == used
    assert cache.arrays["backbone.summary_0"].shape[1] == -(-used // 64)
    states = sum(array.nbytes for array in cache.arrays.values())
    assert states < saved.stat().st_size < states + 8 * len(cache.tokens) + 8192


def test_file_is_a_safetensors_file(saved: Path) -> None:
    tensors = load_file(saved)
    assert tensors["tokens"].dtype == np.int64 and "backbone.k_cache_0" in tensors


def replace_once(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        assert data.count(old) == 1 and len(old) == len(new)
        path.write_bytes(data.replace(old, new))

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (cut, "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"some text of somebody"), "or it is no saved cache"),
        (lambda path: save_file({"a": np.zeros(3)}, path), "is no saved cache"),
        (lambda path: path.unlink(), "does not exist"),
        (replace_once(b"selfdraft.cache/1", b"selfdraft.cache/9"), "has schema selfdraft.cache/9"),
        (replace_once(b'"tokens"', b'"takens"'), "lengths or tokens are missing"),
        (replace_once(b'"cached": "354"', b'"cached": "999"'), "999 rows of 355 tokens"),
    ],
)
def test_what_is_no_sound_cache_is_refused(
    sparse: Any, saved: Path, damage: Callable[[Path], None], part: str
) -> None:
    damage(saved)
    with pytest.raises(ConfigError) as caught:
        load_cache(saved, sparse.manifest)
    assert part in caught.value.problem and caught.value.hint


def test_cache_of_another_bundle_is_refused(sparse: Any, saved: Path) -> None:
    other = FileSpec(bytes=1, sha256="0" * 64)
    manifest = dataclasses.replace(sparse.manifest, files={"weights.safetensors": other})
    with pytest.raises(BundleError, match="another bundle"):
        load_cache(saved, manifest)


def test_cache_of_another_attention_plan_is_refused(sparse: Any, saved: Path) -> None:
    plan = AttentionPlan(layers=(AttentionSpec(),) * 2, mtp=None)
    with pytest.raises(BundleError, match="another attention plan"):
        load_cache(saved, dataclasses.replace(sparse.manifest, attention=plan))


def test_states_of_another_shape_or_kind_are_refused(
    sparse: Any, saved: Path, tiny: ModuleType, copy_model: ModuleType, sparse_model: ModuleType
) -> None:
    slot = load_cache(saved, sparse.manifest).slot
    loop = DecodeLoop(sparse_model.backend(tiny, copy_model, kv="int8"))
    with pytest.raises(BundleError, match=r"lacks: backbone\.k_scale_0"):
        loop.restore(0, slot)
    short = {name: array[:, :-1] for name, array in slot.arrays.items()}
    with pytest.raises(BundleError, match=r"k_cache_0 float(32|64) \[2, 353, 16\]"):
        DecodeLoop(sparse).restore(0, dataclasses.replace(slot, arrays=short))
    codes = {name: array.astype(np.int8) for name, array in slot.arrays.items()}
    with pytest.raises(BundleError, match="k_cache_0 int8"):
        DecodeLoop(sparse).restore(0, dataclasses.replace(slot, arrays=codes))


def test_refused_cache_leaves_the_slot_as_it_was(sparse: Any, saved: Path) -> None:
    loop = DecodeLoop(sparse, drafts=1)
    turn(loop, (1, 2, 3))
    before = loop.tokens(0)
    slot = load_cache(saved, sparse.manifest).slot
    with pytest.raises(BundleError):
        loop.restore(0, dataclasses.replace(slot, arrays={}))
    assert loop.tokens(0) == before


@pytest.mark.parametrize(
    ("saving", "loading", "kind", "part"),
    [
        ({"drafts": 0}, {"drafts": 1}, ConfigError, "no rows of the MTP head"),
        ({}, {"prefill_attention": "sparse"}, ConfigError, "has a dense prefill"),
        ({"prefill_attention": "sparse"}, {}, ConfigError, "has a sparse prefill"),
        ({}, {"context_length": 300}, ResourceError, "has 355 tokens, the context holds 300"),
    ],
)
def test_loop_that_would_go_on_otherwise_refuses(
    sparse: Any,
    tmp_path: Path,
    saving: dict[str, Any],
    loading: dict[str, Any],
    kind: type[ToolkitError],
    part: str,
) -> None:
    path = tmp_path / "x.cache"
    saved_loop(sparse, path, **saving)
    with pytest.raises(kind, match=part) as caught:
        loaded_loop(sparse, path, **loading)
    assert "--" in caught.value.hint


def test_busy_slot_is_neither_saved_nor_replaced(sparse: Any, saved: Path) -> None:
    loop = DecodeLoop(sparse)
    loop.begin({0: Request(prompt_ids=(1, 2), max_tokens=9)})
    with pytest.raises(ConfigError, match="slot 0 is generating"):
        loop.slot_cache(0)
    with pytest.raises(ConfigError, match="slot 0 is generating"):
        loop.restore(0, load_cache(saved, sparse.manifest).slot)


def test_failed_save_leaves_the_older_file(
    sparse: Any, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = saved.read_bytes()
    loop = DecodeLoop(sparse, drafts=1)
    turn(loop, (1, 2, 3))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left"):
        save_cache(saved, loop.slot_cache(0), sparse.manifest)
    assert saved.read_bytes() == older and list(saved.parent.iterdir()) == [saved]


def test_save_replaces_a_cache_but_nothing_else(sparse: Any, saved: Path, tmp_path: Path) -> None:
    loop = loaded_loop(sparse, saved, drafts=1)
    turn(loop, (*loop.tokens(0), *QUESTION))
    save_cache(saved, loop.slot_cache(0), sparse.manifest)
    assert load_cache(saved, sparse.manifest).slot.tokens == loop.tokens(0)
    text = tmp_path / "notes.txt"
    text.write_text(json.dumps({"mine": 1}))
    with pytest.raises(ConfigError, match="is no saved cache"):
        check_target(text)
    with pytest.raises(ConfigError, match="is no folder"):
        check_target(tmp_path / "none" / "x.cache")
