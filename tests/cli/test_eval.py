"""``selfdraft eval``: texts that hold their answers, scores of both modes, buckets by position."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sparse_bundle import write_sparse_reciter

from selfdraft.cli.eval_answer import Answerer, score
from selfdraft.cli.eval_cases import Case, Prompt, fitted, renderer
from selfdraft.cli.eval_needle import needle_case
from selfdraft.cli.eval_ruler import TASKS
from selfdraft.cli.eval_run import Cell
from selfdraft.cli.eval_tables import cells_text, record_of
from selfdraft.cli.eval_wording import SHIPPED, Wording, load_wording, random_digits
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.errors import ConfigError


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_reciter(tmp_path_factory.mktemp("eval") / "reciter", context=4096)


@pytest.fixture(scope="module")
def session(reciter: Path) -> Session:
    return open_session(reciter, EngineOptions(backend="reference", drafts=0))


@pytest.fixture(params=SHIPPED)
def wording(request: pytest.FixtureRequest) -> Wording:
    return load_wording(request.param)


def _fitted(case: Case, wording: Wording, session: Session, length: int) -> tuple[Prompt, str]:
    prompt = fitted(case, wording, random.Random(1), renderer(session, {}), length=length)
    return prompt, session.tokenizer.decode(prompt.ids, skip_special=False)


@pytest.mark.parametrize("length", [1500, 3000])
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_needle_stands_at_its_depth_in_a_prompt_of_its_length(
    session: Session, wording: Wording, length: int, depth: float
) -> None:
    case = needle_case(random.Random(3), wording, depth=depth, keys=3)
    prompt, text = _fitted(case, wording, session, length)
    assert length - 150 < len(prompt.ids) <= length
    (answer,) = case.answers
    assert text.count(case.planted[0][1]) == 1 and answer in case.planted[0][1]
    body = text[text.index(case.lead) + len(case.lead) : text.index(case.question)]
    sentence = case.planted[0][1]
    place = body.index(sentence) / max(len(body) - len(sentence), 1)
    assert place == pytest.approx(depth, abs=0.15)


def test_text_before_the_question_does_not_depend_on_it(session: Session, wording: Wording) -> None:
    case = needle_case(random.Random(3), wording, depth=0.4, keys=2)
    prompt, text = _fitted(case, wording, session, 900)
    before = session.tokenizer.decode(prompt.ids[: prompt.text_tokens], skip_special=False)
    assert text.startswith(before)
    assert case.planted[0][1] in before and case.question.strip() not in before
    assert len(text) - len(before) < len(case.question) + 60


def test_facts_of_a_case_differ_in_owner_and_value(wording: Wording) -> None:
    facts = wording.draw_facts(random.Random(0), 8)
    assert len({fact.value for fact in facts}) == len({fact.owner for fact in facts}) == 8


def _text_of(name: str, session: Session, seed: int) -> tuple[Case, str]:
    wording = load_wording("plain")
    case = TASKS[name](random.Random(seed), wording)
    return case, _fitted(case, wording, session, 3000)[1]


@pytest.mark.parametrize("seed", range(3))
def test_multi_value_text_gives_every_answer_once(session: Session, seed: int) -> None:
    case, text = _text_of("multi_value", session, seed)
    name = re.search(r"numbers of (\w+) that", case.question)
    assert name is not None
    assert sorted(re.findall(rf"A number of {name[1]} is (\d+)", text)) == sorted(case.answers)


@pytest.mark.parametrize("seed", range(3))
def test_variables_follow_from_the_assignments_in_order(session: Session, seed: int) -> None:
    case, text = _text_of("variables", session, seed)
    values: dict[str, str] = {}
    for name, number, source in re.findall(r"Set (\w+) to (?:(\d+)|the value of (\w+))\.", text):
        values[name] = number or values[source]
    wanted = re.search(r"whose value is (\d+)", case.question)
    assert wanted is not None
    assert {name for name, value in values.items() if value == wanted[1]} == set(case.answers)
    assert len(values) > len(case.answers), "other chains stand between"


@pytest.mark.parametrize("seed", range(3))
def test_common_words_are_the_most_frequent(session: Session, seed: int) -> None:
    case, text = _text_of("common_words", session, seed)
    counted = Counter(text[: text.index(case.question)].split(case.lead)[1].split())
    common = {word for word, _ in counted.most_common(len(case.answers))}
    assert common == set(case.answers)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [("It is 4071.", 0.5), ("4071, wolf", 1.0), ("40710 wolfs", 0.0), ("A WOLF!", 0.5), ("", 0.0)],
)
def test_answers_count_as_words_of_their_own(reply: str, expected: float) -> None:
    assert score(reply, ["4071", "wolf"]) == expected


def test_answerer_scores_both_modes_over_one_text(session: Session) -> None:
    """The reciter repeats its reply whatever it attends to, so both modes say the same."""
    wording = load_wording("plain")
    case = needle_case(random.Random(0), wording, depth=0.5, keys=1)
    prompt, _ = _fitted(case, wording, session, 900)
    recited = Prompt(ids=prompt.ids, text_tokens=prompt.text_tokens, answers=("Hi", "no"))
    answerer = Answerer(session, length=1000, tokens=6, dense_question=False)
    answers = answerer.answer(recited)
    assert set(answers) == {"dense", "sparse"}
    assert answers["dense"].text == answers["sparse"].text and answers["dense"].score == 0.5
    in_use = sum(-(-(len(prompt.ids) + i) // 64) for i in range(6))
    assert answers["dense"].blocks_read == answers["dense"].blocks_in_use == in_use
    assert answers["sparse"].blocks_read == 6 * 5


def test_digits_are_drawn_for_each_mark() -> None:
    drawn = {random_digits(random.Random(i), "a-####") for i in range(200)}
    assert all(re.fullmatch(r"a-[1-9]\d{3}", text) for text in drawn) and len(drawn) > 150


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"filler": ["The {plaze} is here."]}, "{plaze}, which words lacks"),
        ({"facts": ["{owner} has {value}."]}, "must have owner, attribute, value"),
        ({"owners": []}, "owners is empty"),
        ({"fillers": []}, "did you mean 'filler'"),
    ],
)
def test_wrong_wording_is_named(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    shipped = Path(load_wording.__code__.co_filename).parent / "wordings" / "plain.json"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(json.loads(shipped.read_text()) | change))
    with pytest.raises(ConfigError, match=re.escape(part)):
        load_wording(str(file))


def test_needle_prints_a_grid_and_the_same_figures_as_json(run: Any, reciter: Path) -> None:
    arguments = ["eval", "needle", reciter, "--lengths", "400,600", "--depths", "0.2,0.8"]
    arguments += ["--keys", "1", "--trials", 2, "--tokens", 4]
    record = json.loads(run(*arguments, "--json").stdout)
    assert record["schema"] == "selfdraft.eval/1" and record["kind"] == "needle"
    assert [(c["length"], c["depth"]) for c in record["cells"]] == [
        (400, 0.2), (400, 0.8), (600, 0.2), (600, 0.8)
    ]  # fmt: skip
    assert record["dense"] == record["sparse"] == 0.0 and record["lost_points"] == 0.0
    assert [total["length"] for total in record["by_length"]] == [400, 600]
    assert 0.4 < record["by_length"][1]["share"] < record["by_length"][0]["share"] < 1
    text = run(*arguments).stdout
    assert "depth 0.2" in text and "0/0" in text and "lost points" in text


def test_dense_bundle_is_said_to_have_no_sparse_score(run: Any, endless_bundle: Path) -> None:
    arguments = ("--lengths", 300, "--trials", 1, "--tokens", 2, "--tasks", "single")
    result = run("eval", "ruler", endless_bundle, *arguments)
    assert result.exit_code == 0, result.stderr
    assert "note: every layer of this bundle is dense" in result.stdout
    record = json.loads(run("eval", "ruler", endless_bundle, *arguments, "--json").stdout)
    assert record["sparse"] is None and record["cells"][0]["share"] is None


def test_acceptance_is_counted_by_position(run: Any, reciter: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("xyz" * 300)
    arguments = ["--context", 700, "--bucket", 256, "--trials", 2, "--tokens", 7, "--drafts", 2]
    result = run("eval", "acceptance", reciter, "--text", text, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    buckets = json.loads(result.stdout)["buckets"]
    assert [(b["start"], b["end"]) for b in buckets] == [(0, 256), (256, 512), (512, 700)]
    assert all(b["acceptance"] == [1.0, 1.0] for b in buckets), "the head recites too"
    assert all(b["tokens"] == 12 and b["tokens_per_step"] == 3.0 for b in buckets)
    shares = [b["attention"]["share"] for b in buckets]
    assert shares[0] == 1.0 and shares[0] > shares[1] > shares[2]
    shown = run("eval", "acceptance", reciter, "--text", text, *arguments).stdout
    assert "512–699" in shown and "100.0%" in shown


def test_acceptance_makes_its_own_text(run: Any, reciter: Path) -> None:
    arguments = ("--context", 300, "--trials", 1, "--tokens", 4)
    result = run("eval", "acceptance", reciter, *arguments, "--json")
    assert json.loads(result.stdout)["buckets"][0]["end"] == 300


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["nedle"], 2, "did you mean 'needle'"),
        (["needle", "--context", 100], 2, "--context has no meaning for eval needle"),
        (["ruler", "--depths", "0.5"], 2, "--depths has no meaning for eval ruler"),
        (["acceptance", "--dense-question"], 2, "--dense-question has no meaning"),
        (["acceptance", "--template-arg", "a=1"], 2, "--template-arg has no meaning"),
        (["ruler", "--tasks", "singel"], 2, "did you mean 'single'"),
        (["needle", "--depths", "1.5"], 2, "--depths has 1.5"),
        (["needle", "--lengths", "9000"], 4, "do not fit the context of 4096"),
        (["needle", "--lengths", "20", "--trials", 1], 2, "the question alone has"),
        (["acceptance", "--drafts", 0], 2, "acceptance needs drafts"),
        (["acceptance", "--context", 4096], 4, "do not fit the context of 4096"),
        (["needle", "--wording", "planer"], 2, "wording planer"),
    ],
)
def test_wrong_requests_are_named(
    run: Any, reciter: Path, arguments: list[Any], code: int, part: str
) -> None:
    kind, *options = arguments
    result = run("eval", kind, reciter, *options)
    assert result.exit_code == code, result.stderr
    assert part in result.stderr


def test_rewound_cache_answers_as_a_fresh_one(session: Session) -> None:
    """A long text, its replies, then a shorter text: nothing of the first stays."""
    rng = np.random.default_rng(0)
    long, short = (tuple(rng.integers(97, 120, n).tolist()) for n in (900, 500))
    used = Answerer(session, length=1000, tokens=5, dense_question=False)
    used.answer(Prompt(ids=long, text_tokens=800, answers=("x",)))
    fresh = Answerer(session, length=1000, tokens=5, dense_question=False)
    prompt = Prompt(ids=short, text_tokens=450, answers=("x",))
    assert used.answer(prompt) == fresh.answer(prompt)


@pytest.mark.parametrize(
    ("dense", "sparse", "blocks", "told"),
    [
        (0.9, 0.8, 3, None),
        (0.5, 0.5, 3, None),
        (0.4, 0.4, 3, "dense attention answers 40% itself"),
        (0.9, 0.9, 10, "nothing was left out"),
        (0.0, None, 0, "no sparse score"),
    ],
)
def test_scores_that_say_little_are_told(
    dense: float, sparse: float | None, blocks: int, told: str | None
) -> None:
    cell = Cell(
        task="needle",
        depth=0.5,
        length=1024,
        trials=10,
        prompt_tokens=1000.0,
        dense=dense,
        sparse=sparse,
        blocks_read=blocks,
        blocks_in_use=10 if blocks else 0,
    )
    notes = record_of([cell])["notes"]
    assert len(notes) == (told is not None)
    assert all(f"note: {note}" in cells_text([cell]) for note in notes)
    assert told is None or told in notes[0]
