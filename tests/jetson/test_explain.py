"""Messages and their causes; and that every kind of failure is met, or has a reason why not."""

from __future__ import annotations

import re

import pytest

from selfdraft.jetson.checks import CHECKS, check_named
from selfdraft.jetson.explain import Explanation, explain
from selfdraft.jetson.explanations import EXPLANATIONS
from selfdraft.jetson.kinds import KINDS

ALL = [pytest.param(explanation, id=explanation.name) for explanation in EXPLANATIONS]


def first(text: str) -> str | None:
    matches = explain(text, EXPLANATIONS)
    return matches[0].explanation.name if matches else None


@pytest.mark.parametrize("explanation", ALL)
def test_message_as_people_report_it_is_explained_by_its_own_entry(
    explanation: Explanation,
) -> None:
    matches = explain(f"some line\n{explanation.example}\nlast line", EXPLANATIONS)
    assert [match.explanation.name for match in matches] == [explanation.name]
    assert matches[0].line in explanation.example


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ImportError: No module named tensorrt", "no-tensorrt-module"),
        ("Killed", "killed"),
        ("Killed\nnext line", "killed"),
        ("./run.sh: line 3:  4711 Killed                  python3 build.py", "killed"),
        ("subprocess.CalledProcessError: exit status 137", "killed"),
        ("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", "out-of-memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to", "out-of-memory"),
        ("NvMapMemAllocInternalTagged: 1075072515 error 0x12", "nvmap-error-12"),
        ("expecting library version 8.5.2.2 got 8.4.1.5, please rebuild", "version-tag"),
        ("getPluginCreator could not find plugin: CachedAttention version: 1", "plugin-creator"),
        ("fatal error: cuda.h: No such file or directory", "nvcc-missing"),
        ("/bin/sh: 1: nvcc: not found", "nvcc-missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", "nvcc-missing"),
        ("CUDA error 209: no binary", "no-kernel-image"),
        ("AttributeError: _ARRAY_API not found", "numpy-abi"),
        ("could not resolve host: pypi.jetson-ai-lab.dev", "no-onnxruntime-gpu"),
        ("type object 'BuilderFlag' has no attribute 'INT8'", "builder-flag"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "illegal-address"),
    ],
)
def test_other_wordings_of_known_messages(text: str, name: str) -> None:
    assert first(text) == name


@pytest.mark.parametrize(
    "text", ["", "everything went well", "skilled workers", "cuda error 2000", "killed it at chess"]
)
def test_other_text_is_not_explained(text: str) -> None:
    assert explain(text, EXPLANATIONS) == ()


def test_causes_stand_in_the_order_of_the_text_and_before_harmless_lines() -> None:
    text = (
        "Skipping tactic 3 due to insufficient memory on requested size of 99\n"
        "CUDA error: no kernel image is available for execution on the device\n"
        "No module named 'tensorrt'"
    )
    names = [match.explanation.name for match in explain(text, EXPLANATIONS)]
    assert names == ["no-kernel-image", "no-tensorrt-module", "tactic-skipped"]


def test_line_of_the_text_is_told_without_its_neighbours() -> None:
    (match,) = explain("a\n  No module named 'tensorrt'  \nb", EXPLANATIONS)
    assert match.line == "No module named 'tensorrt'"


@pytest.mark.parametrize("explanation", ALL)
def test_explanations_are_whole(explanation: Explanation) -> None:
    assert explanation.cause and explanation.mend and explanation.title
    for name in explanation.checks:
        assert check_named(name).name == name


def test_names_are_unique() -> None:
    assert len({explanation.name for explanation in EXPLANATIONS}) == len(EXPLANATIONS)


def test_patterns_take_long_logs_in_their_stride() -> None:
    log = ("[TRT] layer timing 0.123 myelin sm_87 opset DLA FMHA " * 4 + "\n") * 500
    assert explain(log, EXPLANATIONS) == ()
    assert all(len(e.pattern) < 400 and re.compile(e.pattern) for e in EXPLANATIONS)


def test_every_kind_of_failure_is_seen_by_a_check_or_has_a_reason() -> None:
    checked = {n for check in CHECKS for n in check.kinds}
    explained = {n for explanation in EXPLANATIONS for n in explanation.kinds}
    assert [kind.number for kind in KINDS] == list(range(1, 34))
    for kind in KINDS:
        assert (kind.number in checked) == (kind.reason is None), kind.title
    assert checked | explained == {kind.number for kind in KINDS} - {31}


def test_more_than_twenty_kinds_are_seen_before_they_happen() -> None:
    assert len({n for check in CHECKS for n in check.kinds}) == 24
