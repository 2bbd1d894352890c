"""onnxruntime-genai as a contender: its generation loop, and its graph in a bare session."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import BATCH_TOKEN


class GenaiLoop:
    """onnxruntime-genai's own loop, greedy: a step runs the model and picks a token."""

    def __init__(
        self, model_folder: Path, *, length: int, context_length: int, threads: int
    ) -> None:
        og = import_module("onnxruntime_genai")
        og.disable_telemetry_events()
        config = og.Config(str(model_folder))
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = og.Model(config)
        params = og.GeneratorParams(self._model)
        params.set_search_options(max_length=context_length, do_sample=False)
        self._generator = og.Generator(self._model, params)
        self._length = length
        vocab = json.loads((model_folder / "genai_config.json").read_text())["model"]["vocab_size"]
        random = np.random.default_rng(0)
        # Its end token is the last id: a prompt must not hold it.
        self._prompt = random.integers(vocab - 1, size=length).astype(np.int32)
        self._generator.append_tokens(self._prompt[:-1])

    @property
    def tokens(self) -> list[int]:
        """Prompt and reply so far."""
        return [int(token) for token in self._generator.get_sequence(0)]

    def restart(self, prompt: NDArray[Any]) -> None:
        """Forget everything and compute ``prompt [T]``."""
        self._generator.rewind_to(0)
        self._generator.append_tokens(prompt.astype(np.int32))

    def logits(self) -> NDArray[np.float32]:
        """Logits ``[V]`` of the newest position."""
        rows = np.asarray(self._generator.get_logits(), dtype=np.float32)
        newest: NDArray[np.float32] = rows.reshape(-1, rows.shape[-1])[-1]
        return newest

    def prepare(self) -> None:
        """Back to the prompt; its rows stay in the caches."""
        self._generator.rewind_to(self._length - 1)
        self._generator.append_tokens(self._prompt[-1:])

    def step(self) -> int:
        """One token. The first one after ``prepare`` comes from the prompt's logits."""
        if self._generator.is_done():
            raise RuntimeError("the peer stopped early: raise --steps' context or change the seed")
        self._generator.generate_next_token()
        return 1


class GenaiGraph:
    """Its graph in an onnxruntime session, every buffer bound: the engine without its loop."""

    def __init__(self, model_folder: Path, *, length: int, capacity: int, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            str(model_folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._io = self._session.io_binding()
        self._kept: list[Any] = []
        self.caches: list[NDArray[np.float32]] = []
        """Keys and values of every layer, ``[1, Hkv, capacity, d]``."""
        random = np.random.default_rng(0)
        for tensor in self._session.get_inputs():
            if not tensor.name.startswith("past_key_values."):
                continue
            cache = np.zeros((1, tensor.shape[1], capacity, _head_size(model_folder)), np.float32)
            filled = cache[:, :, :length]
            filled[...] = random.standard_normal(filled.shape, dtype=np.float32)
            self.caches.append(cache)
            value = self._bind_input(tensor.name, cache)
            # One buffer as past and present: the operator then appends in place.
            present = tensor.name.replace("past_key_values", "present")
            self._io.bind_ortvalue_output(present, value)
        self._bind_input("input_ids", np.full((1, 1), BATCH_TOKEN, np.int64))
        self._bind_input("attention_mask", np.ones((1, length), np.int64))
        vocab = self._session.get_outputs()[0].shape[2]
        logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, vocab), np.float32))
        self._kept.append(logits)
        self._io.bind_ortvalue_output("logits", logits)

    def _bind_input(self, name: str, array: Any) -> Any:
        import onnxruntime as ort

        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._kept.append((array, value))
        self._io.bind_ortvalue_input(name, value)
        return value

    def prepare(self) -> None:
        """Nothing: a step does not advance."""

    def step(self) -> int:
        """One pass at one length."""
        self._session.run_with_iobinding(self._io)
        return 1


def _head_size(model_folder: Path) -> int:
    config = json.loads((model_folder / "genai_config.json").read_text())
    return int(config["model"]["decoder"]["head_size"])
