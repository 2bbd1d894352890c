"""Reads everything about a device into one record. Works on any Linux; what is not there is absent."""

from __future__ import annotations

from selfdraft.jetson.clocks import read_clocks
from selfdraft.jetson.device import Device, Disk, Release
from selfdraft.jetson.identify import read_identity
from selfdraft.jetson.memory import read_memory
from selfdraft.jetson.nvpmodel import read_power
from selfdraft.jetson.release import (
    installed_packages,
    jetpack_of_l4t,
    jetpack_of_package,
    parse_tegra_release,
)
from selfdraft.jetson.sensors import read_rails, read_throttling, read_zones
from selfdraft.jetson.software import (
    PLUGIN_VARIABLE,
    read_cuda,
    read_interpreter,
    read_kernels,
    read_plugins,
    read_tensorrt,
)
from selfdraft.jetson.system import System

RELEASE_PATH = "/etc/nv_tegra_release"
DPKG_STATUS_PATH = "/var/lib/dpkg/status"
_PACKAGES = ("nvidia-jetpack", "nvidia-l4t-core", "libnvinfer*", "python3-libnvinfer*")
_TARGET_LINKS = ("/etc/systemd/system/default.target", "/lib/systemd/system/default.target")
_VARIABLES = (
    PLUGIN_VARIABLE,
    "EDGELLM_PLUGIN_PATH",
    "PYTORCH_CUDA_ALLOC_CONF",
    "LD_LIBRARY_PATH",
    "CONDA_PREFIX",
)


def probe(system: System | None = None) -> Device:
    """The device below ``system``'s root; by default this machine. Never raises for what is
    missing, and changes nothing."""
    system = system or System.live()
    packages = installed_packages(system.lines(DPKG_STATUS_PATH), wanted=_PACKAGES)
    power = read_power(system)
    clocks = read_clocks(system, power)
    memory = read_memory(system)
    return Device(
        identity=read_identity(system, memory=memory, clocks=clocks, power=power),
        release=_read_release(system, packages),
        power=power,
        clocks=clocks,
        memory=memory,
        thermal=read_zones(system),
        rails=read_rails(system),
        throttling=read_throttling(system),
        cuda=read_cuda(system),
        tensorrt=read_tensorrt(system, packages),
        python=read_interpreter(system),
        plugins=read_plugins(system),
        kernels=read_kernels(system),
        disk=_read_disk(system),
        graphical=_is_graphical(system),
        environment=tuple(
            (name, system.environment[name]) for name in _VARIABLES if name in system.environment
        ),
    )


def _read_release(system: System, packages: dict[str, str]) -> Release:
    """L4T from its release file, else from its core package; JetPack from the metapackage, else
    from L4T (a board that was flashed with L4T alone has no metapackage)."""
    release = parse_tegra_release(system.text(RELEASE_PATH) or "")
    core = packages.get("nvidia-l4t-core")
    l4t = release.l4t if release else core.partition("-")[0] if core else None
    package = packages.get("nvidia-jetpack")
    from_l4t = jetpack_of_l4t(l4t) if l4t else None
    return Release(
        l4t=l4t,
        jetpack=jetpack_of_package(package) if package else from_l4t,
        jetpack_package=package,
        kernel=system.text("/proc/sys/kernel/osrelease"),
    )


def _read_disk(system: System) -> Disk | None:
    """The device that is mounted on the root folder."""
    rows = (line.split() for line in system.lines("/proc/mounts"))
    device = next((r[0] for r in rows if len(r) > 1 and r[1] == "/" and r[0].startswith("/")), None)
    if device is None:
        return None
    name = device.rpartition("/")[2]
    if name.startswith("nvme"):
        return Disk(device=device, kind="nvme")
    card = system.text(f"/sys/block/{name.partition('p')[0]}/device/type")
    return Disk(device=device, kind={"SD": "sd", "MMC": "emmc"}.get(card or "", "other"))


def _is_graphical(system: System) -> bool | None:
    """Whether the machine boots into a desktop."""
    target = next((link for path in _TARGET_LINKS if (link := system.link(path))), None)
    return None if target is None else target.endswith("graphical.target")
