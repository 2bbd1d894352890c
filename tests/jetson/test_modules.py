"""The module table: complete, consistent with the data sheets' own totals, strict about names."""

from __future__ import annotations

import pytest

from selfdraft.errors import ConfigError
from selfdraft.jetson.modules import Module, module_named, module_with_part, modules

ALL = [pytest.param(module, id=module.name) for module in modules()]


@pytest.mark.parametrize(
    ("name", "gb_s", "tflops", "sms"),
    [
        ("agx-orin-64", 204.8, 42.6, 16),
        ("agx-orin-32", 204.8, 26.7, 14),
        ("orin-nx-16", 102.4, 15.0, 8),
        ("orin-nano-8", 68.3, 10.2, 8),
    ],
)
def test_rates_of_the_data_sheets_follow_from_the_table(
    name: str, gb_s: float, tflops: float, sms: int
) -> None:
    module = module_named(name)
    assert module.bandwidth_gb_s() == pytest.approx(gb_s, rel=2e-3)
    assert module.fp16_tflops() == pytest.approx(tflops, rel=5e-3)
    assert module.num_sms == sms


def test_super_mode_of_the_nano_raises_bandwidth_and_clock() -> None:
    nano = module_named("orin-nano-8")
    fastest = nano.fastest_mode(super_config=True)
    assert (fastest.name, fastest.gpu_mhz) == ("MAXN_SUPER", 1020.0)
    assert nano.bandwidth_gb_s(emc_mhz=fastest.emc_mhz) == pytest.approx(102.4, rel=1e-3)


@pytest.mark.parametrize("module", ALL)
def test_no_mode_exceeds_its_module(module: Module) -> None:
    for mode in module.power_modes:
        gpu = module.super_gpu_mhz if mode.super_config else module.max_gpu_mhz
        emc = module.super_emc_mhz or module.max_emc_mhz
        assert gpu is not None and mode.gpu_mhz <= gpu
        assert mode.emc_mhz <= (emc if mode.super_config else module.max_emc_mhz)
        assert mode.num_tpcs <= module.num_tpcs and mode.num_cpus <= module.num_cpus


@pytest.mark.parametrize("module", ALL)
def test_each_configuration_has_one_default_and_distinct_ids(module: Module) -> None:
    for config in {mode.super_config for mode in module.power_modes}:
        modes = module.modes(super_config=config)
        assert sum(mode.default for mode in modes) == 1
        assert len({mode.id for mode in modes}) == len({mode.name for mode in modes}) == len(modes)


def test_default_mode_of_the_agx_is_slow() -> None:
    mode = module_named("agx-orin-64").default_mode()
    assert (mode.name, mode.gpu_mhz, mode.num_tpcs) == ("MODE_30W", 612.0, 4)


def test_same_id_means_other_modes_on_other_modules() -> None:
    assert module_named("agx-orin-64").modes(super_config=False)[0].name == "MAXN"
    assert module_named("orin-nano-8").modes(super_config=False)[0].name == "15W"


def test_module_without_super_falls_back_to_its_plain_modes() -> None:
    agx = module_named("agx-orin-64")
    assert agx.modes(super_config=True) == agx.modes(super_config=False)


def test_part_numbers_are_unique_and_known() -> None:
    parts = [part for module in modules() for part in module.part_numbers]
    assert len(parts) == len(set(parts))
    assert module_with_part("p3767-0005") is module_named("orin-nano-8")
    assert module_with_part("p3668-0001") is None


def test_unknown_names_tell_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'agx-orin-64'") as error:
        module_named("agx-orin64")
    assert "orin-nano-8" in error.value.hint
    with pytest.raises(ConfigError, match="no power mode 'MODE_60W'") as error:
        module_named("agx-orin-64").mode("MODE_60W")
    assert "MODE_30W" in error.value.hint
