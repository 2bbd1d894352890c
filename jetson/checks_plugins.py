"""Checks of the GPU code: compiled kernels and the plugin library."""

from __future__ import annotations

from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import Check, Outcome, fine, trouble, unknown
from selfdraft.jetson.modules import COMPUTE_CAPABILITY
from selfdraft.jetson.software import PLUGIN_VARIABLE

_CUDA_13_FORMAT = 8
_OTHERS = "EDGELLM_PLUGIN_PATH"


def _path(device: Device) -> Outcome:
    plugins = device.plugins
    if plugins is None or PLUGIN_VARIABLE not in dict(device.environment):
        return fine(f"{PLUGIN_VARIABLE} is not set")
    shown = f"{PLUGIN_VARIABLE}={plugins.path}"
    if not plugins.absolute:
        return trouble(f"{shown} is a relative path", variable=PLUGIN_VARIABLE, path=plugins.path)
    if not plugins.exists:
        return trouble(f"{shown}: no library there", variable=PLUGIN_VARIABLE, path=plugins.path)
    return fine(shown)


def _other_path(device: Device) -> Outcome:
    path = dict(device.environment).get(_OTHERS)
    if path is None:
        return fine(f"{_OTHERS} is not set")
    if path.startswith("/"):
        return fine(f"{_OTHERS}={path}")
    return trouble(f"{_OTHERS}={path} is a relative path", variable=_OTHERS, path=path)


def _library(device: Device) -> Outcome:
    plugins = device.plugins
    if plugins is not None and plugins.exists:
        return fine(plugins.path)
    return trouble("no plugin library" + (f" at {plugins.path}" if plugins else " is built"))


def _architecture(device: Device) -> Outcome:
    plugins = device.plugins
    if plugins is None or not plugins.exists:
        return unknown("no plugin library")
    if plugins.machine != device.identity.architecture:
        return trouble(
            f"{plugins.path} is for {plugins.machine or 'an unknown processor'}, this machine is "
            f"{device.identity.architecture}"
        )
    found = sorted({capability for capability, _ in plugins.cubins})
    if not found:
        return unknown(f"{plugins.path} shows no GPU code (it may be compressed)")
    formats = {form for capability, form in plugins.cubins if capability == COMPUTE_CAPABILITY}
    if not formats:
        return trouble(f"{plugins.path} has GPU code for sm_{', sm_'.join(map(str, found))} only")
    if _is_too_new(device, min(formats)):
        return trouble(f"{plugins.path}: its sm_87 code is of CUDA 13, JetPack 6 has CUDA 12")
    return fine(f"{plugins.path} has code for sm_87")


def _is_too_new(device: Device, cubin_format: int) -> bool:
    """CUDA 12's driver does not read what CUDA 13 writes."""
    is_jetpack_6 = (device.release.jetpack or "").startswith("6")
    return is_jetpack_6 and cubin_format >= _CUDA_13_FORMAT


def _compiled(device: Device) -> Outcome:
    if device.kernels:
        return fine(f"{len(device.kernels)} kernel files are compiled")
    return trouble("no kernel is compiled")


def _kernel_code(device: Device) -> Outcome:
    if not device.kernels:
        return unknown("no kernel is compiled")
    for file in device.kernels:
        if file.compute_capability != COMPUTE_CAPABILITY or file.format is None:
            shown = f"for sm_{file.compute_capability}" if file.compute_capability else "no cubin"
            return trouble(f"{file.path} is {shown}")
        if _is_too_new(device, file.format):
            return trouble(f"{file.path} is of CUDA 13, JetPack 6 has CUDA 12")
    return fine(f"{len(device.kernels)} kernel files for sm_87")


PLUGIN_CHECKS = (
    Check(
        name="plugin-path",
        title="SELFDRAFT_PLUGIN_PATH leads nowhere",
        severity="failure",
        scope="any",
        kinds=(11, 12),
        consequence="the plugin library is not loaded, and engines that need it do not open",
        mend='export <variable>="$(realpath <path>)"    # or: unset <variable>',
        detect=_path,
    ),
    Check(
        name="edgellm-path",
        title="EDGELLM_PLUGIN_PATH is a relative path",
        severity="notice",
        scope="any",
        kinds=(12,),
        consequence="TensorRT Edge-LLM finds its plugins only when started from one folder",
        mend='export <variable>="$(realpath <path>)"',
        detect=_other_path,
    ),
    Check(
        name="plugins",
        title="No plugin library",
        severity="notice",
        kinds=(11,),
        consequence="engines with selfdraft's attention and matmul kernels can be neither built nor "
        "loaded; ONNX Runtime does not need it",
        mend="selfdraft plugins build --install",
        detect=_library,
    ),
    Check(
        name="plugin-code",
        title="The plugin library is for another machine",
        severity="failure",
        kinds=(18, 23),
        consequence="loading fails, or kernels end with: no kernel image is available for execution",
        mend="selfdraft plugins build --install    # on this board, with its own CUDA",
        detect=_architecture,
    ),
    Check(
        name="kernels",
        title="The GPU kernels are not compiled",
        severity="notice",
        kinds=(18,),
        consequence="the TensorRT backend has no attention and no int4 kernels; ONNX Runtime does not "
        "need them",
        mend="jetson/setup.sh",
        detect=_compiled,
    ),
    Check(
        name="kernel-code",
        title="Compiled kernels are for another GPU",
        severity="failure",
        kinds=(18, 23),
        consequence="they end with: no kernel image is available for execution on the device",
        mend="rm -r ~/.cache/selfdraft/kernels && jetson/setup.sh",
        detect=_kernel_code,
    ),
)
