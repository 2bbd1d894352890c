"""Checks of CUDA, TensorRT and Python."""

from __future__ import annotations

from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import Check, Outcome, fine, trouble, unknown
from selfdraft.jetson.jetpack import distro_python, onnxruntime_install
from selfdraft.jetson.release import version_tuple

_FEATURES = (
    ((10, 6), "Python plugins"),
    ((10, 7), "IStreamReaderV2"),
    ((10, 9), "plugins compiled ahead of time"),
    ((10, 15), "KVCacheUpdate and RotaryEmbedding layers"),
)
"""What came with which TensorRT, of those that people miss."""


def _python(device: Device) -> str:
    """The interpreter that owns the TensorRT binding, else the distribution's."""
    owners = [binding.python for binding in device.tensorrt.bindings if binding.python]
    return owners[-1] if owners else distro_python(device.release.jetpack) or device.python.minor


def _library(device: Device) -> Outcome:
    tensorrt = device.tensorrt
    if tensorrt.library or tensorrt.version:
        return fine(f"TensorRT {tensorrt.version} ({tensorrt.library or tensorrt.package})")
    return trouble("no libnvinfer")


def _binding(device: Device) -> Outcome:
    tensorrt, python = device.tensorrt, device.python
    if tensorrt.visible is not None:
        return fine(f"Python {python.minor} imports {tensorrt.visible.folder}")
    if not tensorrt.bindings:
        return trouble("no Python binding is installed", **_binding_commands(device))
    owner = tensorrt.bindings[-1]
    shown = f"the binding in {owner.folder} is for Python {owner.python or 'unknown'}; this is "
    if owner.python and owner.python != python.minor:
        shown += f"Python {python.minor} ({python.executable})"
    elif python.in_venv and not python.system_site_packages:
        shown += f"a virtual environment without system packages ({python.prefix})"
    else:
        shown += f"{python.executable}, which does not look there"
    return trouble(shown, **_binding_commands(device))


def _binding_commands(device: Device) -> dict[str, str]:
    venv = f"/usr/bin/python{_python(device)} -m venv --system-site-packages ~/selfdraft-venv"
    if device.tensorrt.bindings:
        return {"command": venv}
    return {"command": f"sudo apt install python3-libnvinfer && {venv}"}


def _same_version(device: Device) -> Outcome:
    tensorrt = device.tensorrt
    binding = tensorrt.visible.version if tensorrt.visible else None
    if binding is None or tensorrt.version is None:
        return unknown("binding or library is missing")
    shown = f"binding {binding}, library {tensorrt.version}"
    if version_tuple(binding)[:2] != version_tuple(tensorrt.version)[:2]:
        return trouble(shown)
    return fine(shown)


def _missing_features(device: Device) -> Outcome:
    version = device.tensorrt.version
    if version is None:
        return unknown("no TensorRT")
    missing = [name for since, name in _FEATURES if version_tuple(version) < since]
    if missing:
        return trouble(f"TensorRT {version} has no {', '.join(missing)}")
    return fine(f"TensorRT {version}")


def _int8_dequantize(device: Device) -> Outcome:
    version = device.tensorrt.version
    if version is None:
        return unknown("no TensorRT")
    is_broken = version_tuple(version)[:3] == (10, 16, 2)
    return trouble(f"TensorRT {version} on sm_87") if is_broken else fine(f"TensorRT {version}")


def _too_new(device: Device) -> Outcome:
    version = device.tensorrt.version
    if version is None:
        return unknown("no TensorRT")
    if (11,) <= version_tuple(version) < (11, 4, 1):
        return trouble(f"TensorRT {version}")
    return fine(f"TensorRT {version}")


def _nvcc(device: Device) -> Outcome:
    cuda = device.cuda
    if cuda.nvcc_on_path:
        return fine(f"nvcc is on the path (CUDA {cuda.version or 'unknown'})")
    if cuda.nvcc:
        command = f"export PATH={cuda.home}/bin:$PATH    # also into ~/.bashrc"
        return trouble(f"{cuda.nvcc} is not on the path", command=command)
    return trouble("no nvcc below /usr/local/cuda", command="sudo apt install nvidia-jetpack")


def _header(device: Device) -> Outcome:
    cuda = device.cuda
    if cuda.header:
        return fine(cuda.header)
    version = cuda.version or {"6": "12.6", "7": "13.2"}.get((device.release.jetpack or "")[:1])
    package = f"cuda-cudart-dev-{'-'.join(version.split('.')[:2])}" if version else "cuda"
    return trouble("no cuda.h below /usr/local/cuda", package=package)


def _pycuda(device: Device) -> Outcome:
    version = device.python.package("pycuda")
    if version:
        return fine(f"pycuda {version}")
    home = device.cuda.home or "/usr/local/cuda"
    return trouble("pycuda is not installed", home=home)


def _numpy(device: Device) -> Outcome:
    numpy, scipy = (device.python.package(name) for name in ("numpy", "scipy"))
    if numpy is None or scipy is None:
        return fine(f"numpy {numpy or 'not installed'}, scipy {scipy or 'not installed'}")
    shown = f"numpy {numpy}, scipy {scipy}"
    if version_tuple(numpy) >= (2,) and version_tuple(scipy) < (1, 13):
        return trouble(shown)
    return fine(shown)


