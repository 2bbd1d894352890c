"""Peak memory and throughput of an export, on a synthetic checkpoint of a real model's geometry.

    python -m benchmarks.export_memory mimo-7b --folder /data/synthetic

Writes random bf16 weights (15 GB for mimo-7b), exports them to int4 in a process of its own, prints
one JSON line and removes both. Random weights cost what real ones do: the search of scales does not
depend on values, and every byte is read and written.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.make_checkpoint import Qwen3Geometry, write_tokenizer
from benchmarks.synthetic_models import MODELS, Model

SHARD_BYTES = 4 * 10**9
POOL = 2**23
"""Random values that are drawn; tensors take them over and over, each from another place on."""


def write_synthetic(folder: Path, model: Model, *, seed: int = 0) -> int:
    """Random bf16 weights in shards, config and tokenizer; returns the bytes of the tensors."""
    folder.mkdir(parents=True)
    shards = list(_shards(model))
    pool = _bf16(np.random.default_rng(seed), POOL)
    weight_map, total = {}, 0
    for index, shapes in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        total += _write_shard(folder / file, shapes, pool, first=index * 7919)
        weight_map.update(dict.fromkeys(shapes, file))
    _write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    _write_json(folder / "config.json", model.config())
    write_tokenizer(folder, Qwen3Geometry(vocab=512))
    return total


def _shards(model: Model) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, shape in model.shapes():
        shard[name] = shape
        size += int(np.prod(shape)) * 2
        if size > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard


def _write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], pool: NDArray[np.uint16], *, first: int
) -> int:
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for index, shape in enumerate(shapes.values()):
            start, left = (first + index * 104_729) % len(pool), int(np.prod(shape))
            while left:
                piece = pool[start : start + left]
                file.write(piece.tobytes())
                start, left = 0, left - len(piece)
    return offset


def _bf16(rng: np.random.Generator, count: int) -> NDArray[np.uint16]:
    """Random bf16 of about the size of weights: uniform mantissas, exponents around 2^-6."""
    bits = rng.integers(0, 2**16, count, dtype=np.uint16)
    return np.asarray((bits & np.uint16(0x81FF)) | np.uint16(0x3C00), dtype="<u2")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def measure(folder: Path, model: Model, *, int4_block: int, target: str) -> dict[str, Any]:
    """What ``selfdraft export`` reports of this model."""
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    stored = write_synthetic(checkpoint, model)
    before = _children_seconds()
    try:
        command = [sys.executable, "-m", "selfdraft.cli.main", "export", str(checkpoint)]
        command += ["-o", str(bundle), "--target", target, "--weights", "int4"]
        command += ["--int4-block", str(int4_block), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        report = json.loads(done.stdout)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.rmtree(bundle, ignore_errors=True)
    largest = max(int(np.prod(shape)) * 2 for _, shape in model.shapes())
    return {
        "checkpoint_bytes": stored,
        "largest_tensor_bytes": largest,
        "peak_rss_gib": report["peak_rss_bytes"] / 2**30,
        "read_gb_per_s": report["read_gb_per_s"],
        "seconds": report["seconds"],
        "cpu_seconds": _children_seconds() - before,
        "bundle_bytes": sum(report["bytes_by_part"].values()),
    }


def _children_seconds() -> float:
    """CPU time of processes that have ended: other work on the machine does not add to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Write, export, report, clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--folder", type=Path, required=True, help="where both fit (removed after)")
    parser.add_argument("--int4-block", type=int, default=64)
    parser.add_argument("--target", default="cpu", help="cpu, orin-jp6 or orin-jp7")
    args = parser.parse_args()
    needed = sum(int(np.prod(shape)) * 4 for _, shape in MODELS[args.model].shapes())
    args.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.folder).free
    if free < needed:
        raise SystemExit(
            f"{args.folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} are needed"
        )
    options = {"int4_block": args.int4_block, "target": args.target}
    found = measure(args.folder, MODELS[args.model], **options)
    print(json.dumps({"model": args.model, **options, **found}))


if __name__ == "__main__":
    main()
