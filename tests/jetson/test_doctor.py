"""The doctor: every check in trouble and well, six boards as recorded, and what results mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.changed import changed
from support.fake_boards import BOARDS
from support.fake_tree import write_tree
from support.golden import assert_golden, doctor_text

from selfdraft.jetson.checks import CHECKS, check_named
from selfdraft.jetson.device import Clock, Device, Disk, KernelFile, PluginLibrary, Swap, Zone
from selfdraft.jetson.doctor import Check, diagnose, fine, run_check, trouble, unknown
from selfdraft.jetson.probe import probe

GIB = 1 << 30
Changes = tuple[tuple[str, object], ...]


@pytest.fixture(scope="session")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Device]:
    """The probed boards by name."""
    return {name: probe(build(tmp_path_factory.mktemp("board"))) for name, build in BOARDS.items()}


@pytest.fixture(scope="session")
def healthy(devices: dict[str, Device]) -> Device:
    """A board on which nothing is wrong but its TensorRT's known fault."""
    return devices["agx-64-jetpack-7.2"]


@pytest.mark.parametrize("name", BOARDS)
def test_doctor_on_every_board_is_as_recorded(name: str, tmp_path: Path) -> None:
    assert_golden(f"{name}.doctor.txt", doctor_text(probe(BOARDS[name](tmp_path))))


def test_board_that_is_set_up_well_has_no_trouble_but_a_notice(healthy: Device) -> None:
    diagnosis = diagnose(healthy, CHECKS)
    assert [f.check for f in diagnosis.findings if f.status != "ok"] == ["int8-dequantize"]
    assert diagnosis.worst == "notice"


def library(**settings: object) -> PluginLibrary:
    facts: dict[str, object] = {
        "path": "/opt/p.so",
        "exists": True,
        "absolute": True,
        "machine": "aarch64",
        "cubins": ((87, 7),),
    }
    return PluginLibrary(**(facts | settings))  # type: ignore[arg-type]


def kernel(capability: int | None, form: int | None) -> tuple[KernelFile, ...]:
    return (KernelFile(path="/k.cubin", compute_capability=capability, format=form),)


JETPACK_6: Changes = (("release.l4t", "36.4.3"), ("release.jetpack", "6.2"))
PLUGIN_SET: Changes = (("environment", (("SELFDRAFT_PLUGIN_PATH", "x"),)),)
NX: Changes = (("identity.module_name", "orin-nx-16"), ("power.modes", ()), *JETPACK_6)
SLOW = Clock(min_mhz=306.0, max_mhz=624.0, now_mhz=306.0)

