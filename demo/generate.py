"""Greedy generation with a key-value cache, one sequence at a time."""

from __future__ import annotations

import torch

from demo.model import DemoModel, KeyValue, rope_tables


class Greedy:
    """Plain greedy decoding; keeps the cache of the sequence read so far."""

    def __init__(self, model: DemoModel) -> None:
        self.model = model
        self.past: list[KeyValue | None] = [None] * model.config.num_hidden_layers
        self.length = 0

    def read(self, ids: list[int]) -> int:
        """Reads `ids` (several only at the start) and returns the most likely next token."""
        rope = rope_tables(self.model.config, torch.arange(self.length, self.length + len(ids)))
        x = self.model.model.embed_tokens(torch.tensor([ids]))
        for index, layer in enumerate(self.model.model.layers):
            x, self.past[index] = layer(x, rope, self.past[index])
        self.length += len(ids)
        return int(self.model.lm_head(self.model.model.norm(x[:, -1])).argmax())


@torch.inference_mode()
def generate(model: DemoModel, prompt: list[int], *, max_tokens: int, stop: set[int]) -> list[int]:
    """Greedy continuation of `prompt`; ends after `max_tokens` or before a stop token."""
    decoder = Greedy(model)
    token = decoder.read(prompt)
    out: list[int] = []
    while token not in stop and len(out) < max_tokens:
        out.append(token)
        token = decoder.read([token])
    return out
