"""The kinds of failure that people report from Jetsons, and how selfdraft meets each.

Collected from public issue trackers and forums; ``source`` names where. Every kind is seen by a check,
or has a ``reason`` why no check can see it; then its message is explained, where it has one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of failure."""

    number: int
    title: str
    source: str
    reason: str | None = None
    """Why no check sees it before it happens; None where one does."""


def _kind(number: int, title: str, source: str, reason: str | None = None) -> Kind:
    return Kind(number=number, title=title, source=source, reason=reason)


KINDS: tuple[Kind, ...] = (
    _kind(1, "An engine build is killed for memory", "TensorRT-LLM #2976"),
    _kind(2, "A small board runs out of memory", "TensorRT #2712"),
    _kind(
        3,
        "TensorRT cannot allocate its workspace",
        "TensorRT #4258",
        reason="shows in a build alone, when TensorRT tries a tactic",
    ),
    _kind(
        4,
        "A tactic is skipped for memory",
        "TensorRT #3355",
        reason="shows in a build alone, and is no failure",
    ),
    _kind(5, "cudaMallocAsync sees a third of the memory", "unsloth #3113"),
    _kind(6, "L4T 36.4.7 refuses allocations (NvMap error 12)", "llama.cpp PR 23732"),
    _kind(
        7,
        "Virtual memory management cannot reserve addresses",
        "llama.cpp #29142",
        reason="the driver's address space cannot be asked for beforehand",
    ),
    _kind(8, "Memory is fragmented", "audio.cpp #12"),
    _kind(9, "Page cache counts as used memory", "GeniePod #69"),
    _kind(10, "An engine of another TensorRT version", "TensorRT #2105, #2195, #2041"),
    _kind(11, "An engine whose plugin is not loaded", "TensorRT #955, #1913, #3327"),
    _kind(12, "A relative path to a plugin library", "TensorRT Edge-LLM"),
    _kind(
        13,
        "The parser does not find a plugin",
        "onnx-tensorrt #800, mmdeploy #2758",
        reason="a matter of the graph, not of the board",
    ),
    _kind(14, "nvcc or cuda.h is not found", "jkjung-avt #389, FastMOT #99, #78"),
    _kind(
        15,
        "pycuda's context stack is not empty",
        "watsor #29",
        reason="a state of the running program",
    ),
    _kind(16, "Python does not find tensorrt", "TensorRT #2737, #1811, #4176, Edge-LLM #201"),
    _kind(17, "A function that this TensorRT does not have", "Edge-LLM #140"),
    _kind(18, "GPU code for sm_87 is missing", "Edge-LLM #178"),
    _kind(19, "NumPy 2 beside modules built for NumPy 1", "Edge-LLM #192"),
    _kind(
        20,
        "An illegal address after a profile change",
        "Edge-LLM #50",
        reason="a state of the running program",
    ),
    _kind(21, "INT8 dequantisation fails on sm_87", "TensorRT #4832"),
    _kind(
        22,
        "No fused attention kernel for sm_87",
        "TensorRT #4301, TensorRT-LLM #1516",
        reason="a matter of another program's kernels",
    ),
    _kind(23, "No kernel image for this GPU", "flash-attention #1146, jetson-containers #1220"),
    _kind(24, "No onnxruntime-gpu for the board", "onnxruntime #20503, jetson-containers #1283"),
    _kind(25, "Throttling for heat or over-current", "TensorRT #3663, isaac_ros #34"),
    _kind(26, "Slow because of the default power mode", "jetson-containers #532, #412"),
    _kind(27, "Super mode missing, or the GPU stuck at a low clock", "NVIDIA forum 372627, 377003"),
    _kind(28, "An operator set that TensorRT does not know", "TensorRT #4336, #1346"),
    _kind(29, "JetPack seems not to be installed", "jetson_stats #863, #504, #737"),
    _kind(30, "Building on another machine than the board", "TensorRT-LLM #3149"),
    _kind(
        31,
        "Drafting makes decoding slower",
        "vLLM #39680, #47602, #52049",
        reason="no state of the board and no message tells it: selfdraft bench measures plain "
        "against speculative decoding",
    ),
    _kind(32, "Engines load slowly", "onnxruntime #7499, TensorRT #3086"),
    _kind(
        33,
        "The DLA is slower than the GPU",
        "TensorRT #4379",
        reason="selfdraft never uses the DLA",
    ),
)
