"""The speed model against published figures: what the fit must reach, and that it is not bent."""

from __future__ import annotations

import dataclasses

import pytest

from selfdraft.jetson.planner import calibration
from selfdraft.jetson.planner.calibration import (
    Row,
    fit,
    fitted,
    leave_one_out,
    mean_error,
    predict,
    published,
    speculative_ratio,
)

ISSUE = {
    ("Qwen3-0.6B", 162.5),
    ("Qwen3-1.7B", 89.5),
    ("Qwen3-8B", 30.6),
    ("Llama-3.2-3B", 52.6),
    ("Llama-3.1-8B", 28.1),
    ("Llama-2-7B", 47.0),
    ("Llama-3.2-3B", 25.6),
    ("Qwen3-1.7B", 32.3),
    ("Qwen3.5-0.8B", 146.0),
    ("Qwen3.5-9B", 28.0),
}


def test_the_table_holds_every_published_figure() -> None:
    table = published()
    assert {(row.model, row.tok_per_s) for row in table.decode} == ISSUE
    assert [(r.plain_tok_per_s, r.tok_per_s, r.drafts) for r in table.speculative] == [
        (146.0, 130.7, 3),
        (28.0, 39.8, 3),
    ]
    assert table.prefill.tok_per_s == 1480


def test_leave_one_out_error_is_within_twelve_per_cent() -> None:
    predictions = leave_one_out(published())
    assert len(predictions) == len(ISSUE)
    assert mean_error(predictions) <= 0.12


def test_every_row_with_a_stated_mode_is_predicted_within_ten_per_cent() -> None:
    stated = [p for p in leave_one_out(published()) if p.row.mode_stated]
    assert len(stated) == 9 and max(abs(p.error) for p in stated) <= 0.10


def test_a_row_is_left_out_of_the_fit_that_predicts_it() -> None:
    table = published()
    row = table.decode[0]
    bent = dataclasses.replace(row, tok_per_s=row.tok_per_s / 3)
    other = dataclasses.replace(table, decode=(bent, *table.decode[1:]))
    assert leave_one_out(other)[0].tok_per_s == pytest.approx(leave_one_out(table)[0].tok_per_s)
    assert fit(other).efficiencies != fit(table).efficiencies


def test_rows_without_a_stated_mode_are_never_fitted() -> None:
    table = published()
    unstated = [row for row in table.decode if not row.mode_stated]
    without = dataclasses.replace(table, decode=tuple(r for r in table.decode if r.mode_stated))
    assert len(unstated) == 1 and unstated[0].device == "orin-nano-8"
    assert fit(without) == fit(table)


def test_speculation_is_predicted_within_fifteen_per_cent_and_on_the_right_side() -> None:
    table = published()
    for row in table.speculative:
        ratio = speculative_ratio(table, fitted(), row)
        assert abs(ratio / row.ratio - 1) <= 0.15
        assert (ratio > 1) == (row.ratio > 1)


def test_speculation_is_predicted_by_a_fit_that_saw_neither_model() -> None:
    table = published()
    seen = {row.model for row in table.speculative}
    other = dataclasses.replace(table, decode=tuple(r for r in table.decode if r.model not in seen))
    for row in table.speculative:
        assert abs(speculative_ratio(table, fit(other), row) / row.ratio - 1) <= 0.15


def test_figures_that_were_never_fitted_are_met_within_ten_per_cent() -> None:
    table = published()
    errors = [abs(predict(table, fitted(), row).error) for row in table.checks]
    assert len(errors) == 10 and max(errors) <= 0.10
    assert sum(errors) / len(errors) <= 0.05


def test_unseen_figures_of_the_fitted_framework_on_agx_are_met_within_five_per_cent() -> None:
    table = published()
    own = [r for r in table.checks if (r.framework, r.device) == ("Edge-LLM", "agx-orin-64")]
    assert len(own) == 2
    assert max(abs(predict(table, fitted(), row).error) for row in own) <= 0.05


def test_the_parameters_are_physical() -> None:
    own = fitted().efficiencies
    assert 0.75 < own.bandwidth < 0.90, "what long reads reach on an Orin"
    assert 20 < own.layer_us < 100
    assert 0.2 < own.tensor < 0.8
    assert set(fitted().frameworks) == {"Edge-LLM", "vLLM"}
    assert fitted().frameworks["Edge-LLM"] == 1 < fitted().frameworks["vLLM"] < 1.4


def test_a_framework_with_one_row_counts_as_the_reference() -> None:
    assert fitted().of("MLC") == fitted().of("Edge-LLM") == fitted().of("another")


def test_the_single_figures_are_reproduced() -> None:
    table = published()
    low = predict(table, fitted(), table.low_power)
    assert low.tok_per_s == pytest.approx(19.0, rel=1e-6)
    assert table.low_power.mode == "MODE_30W"


def test_prefill_meets_the_figure_it_was_fitted_to() -> None:
    from selfdraft.jetson.modules import module_named
    from selfdraft.jetson.planner.reading import dense_attention
    from selfdraft.jetson.planner.speed import Model, clocks_of, prefill_ms
    from selfdraft.jetson.planner.storage import device_storage

    geometry = published().geometry("Qwen3-8B")
    model = Model(
        geometry=geometry,
        storage=device_storage(geometry, weights="int4", head="fp16"),
        attention=dense_attention(geometry, kv="fp16"),
    )
    module = module_named("agx-orin-64")
    took = prefill_ms(
        model,
        clocks_of(module, module.mode("MAXN")),
        fitted().of("Edge-LLM"),
        length=2048,
        chunk=2048,
    )
    assert 2048e3 / took == pytest.approx(1480, rel=1e-3)


@pytest.mark.parametrize("context", [32, 512])
def test_little_hangs_on_the_context_taken_where_none_is_stated(monkeypatch, context) -> None:
    monkeypatch.setattr(calibration, "UNSTATED_CONTEXT", context)
    assert mean_error(leave_one_out(published())) <= 0.12


def test_an_error_is_predicted_by_measured() -> None:
    row = Row(model="Qwen3-8B", tok_per_s=10.0, framework="Edge-LLM")
    assert calibration.Prediction(row=row, tok_per_s=12.0).error == pytest.approx(0.2)
