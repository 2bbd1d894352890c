"""onnxruntime-genai's own export of a Qwen3.5 checkpoint, and what its two graphs answer.

Its builder reads ``mtp.*`` by itself and writes ``mtp.onnx``: an implementation of the head that shares
nothing with ours. The graphs run on ONNX Runtime; its generation loop is not used.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
PASSES = ((0, 20), (20, 4), (22, 1), (23, 1), (24, 1))
"""``(past, rows)`` of each pass of the head: a prompt, a verified step, and a chain of drafts that
overwrites two rows of it and feeds on the head's own hidden states."""
TARGET_ROWS = 24
"""Rows that the backbone computes."""


def build(checkpoint: Path, output: Path) -> None:
    """Both graphs in fp32 for ONNX Runtime's CPU provider; raises with the builder's words."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    command += ["-i", str(checkpoint), "-o", str(output), "-c", str(output / "cache")]
    command += ["-p", "fp32", "-e", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"onnxruntime-genai's builder failed:\n{done.stderr[-2000:]}")


class GenaiGraph:
    """One graph and the states of one sequence; ``run`` may go back to a shorter ``past`` of a KV cache."""

    def __init__(self, path: Path, *, head_dim: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]
        sizes = {"batch_size": 1, "past_sequence_length": 0, "kv_cache_dim": head_dim}
        self._states: Arrays = {
            node.name: np.zeros([sizes.get(size, size) for size in node.shape], dtype=np.float32)
            for node in self._session.get_inputs()
            if node.name.startswith("past")
        }

    def run(self, past: int, ids: NDArray[np.int64], **inputs: NDArray[np.float32]) -> Arrays:
        """Outputs ``[n, ...]`` by name for ``ids [n]`` behind ``past`` tokens, and more inputs."""
        rows = len(ids)
        feed: dict[str, Any] = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, past + rows), dtype=np.int64),
            "position_ids": np.tile(np.arange(past, past + rows), (3, 1, 1)),
            **{name: array[None] for name, array in inputs.items()},
        }
        for name, state in self._states.items():
            feed[name] = state[:, :, :past] if name.endswith((".key", ".value")) else state
        found = dict(zip(self._outputs, self._session.run(None, feed), strict=True))
        for name in self._states:
            kind = name.removeprefix("past_key_values.").removeprefix("past.")
            self._states[name] = found.pop(f"present.{kind}")
        return {name: array[0] for name, array in found.items()}


def record(folder: Path, *, head_dim: int, seed: int = 3) -> Arrays:
    """What the graphs in ``folder`` answer.

    ``ids [TARGET_ROWS]``, ``hidden``, ``logits``: the backbone's. ``fed [R, H]``, ``fed_ids``,
    ``mtp_hidden``, ``mtp_logits``: inputs and outputs of the head, rows of ``PASSES`` in their order.
    """
    ids = np.random.default_rng(seed).integers(0, 256, TARGET_ROWS + 1)
    target = GenaiGraph(folder / "model.onnx", head_dim=head_dim).run(0, ids[:-1])
    head = GenaiGraph(folder / "mtp.onnx", head_dim=head_dim)
    rows: dict[str, list[NDArray[Any]]] = {}
    found: Arrays = {}
    for past, count in PASSES:
        if count > 1:
            hidden, fed = target["hidden_states"][past : past + count], ids[past + 1 :][:count]
        else:
            # A row behind row past - 1 of the pass before it: its hidden state, and its draft.
            before = min(past - PASSES[1][0], len(found["logits"])) - 1
            hidden = found["hidden_states_out"][before][None]
            fed = found["logits"][before].argmax()[None]
        found = head.run(past, fed, hidden_states=hidden)
        parts = (hidden, fed, found["hidden_states_out"], found["logits"])
        for name, part in zip(("fed", "fed_ids", "mtp_hidden", "mtp_logits"), parts, strict=True):
            rows.setdefault(name, []).append(part)
    recorded = {name: np.concatenate(parts) for name, parts in rows.items()}
    backbone = {"hidden": target["hidden_states"], "logits": target["logits"]}
    return {"ids": ids[:-1], **backbone, **recorded}
