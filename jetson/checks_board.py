"""Checks of the board and its system software."""

from __future__ import annotations

from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import Check, Outcome, fine, trouble, unknown
from selfdraft.jetson.release import version_tuple

BROKEN_L4T = "36.4.7"


def _is_jetson(device: Device) -> Outcome:
    identity = device.identity
    if identity.is_jetson:
        return fine(identity.model or identity.soc or "")
    return trouble(f"{identity.architecture} machine, no Tegra in its device tree")


def _is_orin(device: Device) -> Outcome:
    identity = device.identity
    if identity.is_orin:
        return fine(f"{identity.soc} is Orin")
    return trouble(f"the SoC is {identity.soc}, Orin is tegra234")


def _module(device: Device) -> Outcome:
    module, identity = device.module, device.identity
    if module is not None:
        return fine(f"{module.title}, told by {', '.join(identity.evidence)}")
    return trouble(f"no module of the table fits {', '.join(identity.evidence) or 'this board'}")


def _jetpack_5(device: Device) -> Outcome:
    l4t = device.release.l4t
    if l4t is None:
        return unknown("no L4T release file")
    if version_tuple(l4t) < (36, 4):
        return trouble(f"L4T {l4t} (JetPack {device.release.jetpack or 'unknown'})")
    return fine(f"L4T {l4t}, JetPack {device.release.jetpack or 'unknown'}")


def _l4t_known(device: Device) -> Outcome:
    if device.release.l4t is None:
        return trouble("neither /etc/nv_tegra_release nor the package nvidia-l4t-core")
    return fine(f"L4T {device.release.l4t}")


def _nvmap_bug(device: Device) -> Outcome:
    l4t = device.release.l4t
    if l4t is None:
        return unknown("no L4T release file")
    return trouble(f"L4T is {l4t}") if l4t == BROKEN_L4T else fine(f"L4T {l4t}")


def _metapackage(device: Device) -> Outcome:
    release = device.release
    if release.jetpack_package:
        return fine(f"nvidia-jetpack {release.jetpack_package}")
    known = f"; L4T {release.l4t} is JetPack {release.jetpack}" if release.jetpack else ""
    return trouble(f"the package nvidia-jetpack is not installed{known}")


def _disk(device: Device) -> Outcome:
    if device.disk is None:
        return unknown("the root file system's device is not shown")
    if device.disk.kind == "sd":
        return trouble(f"the system runs from the SD card {device.disk.device}")
    return fine(f"{device.disk.device} ({device.disk.kind})")


BOARD_CHECKS = (
    Check(
        name="jetson",
        title="This is not a Jetson",
        severity="notice",
        scope="any",
        kinds=(30,),
        consequence="engines are built and run on the board only; here selfdraft exports, and "
        "decodes with ONNX Runtime",
        mend="# export here, copy the bundle to the board, and run there: selfdraft doctor",
        detect=_is_jetson,
    ),
    Check(
        name="orin",
        title="A Jetson, but no Orin",
        severity="failure",
        scope="jetson",
        kinds=(18, 30),
        consequence="the kernels and figures are for compute capability 8.7; nothing else is tested",
        mend="# use ONNX Runtime on this board: selfdraft chat BUNDLE --backend ort",
        detect=_is_orin,
    ),
    Check(
        name="module",
        title="Module not recognised",
        severity="warning",
        consequence="clocks cannot be compared with what the module can do, and plans need --device",
        mend="# name it where a command asks for a device; report this with: selfdraft doctor --json",
        detect=_module,
    ),
    Check(
        name="l4t",
        title="L4T release unknown",
        severity="warning",
        scope="jetson",
        consequence="nothing that depends on the JetPack version can be checked; a container sees "
        "it only if it is handed in",
        mend="# in a container: docker run -v /etc/nv_tegra_release:/etc/nv_tegra_release:ro …",
        detect=_l4t_known,
    ),
    Check(
        name="jetpack-too-old",
        title="JetPack older than 6.1",
        severity="failure",
        kinds=(17,),
        consequence="its TensorRT (8.x) has no IPluginV3, so that selfdraft's kernels cannot load",
        mend="# flash JetPack 6.2 or 7.2 with NVIDIA SDK Manager",
        detect=_jetpack_5,
    ),
    Check(
        name="l4t-36.4.7",
        title="L4T 36.4.7 limits GPU allocations",
        severity="warning",
        kinds=(6,),
        consequence="large GPU allocations fail with NvMapMemAllocInternalTagged error 12 (a side "
        "effect of the fix for CVE-2025-33177)",
        mend="sudo sed -i 's/r36\\.4/r36.5/' /etc/apt/sources.list.d/nvidia-l4t-apt-source.list "
        "&& sudo apt update && sudo apt dist-upgrade",
        detect=_nvmap_bug,
    ),
    Check(
        name="jetpack-package",
        title="JetPack's packages are not installed",
        severity="notice",
        scope="jetson",
        kinds=(29,),
        consequence="only L4T was flashed; CUDA and TensorRT may be missing",
        mend="sudo apt update && sudo apt install nvidia-jetpack",
        detect=_metapackage,
    ),
    Check(
        name="disk",
        title="The system runs from an SD card",
        severity="notice",
        scope="jetson",
        kinds=(32,),
        consequence="bundles and engines of several GB load slowly",
        mend="# keep bundles on an NVMe drive, and set SELFDRAFT_HOME to a folder there",
        detect=_disk,
    ),
)
