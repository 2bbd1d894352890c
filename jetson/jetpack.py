"""What differs between the two JetPacks that selfdraft serves: Python and package sources."""

from __future__ import annotations

JETPACK_6_INDEX = "https://pypi.jetson-ai-lab.io/jp6/cu126"
"""The Jetson AI Lab's public index: the default one has no onnxruntime-gpu for JetPack 6."""


def distro_python(jetpack: str | None) -> str | None:
    """The minor version of the distribution's Python, which TensorRT's binding is built for."""
    return {"6": "3.10", "7": "3.12"}.get((jetpack or "")[:1])


def onnxruntime_install(jetpack: str | None) -> str:
    """The command that installs ONNX Runtime with CUDA on this JetPack. From 7.2 on Orin takes the
    generic arm64 wheels; version 1.27 is the first that serves TensorRT 11."""
    if (jetpack or "").startswith("6"):
        return f"pip install onnxruntime-gpu --extra-index-url {JETPACK_6_INDEX}"
    return "pip install 'onnxruntime-gpu>=1.27'"
