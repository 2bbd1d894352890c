"""The probe on six imitated machines, and its parts where files are missing or odd."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.fake_boards import BOARDS
from support.fake_tree import cubin, plugin_library, write_tree
from support.golden import assert_golden

from selfdraft.jetson.clocks import SHOW
from selfdraft.jetson.device import Device
from selfdraft.jetson.memory import parse_buddyinfo, parse_swaps
from selfdraft.jetson.probe import probe
from selfdraft.jetson.system import PythonFacts, System
from selfdraft.trt_plugins.build.run import Build, Cubin, write_cubins


@pytest.mark.parametrize("name", BOARDS)
def test_probe_of_every_board_is_as_recorded(name: str, tmp_path: Path) -> None:
    device = probe(BOARDS[name](tmp_path))
    assert_golden(f"{name}.probe.json", json.dumps(asdict(device), indent=1) + "\n")


def test_probe_of_an_empty_tree_says_that_it_is_no_jetson(tmp_path: Path) -> None:
    device = probe(write_tree(tmp_path, {}, architecture="x86_64"))
    assert not device.identity.is_jetson and device.module is None
    assert device.release.l4t is None and device.power.mode is None
    assert device.rails == () and device.plugins is None and device.disk is None


def test_probe_of_this_machine_works_and_changes_nothing() -> None:
    device = probe()
    assert device.memory.total_bytes > device.memory.available_bytes > 0
    assert device.python.version == PythonFacts.running().version


COMPATIBLE = "/proc/device-tree/compatible"
MODEL = "/proc/device-tree/model"
CPUS = "/sys/devices/system/cpu/possible"


def board(tmp_path: Path, mib: int, **files: str) -> Device:
    names = {"spec": "/etc/nv_boot_control.conf", "compatible": COMPATIBLE, "cpus": CPUS}
    tree: dict[str, str | bytes] = {
        COMPATIBLE: "nvidia,tegra234",
        MODEL: "NVIDIA Jetson AGX Orin Developer Kit",
        "/proc/meminfo": f"MemTotal: {mib << 10} kB",
    }
    return probe(write_tree(tmp_path, tree | {names[key]: text for key, text in files.items()}))


def test_model_string_alone_decides_nothing(tmp_path: Path) -> None:
    device = board(tmp_path, 7_620)
    assert device.identity.model == "NVIDIA Jetson AGX Orin Developer Kit"
    assert device.module is None, "8 GB: NX or Nano, and nothing tells which"


def test_specification_that_the_hardware_contradicts_loses(tmp_path: Path) -> None:
    device = board(tmp_path, 15_656, spec="TNSPEC 3701-500-0005-M.0-1-1-jetson-agx-orin-devkit-")
    assert device.identity.module_name == "orin-nx-16"
    assert "part p3701-0005 does not fit" in device.identity.evidence


def test_part_number_holds_against_the_number_of_cpus(tmp_path: Path) -> None:
    spec = "TNSPEC 3767-300-0000-H.2-1-0-recomputer-orin-j401-"
    assert board(tmp_path, 15_656, spec=spec, cpus="0-11").identity.module_name == "orin-nx-16"


def test_part_number_in_the_device_tree_serves_without_a_specification(tmp_path: Path) -> None:
    device = board(
        tmp_path, 7_620, compatible="nvidia,p3768-0000+p3767-0005-super\0nvidia,tegra234"
    )
    assert device.identity.module_name == "orin-nano-8" and device.identity.super_config


def test_cpus_tell_the_two_agx_with_32_gb_apart(tmp_path: Path) -> None:
    eight, twelve = tmp_path / "a", tmp_path / "b"
    assert board(eight, 30_536, cpus="0-7").identity.module_name == "agx-orin-32"
    assert board(twelve, 30_536, cpus="0-11").identity.module_name == "agx-orin-devkit-32"


def test_tpcs_that_are_on_rule_smaller_modules_out(tmp_path: Path) -> None:
    tree = {COMPATIBLE: "nvidia,tegra234", "/proc/meminfo": f"MemTotal: {30_536 << 10} kB"}
    device = probe(write_tree(tmp_path, tree, outputs={SHOW: "Active GPU TPCs: 8\n"}))
    assert device.identity.module_name == "agx-orin-devkit-32"


def test_other_tegra_is_a_jetson_but_no_orin(tmp_path: Path) -> None:
    device = board(tmp_path, 125_000, compatible="nvidia,p3971-0089+p3834-0008\0nvidia,tegra264")
    assert device.identity.is_jetson and not device.identity.is_orin
    assert device.module is None


def test_part_of_the_specification_is_read_with_letters_in_its_revision(tmp_path: Path) -> None:
    device = board(tmp_path, 15_656, spec="TNSPEC 3767-ES1-0000-A.3-1-0-jetson-orin-nx-")
    assert device.identity.part_number == "p3767-0000"


def plugins_of(tmp_path: Path, path: str, content: bytes) -> Any:
    system = write_tree(tmp_path, {path: content}, environment={"SELFDRAFT_PLUGIN_PATH": path})
    return probe(system).plugins


def test_gpu_code_of_both_formats_is_found_in_a_plugin_library(tmp_path: Path) -> None:
    plugins = plugins_of(tmp_path, "/opt/p.so", plugin_library((87, 7), (87, 8), (90, 8)))
    assert plugins.machine == "aarch64" and plugins.exists
    assert plugins.cubins == ((87, 7), (87, 8), (90, 8))


def test_file_that_is_no_library_counts_as_missing(tmp_path: Path) -> None:
    plugins = plugins_of(tmp_path, "/opt/p.so", b"text")
    assert not plugins.exists and plugins.machine is None


def test_compiled_kernels_are_read_from_the_own_folder(tmp_path: Path) -> None:
    tree = {"/s/kernels/op/a.sm_87.cubin": cubin(87, 7), "/s/kernels/op/b.cubin": b"text"}
    kernels = probe(write_tree(tmp_path, tree, environment={"SELFDRAFT_HOME": "/s"})).kernels
    assert [(k.path[-7:], k.compute_capability, k.format) for k in kernels] == [
        ("7.cubin", 87, 7),
        ("b.cubin", None, None),
    ]


def test_kernels_are_found_where_the_compiler_writes_them(tmp_path: Path) -> None:
    written = Cubin(name="op/a.sm_87.cubin", content=cubin(87, 8))
    build = Build(compiler="nvcc", compiler_version="13.2", cubins=(written,), kernels=())
    write_cubins(build, tmp_path / "s" / "kernels")
    (kernel,) = probe(write_tree(tmp_path, {}, environment={"SELFDRAFT_HOME": "/s"})).kernels
    assert kernel.path == "/s/kernels/op/a.sm_87.cubin"


def test_system_package_metadata_of_debian_is_read(tmp_path: Path) -> None:
    python = PythonFacts(
        version="3.10.12",
        executable="/usr/bin/python3",
        prefix="/usr",
        base_prefix="/usr",
        search_path=("/a", "/b"),
    )
    tree = {"/a/numpy-1.21.5.egg-info": "", "/b/numpy-2.0.0.dist-info/METADATA": ""}
    device = probe(write_tree(tmp_path, tree, python=python))
    assert device.python.package("numpy") == "1.21.5", "the first on the path counts"
    assert not device.python.in_venv and device.python.system_site_packages


def test_cuda_version_comes_from_the_folder_without_a_version_file(tmp_path: Path) -> None:
    device = probe(write_tree(tmp_path, {"/usr/local/cuda-12.6/bin/nvcc": ""}))
    assert (device.cuda.version, device.cuda.nvcc) == ("12.6", "/usr/local/cuda-12.6/bin/nvcc")
    assert not device.cuda.nvcc_on_path


def test_l4t_comes_from_its_core_package_without_a_release_file(tmp_path: Path) -> None:
    status = "Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: 36.5.0-2026\n"
    device = probe(write_tree(tmp_path, {"/var/lib/dpkg/status": status}))
    assert (device.release.l4t, device.release.jetpack) == ("36.5.0", "6.2.2")
    assert device.release.jetpack_package is None


def test_largest_free_blocks_add_up_over_zones() -> None:
    text = "Node 0, zone DMA 1 0 0 0 0 0 0 0 0 0 2\nNode 0, zone Normal 1 0 0 0 0 0 0 0 0 0 3\n"
    assert parse_buddyinfo(text) == (5, 4 << 20)
    assert parse_buddyinfo("Node 0, zone DMA 0 0 7 0") == (7, 16 << 10)
    assert parse_buddyinfo("") is None


def test_swap_in_memory_is_told_from_swap_on_disk() -> None:
    areas = parse_swaps(
        "Filename Type Size Used\n/dev/zram0 partition 1024 8\n/swapfile file 9 0\n"
    )
    assert [(area.zram, area.total_bytes, area.used_bytes) for area in areas] == [
        (True, 1 << 20, 8 << 10),
        (False, 9 << 10, 0),
    ]


def test_unreadable_numbers_and_links_are_absent(tmp_path: Path) -> None:
    system: System = write_tree(tmp_path, {"/a": "x", "/b": "0x1f"})
    assert system.number("/a") is None and system.number("/none") is None
    assert system.number("/b") == 31
    assert system.link("/a") is None and list(system.lines("/none")) == []


def test_commands_run_on_this_machine_only(tmp_path: Path) -> None:
    here = System.live()
    assert here.output("echo", "hello") == "hello\n"
    assert here.output("no-such-program-anywhere") is None
    elsewhere = System(
        root=tmp_path, architecture="x", environment={}, python=here.python, outputs=None
    )
    assert elsewhere.output("echo", "hello") is None
