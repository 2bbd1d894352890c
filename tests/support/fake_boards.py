"""Six machines as trees of files: five boards and a workstation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from support.fake_tree import (
    board_files,
    clocks_files,
    cubin,
    dpkg_files,
    jetpack_6_files,
    link,
    memory_files,
    plugin_library,
    rails_files,
    release_files,
    venv_files,
    write_tree,
    zones_files,
)

from selfdraft.jetson.clocks import SHOW
from selfdraft.jetson.modules import module_named
from selfdraft.jetson.system import PythonFacts, System

AGX_RAILS = (("VDD_GPU_SOC", 19_928, 120), ("VDD_CPU_CV", 19_928, 40), ("VIN_SYS_5V0", 5_000, 805))
AGX_MORE_RAILS = (("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 19_928, 15), ("NC", 0, 0))
NANO_RAILS = (("VDD_IN", 4_984, 960), ("VDD_CPU_GPU_CV", 4_984, 104), ("VDD_SOC", 4_984, 288))
WARM = (("cpu", 48_468), ("gpu", 47_000), ("soc0", 48_062), ("tj", 49_156))


def agx_jetpack_6(root: Path) -> System:
    """AGX Orin 64 GB as it comes out of the box: 30 W, desktop, a plain virtual environment."""
    module = module_named("agx-orin-64")
    mode = module.mode("MODE_30W")
    venv, python = venv_files("3.10", system_site=False, packages={"numpy": "2.2.6"})
    spec = "3701-500-0005-M.0-1-1-jetson-agx-orin-devkit-"
    files = {
        **board_files(
            module,
            mode,
            spec=spec,
            model="NVIDIA Jetson AGX Orin Developer Kit",
            maker="nvidia,p3737-0000+p3701-0005",
        ),
        **memory_files(62_841, 57_000, free_mib=55_000, blocks=8_000, order=10),
        **clocks_files(module, mode, gpu="17000000.gpu", locked=False, hardware_mhz=1300.5),
        **rails_files("1-0040", AGX_RAILS),
        **rails_files("1-0041", AGX_MORE_RAILS),
        **zones_files(*WARM),
        **release_files("36.4.3", "Wed Jan  8 01:49:37 UTC 2025"),
        **jetpack_6_files(package="6.2+b77"),
        **venv,
        "/proc/mounts": "/dev/mmcblk0p1 / ext4 rw 0 0",
        "/sys/block/mmcblk0/device/type": "MMC",
        "/proc/sys/kernel/osrelease": "5.15.148-tegra",
    }
    system = write_tree(root, files, environment={"PATH": "/usr/bin:/bin"}, python=python)
    link(root, "/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target")
    return system


def agx_jetpack_7(root: Path) -> System:
    """AGX Orin 64 GB set up well: MAXN, locked clocks, system TensorRT, run as root."""
    module = module_named("agx-orin-64")
    mode = module.mode("MAXN")
    packages = {"numpy": "2.5.5", "onnxruntime_gpu": "1.31.1", "pycuda": "2026.1"}
    venv, python = venv_files("3.12", system_site=True, packages=packages)
    nvinfer = "10.16.2.10-1+cuda13.2"
    files = {
        **board_files(
            module,
            mode,
            spec="3701-500-0005-M.0-1-1-jetson-agx-orin-devkit-",
            model="NVIDIA Jetson AGX Orin Developer Kit",
            maker="nvidia,p3737-0000+p3701-0005",
        ),
        **memory_files(62_817, 60_000, free_mib=58_000, blocks=9_000, order=10),
        **clocks_files(module, mode, gpu="17000000.gpu", locked=True, hardware_mhz=1300.5),
        **rails_files("1-0040", AGX_RAILS),
        **rails_files("1-0041", AGX_MORE_RAILS),
        **zones_files(*WARM),
        **release_files("39.2.1", "Fri Aug  7 05:54:22 AM UTC 2026"),
        **dpkg_files(nvidia_jetpack="7.2.1-b49", libnvinfer10=nvinfer, python3_libnvinfer=nvinfer),
        **venv,
        "/usr/local/cuda/version.json": json.dumps({"cuda": {"version": "13.2.2"}}),
        "/usr/local/cuda/bin/nvcc": "",
        "/usr/local/cuda/targets/sbsa-linux/include/cuda.h": "",
        "/usr/lib/aarch64-linux-gnu/libnvinfer.so.10.16.2": "",
        "/usr/lib/python3.12/dist-packages/tensorrt/__init__.py": "",
        "/usr/lib/python3.12/dist-packages/tensorrt-10.16.2.10.dist-info/METADATA": "",
        "/sys/kernel/debug/bpmp/debug/clk/emc/rate": "3199000000",
        "/proc/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0",
        "/proc/sys/kernel/osrelease": "6.8.12-tegra",
        "/home/user/.cache/selfdraft/plugins/libselfdraft_plugins.so": plugin_library((87, 8)),
        "/home/user/.cache/selfdraft/kernels/int4_matmul/int4_matmul.sm_87.cubin": cubin(87, 8),
        "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority",
    }
    show = "Active GPU TPCs: 8\nNV Power Mode: MAXN\n"
    environment = {"PATH": "/usr/local/cuda/bin:/usr/bin", "HOME": "/home/user"}
    system = write_tree(root, files, environment=environment, python=python, outputs={SHOW: show})
    link(root, "/etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target")
    return system


def nx_jetpack_6(root: Path) -> System:
    """Orin NX 16 GB on L4T 36.4.7, 15 W, a pip NumPy 2 beside the system's SciPy."""
    module = module_named("orin-nx-16")
    mode = module.mode("15W")
    packages = {"numpy": "2.2.6", "onnxruntime": "1.23.2"}
    venv, python = venv_files("3.10", system_site=True, packages=packages)
    files = {
        **board_files(
            module,
            mode,
            spec="3767-300-0000-H.2-1-0-recomputer-orin-j401-",
            model="NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
            maker="nvidia,p3768-0000+p3767-0000",
        ),
        **memory_files(15_656, 13_000, free_mib=2_000, blocks=900, order=10),
        **clocks_files(module, mode, gpu="17000000.gpu", locked=False, hardware_mhz=918.0),
        **rails_files("1-0040", NANO_RAILS),
        **zones_files(*WARM),
        **release_files("36.4.7", "Thu Sep 18 22:54:44 UTC 2025"),
        **jetpack_6_files(package="6.2.1+b38"),
        **venv,
        "/usr/lib/python3.10/dist-packages/scipy-1.8.0.egg-info": "",
        "/proc/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0",
        "/proc/sys/kernel/osrelease": "5.15.148-tegra",
        "/sys/class/hwmon/hwmon2/oc1_event_cnt": "0",
        "/sys/class/hwmon/hwmon2/oc3_event_cnt": "4",
    }
    environment = {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin"}
    return write_tree(root, files, environment=environment, python=python)


def nano_jetpack_6(root: Path) -> System:
    """Orin Nano 8 GB, Super configuration at 25 W, full, fragmented and hot, on an SD card."""
    module = module_named("orin-nano-8")
    mode = module.mode("25W", super_config=True)
    venv, python = venv_files("3.10", system_site=True, packages={"numpy": "1.26.4"})
    files = {
        **board_files(
            module,
            mode,
            spec="3767-300-0005-S.1-1-1-jetson-orin-nano-devkit-super-",
            model="NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
            maker="nvidia,p3768-0000+p3767-0005-super",
        ),
        **memory_files(7_620, 2_100, free_mib=1_900, blocks=12, order=9),
        **clocks_files(module, mode, gpu="17000000.gpu", locked=False, hardware_mhz=1020.0),
        **rails_files("1-0040", NANO_RAILS),
        **zones_files(("cpu", 57_125), ("gpu", 99_500), ("tj", 99_500)),
        **release_files("36.4.4", "Mon Jun 16 16:07:13 UTC 2025"),
        **jetpack_6_files(package="6.2.1+b38"),
        **venv,
        "/proc/mounts": "/dev/mmcblk1p1 / ext4 rw 0 0",
        "/sys/block/mmcblk1/device/type": "SD",
        "/proc/sys/kernel/osrelease": "5.15.148-tegra",
        "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/curr1_crit_alarm": "1",
    }
    environment = {
        "PATH": "/usr/local/cuda/bin:/usr/bin:/bin",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
        "EDGELLM_PLUGIN_PATH": "build/libNvInfer_edgellm_plugin.so",
        "SELFDRAFT_PLUGIN_PATH": "build/libselfdraft_plugins.so",
    }
    system = write_tree(root, files, environment=environment, python=python)
    link(root, "/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target")
    return system


def third_party_carrier(root: Path) -> System:
    """Orin NX 8 GB on another maker's carrier: no specification, L4T alone, no TensorRT."""
    module = module_named("orin-nx-8")
    mode = module.mode("MAXN")
    files = {
        **board_files(module, mode, spec=None, model="Lanner EAI-I233", maker="lanner,eai-i233"),
        **memory_files(7_500, 6_600, free_mib=6_000, blocks=1_200, order=10),
        **clocks_files(module, mode, gpu="17000000.ga10b", locked=True, hardware_mhz=765.0),
        **zones_files(*WARM),
        **release_files("36.5.0", "Fri Jan 16 03:50:45 UTC 2026"),
        **dpkg_files(nvidia_l4t_core="36.5.0-20260115194252"),
        "/proc/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0",
        "/proc/sys/kernel/osrelease": "5.15.185-tegra",
    }
    python = PythonFacts(
        version="3.11.9",
        executable="/home/user/miniforge3/bin/python",
        prefix="/home/user/miniforge3",
        base_prefix="/home/user/miniforge3",
        search_path=("/home/user/miniforge3/lib/python3.11/site-packages",),
    )
    environment = {"PATH": "/usr/bin:/bin", "CONDA_PREFIX": "/home/user/miniforge3"}
    return write_tree(root, files, environment=environment, python=python)


def plain_pc(root: Path) -> System:
    """A workstation without an accelerator."""
    venv, python = venv_files("3.12", system_site=False, packages={"numpy": "2.5.5"})
    files = {
        **memory_files(31_900, 24_000, free_mib=20_000, blocks=4_000, order=10),
        **venv,
        "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority",
        "/proc/mounts": "/dev/nvme0n1p2 / ext4 rw 0 0",
        "/proc/sys/kernel/osrelease": "6.12.0-amd64",
    }
    environment = {"PATH": "/usr/bin:/bin"}
    return write_tree(root, files, architecture="x86_64", environment=environment, python=python)


BOARDS: Mapping[str, Callable[[Path], System]] = {
    "agx-64-jetpack-6.2": agx_jetpack_6,
    "agx-64-jetpack-7.2": agx_jetpack_7,
    "nx-16": nx_jetpack_6,
    "nano-8": nano_jetpack_6,
    "third-party-carrier": third_party_carrier,
    "plain-pc": plain_pc,
}
