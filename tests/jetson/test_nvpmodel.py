"""Power modes: the tool's answer, its state file, its configuration; names, never numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_tree import nvpmodel_conf, write_tree

from selfdraft.jetson.modules import module_named
from selfdraft.jetson.nvpmodel import (
    CONFIG_PATH,
    QUERY,
    STATUS_PATH,
    parse_configuration,
    parse_query,
    parse_status,
    read_power,
)


@pytest.mark.parametrize(
    ("text", "mode", "mode_id", "fan"),
    [
        ("NV Power Mode: MODE_30W\n2\n", "MODE_30W", 2, None),
        ("NV Power Mode: MAXN\n0", "MAXN", 0, None),
        ("NV Power Mode: MAXN_SUPER\n2", "MAXN_SUPER", 2, None),
        ("NV Power Mode: 25W\n1", "25W", 1, None),
        ("NV Fan Mode:quiet\nNV Power Mode: MODE_15W_6CORE\n2", "MODE_15W_6CORE", 2, "quiet"),
    ],
)
def test_answers_of_the_tool(text: str, mode: str, mode_id: int, fan: str | None) -> None:
    found = parse_query(text)
    assert (found.mode, found.mode_id, found.fan, found.error) == (mode, mode_id, fan, None)


def test_failure_of_the_tool_is_kept() -> None:
    found = parse_query("NVPM ERROR: request for bad power mode 2")
    assert found.mode is None and found.error == "request for bad power mode 2"


def test_state_file() -> None:
    assert parse_status("pmode:0002 fmode:fan_mode_quiet") == 2
    assert parse_status("nothing") is None


@pytest.mark.parametrize("name", ["agx-orin-64", "orin-nx-16", "orin-nano-8"])
@pytest.mark.parametrize("super_config", [False, True])
def test_configuration_round_trip_of_every_mode(name: str, super_config: bool) -> None:
    modes = module_named(name).modes(super_config=super_config)
    found = parse_configuration(nvpmodel_conf(modes))
    assert [(m.id, m.name, m.num_cpus, m.gpu_mhz, m.num_tpcs) for m in found.modes] == [
        (m.id, m.name, m.num_cpus, None if "MAXN" in m.name else m.gpu_mhz, m.num_tpcs)
        for m in modes
    ]
    assert found.default_id == next(m.id for m in modes if m.default)


@pytest.mark.parametrize("cap", ["0", "-1"])
def test_cap_of_zero_or_minus_one_is_none(cap: str) -> None:
    text = f"< POWER_MODEL ID=0 NAME=MAXN >\nEMC MAX_FREQ {cap}\nGPU MAX_FREQ {cap}\n"
    (mode,) = parse_configuration(text).modes
    assert mode.emc_mhz is None and mode.gpu_mhz is None


def test_mode_is_named_by_this_devices_configuration(tmp_path: Path) -> None:
    modes = module_named("orin-nano-8").modes(super_config=True)
    system = write_tree(
        tmp_path, {CONFIG_PATH: nvpmodel_conf(modes), STATUS_PATH: "pmode:0002 fmode:quiet"}
    )
    power = read_power(system)
    assert (power.mode, power.mode_id, power.is_maxn) == ("MAXN_SUPER", 2, True)
    assert power.maxn is not None and power.maxn.id == 2


def test_tool_is_asked_where_the_configuration_does_not_know_the_id(tmp_path: Path) -> None:
    system = write_tree(
        tmp_path,
        {STATUS_PATH: "pmode:0002 fmode:quiet"},
        outputs={QUERY: "NV Power Mode: MODE_30W\n2\n"},
    )
    power = read_power(system)
    assert (power.mode, power.mode_id, power.is_maxn) == ("MODE_30W", 2, False)


def test_mode_stays_unknown_rather_than_guessed_from_its_id(tmp_path: Path) -> None:
    power = read_power(write_tree(tmp_path, {STATUS_PATH: "pmode:0000 fmode:quiet"}))
    assert (power.mode, power.mode_id, power.is_maxn) == (None, 0, None)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="<> POWER_MODEL ID=NAME0129\n-CPU_ONLINEGPUMAX_FREQDEFAULT", max_size=300))
def test_damaged_configurations_never_raise(text: str) -> None:
    parse_configuration(text)
    parse_query(text)
    parse_status(text)
