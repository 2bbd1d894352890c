"""A manifest whose states are not those of its model or target is refused before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny_model
from support.hybrid import tiny_hybrid
from support.refusals import refused

from selfdraft.errors import BundleError
from selfdraft.manifest import GraphSpec, Manifest, StateSpec, manifest_to_json
from selfdraft.runtime.bundle import open_bundle
from selfdraft.runtime.state_check import check_states

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")


def exported(target: Any, *, hybrid: bool = True) -> Manifest:
    """A manifest with the states that the exporter declares for ``target``; delta nets in layers 0 and 2."""
    from selfdraft.export.graph import graph_ops, graph_spec
    from selfdraft.export.targets import TARGETS

    engine = TARGETS[target]
    model = (tiny_hybrid(tiny_model) if hybrid else tiny_model.backend()).manifest.model
    graphs = {}
    for name in ("backbone", "mtp"):
        ops = graph_ops(name, model, None, kv_dtype=engine.kv_types[0], row_dtype=engine.plain)
        graphs[name] = graph_spec(name, model, ops, candidates=8, engine=engine)
    return dataclasses.replace(tiny_model.manifest(model), target=target, graphs=graphs)


def with_states(manifest: Manifest, change: Callable[[StateSpec], StateSpec | None]) -> Manifest:
    """``change`` of every state; None leaves it out."""

    def changed(graph: GraphSpec) -> GraphSpec:
        states = (change(state) for state in graph.states)
        return dataclasses.replace(graph, states=tuple(s for s in states if s is not None))

    graphs = {name: changed(graph) for name, graph in manifest.graphs.items()}
    return dataclasses.replace(manifest, graphs=graphs)


def with_delta(manifest: Manifest, **changes: Any) -> Manifest:
    assert manifest.model.delta is not None
    delta = dataclasses.replace(manifest.model.delta, **changes)
    return dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, delta=delta))


@pytest.mark.parametrize("target", ["cpu", "orin-jp6", "orin-jp7"])
@pytest.mark.parametrize("hybrid", [True, False])
def test_states_as_exported_are_taken(target: str, hybrid: bool) -> None:
    check_states(exported(target, hybrid=hybrid))


@pytest.mark.parametrize(
    ("target", "state", "told"),
    [
        ("orin-jp6", "backbone.state_len", "written in place, orin-jp6 writes it apart"),
        ("orin-jp7", "backbone.k_cache_1", "written apart, orin-jp7 writes it in place"),
        ("orin-jp7", "mtp.v_cache_0", "written apart, orin-jp7 writes it in place"),
        ("orin-jp6", "backbone.recurrent_2", "written apart, orin-jp6 writes it in place"),
        ("cpu", "backbone.state_len", "written apart, cpu writes it in place"),
    ],
)
def test_state_that_is_written_elsewhere_than_its_target_does_is_refused(
    target: str, state: str, told: str
) -> None:
    def other(found: StateSpec) -> StateSpec:
        return dataclasses.replace(found, aliased=found.aliased != (found.name == state))

    with refused(state, told, error=BundleError):
        check_states(with_states(exported(target), other))


@pytest.mark.parametrize(
    "state", ["backbone.conv_rows_2", "backbone.gate_rows_0", "backbone.state_len"]
)
def test_missing_state_of_a_gated_delta_net_is_named(state: str) -> None:
    lacking = with_states(
        exported("orin-jp6"), lambda found: None if found.name == state else found
    )
    with refused(f"has no state {state}", error=BundleError):
        check_states(lacking)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"key_dim": 96}, "recurrent_0 in the shape ['batch', 3, 6, 5], its model asks for "),
        ({"taps": 9}, "conv_rows_0 in the shape ['batch', 19, 27], its model asks for "),
        ({"num_value_heads": 2}, "its model asks for ['batch', 2, 6, 5]"),
        ({"layers": (0, 1)}, "has no state backbone.conv_rows_1"),
        ({"layers": (0,)}, "a state that its model has not: backbone.conv_rows_2"),
        ({"taps": 0}, "taps is 0, must be at least 2"),
    ],
)
def test_model_that_its_states_do_not_fit_is_refused(changes: dict[str, Any], told: str) -> None:
    with refused("the manifest", told, error=BundleError):
        check_states(with_delta(exported("orin-jp6"), **changes))


def test_bundle_is_refused_for_its_states_before_its_files_are_looked_at(tmp_path: Path) -> None:
    manifest = with_delta(exported("orin-jp6"), taps=9)
    (tmp_path / "manifest.json").write_text(manifest_to_json(manifest), encoding="utf-8")
    with refused("conv_rows_0", "its model asks for", error=BundleError):
        open_bundle(tmp_path)
