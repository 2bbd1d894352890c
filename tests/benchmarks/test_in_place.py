"""The profile of decode steps covers every graph that ran, and finds no copy of a state."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import in_place
from benchmarks.artifacts import Artifacts


@pytest.mark.parametrize("drafts", [0, 1])
def test_decode_steps_leave_states_where_they_are(
    tiny: Artifacts, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "artifacts", lambda _: tiny)
    (record,) = in_place.profile_steps(argparse.Namespace(threads=1), drafts=drafts)
    assert record["copies"] == []
    assert set(record["time_by_op"]) == ({"backbone", "mtp"} if drafts else {"backbone"})
    assert record["threshold_bytes"] == 65_536 * 2 * 32 * 4 // 4
