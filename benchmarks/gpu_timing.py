"""Time of launches on a GPU: captured in a graph, warmed up, medians of replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cuda_driver import Gpu
from selfdraft.trt_plugins.host.launch import KernelLaunch, Params

COPY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """How often a graph is replayed."""

    warm_up: int = 20
    timed: int = 20


def microseconds(gpu: Gpu, work: Callable[[], None], *, parts: int, replays: Replays) -> float:
    """Median time of one of the ``parts`` equal pieces that ``work`` launches."""
    graph = gpu.capture(work)
    for _ in range(replays.warm_up):
        graph()
    times = [gpu.milliseconds(graph) for _ in range(replays.timed)]
    return statistics.median(times) * 1e3 / parts


def step_times(
    gpu: Gpu,
    cubins: Mapping[str, bytes],
    launches: Sequence[KernelLaunch],
    blocks: Sequence[Params],
    *,
    replays: Replays,
) -> tuple[float, dict[str, float]]:
    """Median microseconds of all ``launches`` together, and of each by its kernel's name.

    ``cubins``: machine code by the name of the kernel file. ``blocks``: the same step on data of its own
    each, so many that none is in the cache when its turn comes.
    """

    def time_of(some: Sequence[KernelLaunch]) -> float:
        def work() -> None:
            for block in blocks:
                for launch in some:
                    gpu.launch(cubins[launch.file], launch.kernel, block, **launch.settings)

        return round(microseconds(gpu, work, parts=len(blocks), replays=replays), 3)

    return time_of(launches), {launch.kernel: time_of([launch]) for launch in launches}


def copy_gb_s(gpu: Gpu, *, replays: Replays, num_bytes: int = COPY_BYTES) -> float:
    """What the card's own copy reaches, bytes read and written counted, in 1e9 by second."""
    source, to = gpu.allocate(num_bytes), gpu.allocate(num_bytes)
    time = microseconds(gpu, lambda: gpu.copy(to, source, num_bytes), parts=1, replays=replays)
    gpu.free_all()
    return 2 * num_bytes / time / 1e3


def copies_beyond_cache(gpu: Gpu, num_bytes: int) -> int:
    """Copies of ``num_bytes`` to use in turn, so that none is still in the cache: at least 2."""
    return max(2, -(-4 * gpu.l2_bytes // num_bytes) + 1)