TROUBLE: list[tuple[str, str, Changes]] = [
    ("jetson", "no Tegra", (("identity.soc", None),)),
    ("orin", "tegra264", (("identity.soc", "tegra264"),)),
    ("module", "no module", (("identity.module_name", None),)),
    ("l4t", "neither", (("release.l4t", None),)),
    ("jetpack-too-old", "L4T 35.4.1", (("release.l4t", "35.4.1"),)),
    ("jetpack-too-old", "L4T 36.3.0", (("release.l4t", "36.3.0"),)),
    ("l4t-36.4.7", "36.4.7", (("release.l4t", "36.4.7"),)),
    ("jetpack-package", "L4T 39.2.1 is JetPack", (("release.jetpack_package", None),)),
    ("disk", "/dev/mmcblk1p1", (("disk", Disk(device="/dev/mmcblk1p1", kind="sd")),)),
    ("power-mode", "MODE_30W", (("power.mode", "MODE_30W"), ("power.mode_id", 2))),
    ("gpu-clock", "GPU up to 624 MHz, MAXN allows 1300.5", (("clocks.gpu", SLOW),)),
    ("super-mode", "1173 MHz", NX),
    ("clocks", "move", (("clocks.gpu", SLOW),)),
    ("mode-15w", "MODE_15W on L4T 39", (("power.mode", "MODE_15W"),)),
    ("over-current", "oc1 3 times", (("throttling.over_current_events", (("oc1", 3),)),)),
    ("temperature", "tj", (("thermal", (Zone(name="tj", celsius=99.0, throttle_c=99.0),)),)),
    ("memory", "10.0 GiB of", (("memory.available_bytes", 10 * GIB),)),
    ("desktop", "desktop", (("graphical", True),)),
    ("page-cache", "1.0 GiB free", (("memory.free_bytes", GIB),)),
    ("fragmentation", "12 of 4 MiB", (("memory.largest_free", (12, 4 << 20)),)),
    ("fragmentation", "900 of 2 MiB", (("memory.largest_free", (900, 2 << 20)),)),
    (
        "swap",
        "4.0 GiB in memory",
        (
            ("memory.total_bytes", 8 * GIB),
            ("memory.swaps", (Swap(name="z", zram=True, total_bytes=4 * GIB, used_bytes=0),)),
        ),
    ),
    (
        "allocator",
        "cudaMallocAsync",
        (("environment", (("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),)),),
    ),
    ("tensorrt", "no libnvinfer", (("tensorrt.library", None), ("tensorrt.version", None))),
    ("tensorrt-python", "does not look there", (("tensorrt.visible", None),)),
    (
        "tensorrt-python",
        "for Python 3.12; this is Python 3.11 (",
        (("tensorrt.visible", None), ("python.version", "3.11.9")),
    ),
    (
        "tensorrt-python",
        "without system packages",
        (("tensorrt.visible", None), ("python.system_site_packages", False)),
    ),
    (
        "tensorrt-python",
        "no Python binding",
        (("tensorrt.visible", None), ("tensorrt.bindings", ())),
    ),
    ("tensorrt-versions", "binding 11.4.0", (("tensorrt.visible.version", "11.4.0"),)),
    ("tensorrt-features", "no Python plugins, IStream", (("tensorrt.version", "10.3.0.30"),)),
    ("tensorrt-features", "has no plugins compiled", (("tensorrt.version", "10.7.0.23"),)),
    ("int8-dequantize", "10.16.2", ()),
    ("tensorrt-11", "11.4.0", (("tensorrt.version", "11.4.0.106"),)),
    ("nvcc", "not on the path", (("cuda.nvcc_on_path", False),)),
    ("nvcc", "no nvcc", (("cuda.nvcc_on_path", False), ("cuda.nvcc", None))),
    ("cuda-header", "no cuda.h", (("cuda.header", None),)),
    ("pycuda", "not installed", (("python.packages", ()),)),
    ("numpy", "scipy 1.8.0", (("python.packages", (("numpy", "2.2.6"), ("scipy", "1.8.0"))),)),
    ("onnxruntime-gpu", "CPU build", (("python.packages", (("onnxruntime", "1.23.2"),)),)),
    (
        "onnxruntime-twice",
        "share one folder",
        (("python.packages", (("onnxruntime", "1"), ("onnxruntime-gpu", "2"))),),
    ),
    ("torch", "on JetPack 6.2", (*JETPACK_6, ("python.packages", (("torch", "2.14.1"),)))),
    ("plugin-path", "relative", (*PLUGIN_SET, ("plugins", library(absolute=False)))),
    ("plugin-path", "no library there", (*PLUGIN_SET, ("plugins", library(exists=False)))),
    ("edgellm-path", "relative", (("environment", (("EDGELLM_PLUGIN_PATH", "a.so"),)),)),
    ("plugins", "is built", (("plugins", None),)),
    ("kernels", "no kernel", (("kernels", ()),)),
    ("kernel-code", "k.cubin is for sm_90", (("kernels", kernel(90, 8)),)),
    ("kernel-code", "k.cubin is no cubin", (("kernels", kernel(None, None)),)),
    ("kernel-code", "CUDA 13", (*JETPACK_6, ("kernels", kernel(87, 8)))),
    ("plugin-code", "is for x86_64", (("plugins", library(machine="x86_64")),)),
    ("plugin-code", "sm_80, sm_90 only", (("plugins", library(cubins=((80, 7), (90, 7)))),)),
    ("plugin-code", "CUDA 13", (*JETPACK_6, ("plugins", library(cubins=((87, 8),))))),
]


def with_changes(device: Device, changes: Changes) -> Device:
    for path, value in changes:
        device = changed(device, path, value)
    return device


@pytest.mark.parametrize(("name", "found", "changes"), TROUBLE)
def test_check_finds_its_trouble_and_says_what_to_type(
    name: str, found: str, changes: Changes, healthy: Device
) -> None:
    check = check_named(name)
    device = with_changes(healthy, changes)
    assert check.applies_to(device)
    finding = run_check(check, device)
    assert finding.status == check.severity
    assert found in finding.found
    assert finding.consequence and finding.mend and "<" not in finding.mend.replace("numpy<2", "")


def test_every_check_is_seen_in_trouble() -> None:
    assert {name for name, _, _ in TROUBLE} == {check.name for check in CHECKS}


@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in CHECKS])
def test_every_check_is_well_on_some_board(check: Check, devices: dict[str, Device]) -> None:
    found = [run_check(check, d).status for d in devices.values() if check.applies_to(d)]
    assert "ok" in found


ZRAM = Swap(name="z", zram=True, total_bytes=4 * GIB, used_bytes=0)
SWAP_FILE = Swap(name="/swapfile", zram=False, total_bytes=8 * GIB, used_bytes=0)
LESS_THAN: list[tuple[str, Changes]] = [
    ("swap", (("memory.total_bytes", 8 * GIB), ("memory.swaps", (ZRAM, SWAP_FILE)))),
    ("swap", (("memory.swaps", (ZRAM,)),)),
    ("swap", (("memory.total_bytes", 8 * GIB),)),
    ("jetpack-too-old", (("release.l4t", "36.4.0"),)),
    ("gpu-clock", (("clocks.gpu", Clock(min_mhz=1300, max_mhz=1300, now_mhz=1300)),)),
    ("temperature", (("thermal", (Zone(name="tj", celsius=98.9, throttle_c=99.0),)),)),
    ("fragmentation", (("memory.largest_free", (16, 4 << 20)),)),
    ("tensorrt-11", (("tensorrt.version", "11.4.1"),)),
    ("tensorrt-features", (("tensorrt.version", "10.15.1"),)),
    ("numpy", (("python.packages", (("numpy", "2.2.6"), ("scipy", "1.13.0"))),)),
    ("numpy", (("python.packages", (("numpy", "1.26.4"), ("scipy", "1.8.0"))),)),
    ("torch", (("python.packages", (("torch", "2.14.1"),)),)),
    ("plugin-code", (*JETPACK_6, ("plugins", library()))),
    ("kernel-code", (*JETPACK_6, ("kernels", kernel(87, 7)))),
    ("super-mode", (*NX, ("release.l4t", "36.3.0"))),
    ("mode-15w", (("power.mode", "MODE_15W"), ("release.l4t", "36.5.0"))),
]


@pytest.mark.parametrize(("name", "changes"), LESS_THAN)
def test_check_leaves_alone_what_is_just_right(
    name: str, changes: Changes, healthy: Device
) -> None:
    assert run_check(check_named(name), with_changes(healthy, changes)).status == "ok"


UNKNOWN: list[tuple[str, Changes]] = [
    ("jetpack-too-old", (("release.l4t", None),)),
    ("disk", (("disk", None),)),
    ("power-mode", (("power.mode", None),)),
    ("gpu-clock", (("clocks.gpu", None),)),
    ("clocks", (("clocks.gpu", None), ("clocks.cpus", ()))),
    ("over-current", (("rails", ()),)),
    ("temperature", (("thermal", ()),)),
    ("memory", (("memory.total_bytes", 0),)),
    ("fragmentation", (("memory.largest_free", None),)),
    ("desktop", (("graphical", None),)),
    ("plugin-code", (("plugins", library(cubins=())),)),
    ("kernel-code", (("kernels", ()),)),
    ("tensorrt-versions", (("tensorrt.visible", None),)),
]


@pytest.mark.parametrize(("name", "changes"), UNKNOWN)
def test_what_cannot_be_read_is_unknown_and_not_well(
    name: str, changes: Changes, healthy: Device
) -> None:
    finding = run_check(check_named(name), with_changes(healthy, changes))
    assert finding.status == "unknown" and finding.mend is None


def test_advice_for_a_lost_super_mode_depends_on_the_release(healthy: Device) -> None:
    lost = with_changes(healthy, (*NX, ("release.l4t", "39.2.0")))
    flash = with_changes(healthy, NX)
    assert "7.2.1 restores it" in (run_check(check_named("super-mode"), lost).mend or "")
    assert "flash again" in (run_check(check_named("super-mode"), flash).mend or "")


def test_command_for_onnxruntime_depends_on_jetpack(healthy: Device) -> None:
    bare = changed(healthy, "python.packages", ())
    check = check_named("onnxruntime-gpu")
    assert run_check(check, bare).mend == "pip install 'onnxruntime-gpu>=1.27'"
    assert "jp6/cu126" in (run_check(check, with_changes(bare, JETPACK_6)).mend or "")


def test_power_mode_is_mended_by_the_id_of_this_configuration(devices: dict[str, Device]) -> None:
    check = check_named("power-mode")
    assert "nvpmodel -m 2 " in (run_check(check, devices["nano-8"]).mend or "")
    assert "nvpmodel -m 0 " in (run_check(check, devices["nx-16"]).mend or "")


def test_mode_without_an_id_is_to_be_looked_up(healthy: Device) -> None:
    slow = with_changes(healthy, (("clocks.gpu", SLOW), ("power.mode_id", None)))
    mend = run_check(check_named("gpu-clock"), slow).mend
    assert mend is not None and "ID" in mend and "/etc/nvpmodel.conf" in mend


def test_nano_without_super_is_fastest_at_15_watts(devices: dict[str, Device]) -> None:
    nano = devices["nano-8"]
    modes = tuple(mode for mode in nano.power.modes if mode.name == "15W")
    plain = replace(
        nano,
        identity=replace(nano.identity, super_config=False),
        power=replace(nano.power, modes=modes, mode="15W", mode_id=0),
    )
    assert run_check(check_named("power-mode"), plain).status == "ok"


def check_that(detect: Callable[[Device], object], severity: str = "warning") -> Check:
    return Check(
        name="x",
        title="x",
        severity=severity,  # type: ignore[arg-type]
        consequence="c",
        mend="do <what>",
        detect=detect,  # type: ignore[arg-type]
        scope="any",
        kinds=(1,),
    )


def test_values_fill_the_places_of_the_command(healthy: Device) -> None:
    finding = run_check(check_that(lambda _: trouble("f", what="that")), healthy)
    assert (finding.found, finding.consequence, finding.mend) == ("f", "c", "do that")


def test_place_without_a_value_is_a_fault_of_the_check(healthy: Device) -> None:
    with pytest.raises(KeyError, match="what"):
        run_check(check_that(lambda _: trouble("f")), healthy)


def test_worst_is_the_gravest_of_what_was_found(healthy: Device) -> None:
    checks = [
        check_that(lambda _: trouble("f", what="w"), severity)
        for severity in ("notice", "failure", "warning")
    ]
    assert diagnose(healthy, checks).worst == "failure"
    assert diagnose(healthy, [checks[0]]).worst == "notice"
    assert diagnose(healthy, [check_that(lambda _: fine("")), check_that(lambda _: unknown(""))])
    assert diagnose(healthy, [check_that(lambda _: fine(""))]).worst is None


def test_checks_for_a_jetson_are_left_out_elsewhere(devices: dict[str, Device]) -> None:
    diagnosis = diagnose(devices["plain-pc"], CHECKS)
    assert "power-mode" in diagnosis.left_out and "orin" in diagnosis.left_out
    assert {finding.check for finding in diagnosis.findings} == {
        check.name for check in CHECKS if check.scope == "any"
    }


def test_names_of_checks_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_machine_without_procfs_has_unknown_memory(tmp_path: Path) -> None:
    text = doctor_text(probe(write_tree(tmp_path, {}, architecture="arm64")))
    assert "memory    unknown" in text