def _onnxruntime_gpu(device: Device) -> Outcome:
    version = device.python.package("onnxruntime-gpu")
    if version:
        return fine(f"onnxruntime-gpu {version}")
    cpu = device.python.package("onnxruntime")
    found = f"onnxruntime {cpu} is the CPU build" if cpu else "no onnxruntime"
    return trouble(found, command=onnxruntime_install(device.release.jetpack))


def _onnxruntime_twice(device: Device) -> Outcome:
    cpu, gpu = (device.python.package(n) for n in ("onnxruntime", "onnxruntime-gpu"))
    if cpu and gpu:
        return trouble(
            f"onnxruntime {cpu} and onnxruntime-gpu {gpu} share one folder",
            command=onnxruntime_install(device.release.jetpack),
        )
    return fine(f"onnxruntime {gpu or cpu or 'not installed'}")


def _torch(device: Device) -> Outcome:
    version = device.python.package("torch")
    if version and (device.release.jetpack or "").startswith("6"):
        return trouble(f"torch {version} on JetPack {device.release.jetpack}")
    return fine(f"torch {version or 'not installed'}")


SOFTWARE_CHECKS = (
    Check(
        name="tensorrt",
        title="TensorRT is not installed",
        severity="failure",
        consequence="no engine can be built or run; ONNX Runtime still works",
        mend="sudo apt update && sudo apt install nvidia-jetpack",
        detect=_library,
    ),
    Check(
        name="tensorrt-python",
        title="This Python does not see TensorRT",
        severity="failure",
        kinds=(16,),
        consequence="import tensorrt fails: the system's binding works with the distribution's own "
        "Python only, and a virtual environment must be told to look there",
        mend="<command>",
        detect=_binding,
    ),
    Check(
        name="tensorrt-versions",
        title="TensorRT's binding and library differ",
        severity="failure",
        kinds=(10,),
        consequence="engines built by one do not load in the other",
        mend="pip uninstall -y tensorrt tensorrt_cu12 tensorrt_cu13    # and use the system's binding",
        detect=_same_version,
    ),
    Check(
        name="tensorrt-features",
        title="What this TensorRT lacks",
        severity="notice",
        kinds=(17, 28),
        consequence="code written for newer releases fails here, and graphs must stay at opset 20",
        mend="# nothing to do: selfdraft's targets for JetPack 6 avoid these functions",
        detect=_missing_features,
    ),
    Check(
        name="int8-dequantize",
        title="INT8 weights fail on this TensorRT",
        severity="notice",
        kinds=(21,),
        consequence="graphs with INT8 DequantizeLinear fail to build (Myelin, sm_87)",
        mend="# use int4 or fp16 weights on this board",
        detect=_int8_dequantize,
    ),
    Check(
        name="tensorrt-11",
        title="A TensorRT 11 that is not for Jetson",
        severity="failure",
        consequence="TensorRT 11.0 to 11.4.0 do not support JetPack",
        mend="sudo apt install --reinstall nvidia-jetpack    # or TensorRT 11.4.1 on JetPack 7.2.2",
        detect=_too_new,
    ),
    Check(
        name="nvcc",
        title="nvcc is not found",
        severity="warning",
        kinds=(14,),
        consequence="pycuda and the plugin library cannot be built",
        mend="<command>",
        detect=_nvcc,
    ),
    Check(
        name="cuda-header",
        title="cuda.h is not found",
        severity="warning",
        kinds=(14,),
        consequence="pycuda cannot be built",
        mend="sudo apt install <package>",
        detect=_header,
    ),
    Check(
        name="pycuda",
        title="pycuda is not installed",
        severity="notice",
        kinds=(14,),
        consequence="the TensorRT backend cannot allocate device memory",
        mend="PATH=<home>/bin:$PATH pip install pycuda",
        detect=_pycuda,
    ),
    Check(
        name="numpy",
        title="NumPy 2 beside a SciPy built for NumPy 1",
        severity="warning",
        scope="jetson",
        kinds=(19,),
        consequence="import scipy fails with numpy.core.multiarray failed to import",
        mend="pip install 'numpy<2'    # or a newer one of both: pip install -U scipy",
        detect=_numpy,
    ),
    Check(
        name="onnxruntime-gpu",
        title="ONNX Runtime without CUDA",
        severity="notice",
        kinds=(24,),
        consequence="ONNX Runtime computes on the CPU",
        mend="<command>",
        detect=_onnxruntime_gpu,
    ),
    Check(
        name="onnxruntime-twice",
        title="Two builds of ONNX Runtime",
        severity="warning",
        scope="any",
        kinds=(24,),
        consequence="the one installed last hides the other, and CUDA may be gone",
        mend="pip uninstall -y onnxruntime onnxruntime-gpu && <command>",
        detect=_onnxruntime_twice,
    ),
    Check(
        name="torch",
        title="PyTorch on JetPack 6",
        severity="notice",
        kinds=(23,),
        consequence="the wheels of the default index are not built for Tegra's CUDA 12.6 (no kernel "
        "image is available); selfdraft needs no torch on the board",
        mend="pip uninstall -y torch    # or one from an index for JetPack",
        detect=_torch,
    ),
)
