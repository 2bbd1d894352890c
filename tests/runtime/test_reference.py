"""The reference backend implements the graphs of docs/architecture.md."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import MtpSpec
from selfdraft.runtime.backend import Backend, Step
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.runtime.weights import dequantise_int4

VARIANTS = {
    "mimo": {},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
    "tied": {"tied_head": True, "qkv_bias": False},
}
HEADS = {
    "hidden first, before the norm": MtpSpec(concat="hidden_first", tap="pre_norm"),
    "embedding first, after the norm": MtpSpec(
        concat="embedding_first", tap="post_norm", recycle="pre_norm"
    ),
    "masked, trimmed": MtpSpec(
        concat="hidden_first", tap="post_norm", mask_first_embedding=True, draft_vocab_size=20
    ),
}


def _step(past: list[int], rows: list[int], index: list[list[int]]) -> Step:
    return Step(
        past_len=np.array(past),
        row_count=np.array(rows),
        attend_all=np.zeros(len(past), dtype=np.int64),
        row_index=np.array(index),
    )


class _WrittenOut:
    """The graphs for one sequence, a token and a head at a time."""

    def __init__(self, model: Any, weights: dict[str, Any], embedding: Any) -> None:
        self.model, self.weights, self.embedding = model, weights, embedding

    def norm(self, x: Any, name: str) -> Any:
        weight = self.weights[name]
        return x / math.sqrt(np.mean(x * x) + self.model.rms_norm_eps) * weight

    def rotate(self, x: Any, position: int) -> Any:
        half = len(x) // 2
        out = np.empty_like(x)
        for i, frequency in enumerate(self.model.rope.inv_freq):
            c, s = math.cos(position * frequency), math.sin(position * frequency)
            out[i] = x[i] * c - x[i + half] * s
            out[i + half] = x[i + half] * c + x[i] * s
        return out

    def layer(self, rows: list[Any], prefix: str) -> list[Any]:
        m, w, d = self.model, self.weights, self.model.head_dim
        heads: list[Any] = []
        for position, x in enumerate(rows):
            qkv = self.norm(x, f"{prefix}.input_norm") @ w[f"{prefix}.qkv.weight"]
            if m.qkv_bias:
                qkv = qkv + w[f"{prefix}.qkv.bias"]
            parts = list(qkv.reshape(-1, d))
            for h in range(m.num_heads + m.num_kv_heads):
                if m.qk_norm:
                    kind = "q_norm" if h < m.num_heads else "k_norm"
                    parts[h] = self.norm(parts[h], f"{prefix}.{kind}")
                parts[h] = self.rotate(parts[h], position)
            heads.append(parts)
        out = []
        for position, x in enumerate(rows):
            mixed = []
            for h in range(m.num_heads):
                kv = m.num_heads + h // (m.num_heads // m.num_kv_heads)
                scores = [
                    heads[position][h] @ heads[t][kv] / math.sqrt(d) for t in range(position + 1)
                ]
                shares = np.exp(np.array(scores) - max(scores))
                shares /= shares.sum()
                mixed.append(
                    sum(share * heads[t][kv + m.num_kv_heads] for t, share in enumerate(shares))
                )
            x = x + np.concatenate(mixed) @ w[f"{prefix}.o.weight"]
            gate, up = np.split(
                self.norm(x, f"{prefix}.post_norm") @ w[f"{prefix}.gate_up.weight"], 2
            )
            out.append(x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.down.weight"])
        return out

    def backbone(self, tokens: list[int]) -> tuple[list[Any], list[Any], list[Any]]:
        """Hidden states before and after the final norm, and logits."""
        rows = [self.embedding[token] for token in tokens]
        for layer in range(self.model.num_layers):
            rows = self.layer(rows, f"backbone.layers.{layer}")
        normed = [self.norm(row, "backbone.norm") for row in rows]
        head = self.embedding.T if self.model.tied_head else self.weights["lm_head.weight"]
        return rows, normed, [row @ head for row in normed]

    def mtp(self, taps: list[Any], next_tokens: list[int]) -> tuple[list[Any], list[Any]]:
        """Recycled hidden states and draft logits of every row."""
        spec, joined = self.model.mtp, []
        for position, (tap, token) in enumerate(zip(taps, next_tokens, strict=True)):
            embedding = self.embedding[token]
            if spec.mask_first_embedding and position == 0:
                embedding = embedding * 0
            parts = [self.norm(tap, "mtp.hidden_norm"), self.norm(embedding, "mtp.embedding_norm")]
            parts = parts if spec.concat == "hidden_first" else parts[::-1]
            joined.append(np.concatenate(parts) @ self.weights["mtp.proj.weight"])
        rows = self.layer(joined, "mtp.layer")
        normed = [self.norm(row, "mtp.final_norm") for row in rows]
        head = self.embedding.T if self.model.tied_head else self.weights["lm_head.weight"]
        if spec.draft_vocab_size is not None:
            head = self.weights["mtp.draft_head.weight"]
        logits = [row @ head for row in normed]
        return (rows if spec.recycle == "pre_norm" else normed), logits


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_graphs_equal_the_text_of_the_architecture(
    tiny: ModuleType, variant: str, head: str
) -> None:
    model = tiny.model_spec(**VARIANTS[variant], mtp=HEADS[head])
    weights, embedding = tiny.random_weights(model, seed=1)
    backend = ReferenceBackend(tiny.manifest(model, candidates=5), weights, embedding)
    oracle = _WrittenOut(model, weights, embedding)
    tokens, nexts = [3, 60, 3, 17, 8, 41], [60, 3, 17, 8, 41, 2]
    pre, post, logits = oracle.backbone(tokens)
    taps = pre if model.mtp.tap == "pre_norm" else post
    recycled, draft_logits = oracle.mtp(taps, nexts)

    states = backend.allocate(batch=2, capacity=64)
    # Slot 0 takes four rows then two, slot 1 one row then five; both are padded.
    for past, rows in (([0, 0], [4, 1]), ([4, 1], [2, 5])):
        ids, next_ids = np.zeros((2, 6), dtype=np.int64), np.zeros((2, 6), dtype=np.int64)
        for slot in range(2):
            span = slice(past[slot], past[slot] + rows[slot])
            ids[slot, : rows[slot]], next_ids[slot, : rows[slot]] = tokens[span], nexts[span]
        step = _step(past, rows, [[rows[0] - 1, 0], [0, rows[1] - 1]])
        output = backend.run_backbone(states, step, ids)
        drafts = backend.run_mtp(states, step, next_ids, output.hidden)
        for slot in range(2):
            for index, row in enumerate(step.row_index[slot]):
                at = past[slot] + row
                np.testing.assert_allclose(output.hidden[slot, row], taps[at], rtol=1e-9)
                full = backend.read_rows(output.logits, [(slot, index)])[0]
                np.testing.assert_allclose(full, logits[at], rtol=1e-9, atol=1e-10)
                best = np.argsort(-full, kind="stable")[:5]
                assert output.top_ids[slot, index].tolist() == best.tolist()
                np.testing.assert_array_equal(output.top_values[slot, index], full[best])
                np.testing.assert_allclose(drafts.hidden[slot, index], recycled[at], rtol=1e-9)
                ranked = np.argsort(-draft_logits[at], kind="stable")[:5]
                ids_of = weights.get("mtp.draft_ids", np.arange(model.vocab_size))
                assert drafts.top_ids[slot, index].tolist() == ids_of[ranked].tolist()
                assert drafts.draft_ids[slot, index] == ids_of[ranked[0]]


def test_reference_backend_satisfies_the_seam(tiny: ModuleType) -> None:
    backend: Backend = tiny.backend()
    states = backend.allocate(batch=3, capacity=128)
    assert (states.batch, states.capacity) == (3, 128)
    # 2 + 1 layers, keys and values, 3 slots, 2 kv heads, 128 places, 8 dims, 8 bytes
    assert states.num_bytes == 3 * 2 * 3 * 2 * 128 * 8 * 8


def test_mtp_pass_without_a_head_is_refused(tiny: ModuleType) -> None:
    backend = tiny.backend(tiny.model_spec(mtp=None))
    states = backend.allocate(batch=1, capacity=64)
    with pytest.raises(ConfigError, match="no MTP head"):
        backend.run_mtp(states, _step([0], [1], [[0]]), np.zeros((1, 1), np.int64), None)


def test_int4_nibbles_are_low_first_signed_and_scaled_by_input_block() -> None:
    packed = np.array([0x81, 0x7F, 0xF0, 0x0A], dtype=np.uint8)
    # [in 4, out 2]; block of two inputs
    scale = np.array([[1.0, 10.0], [0.5, 2.0]], dtype=np.float32)
    expected = [[1.0, -80.0], [-1.0, 70.0], [0.0, -2.0], [-3.0, 0.0]]
    assert dequantise_int4(packed, scale, (4, 2)).tolist() == expected


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda w: w.pop("mtp.proj.weight"), r"lack mtp\.proj\.weight \[64, 32\]"),
        (lambda w: w.update({"mtp.extra": np.zeros(1)}), "unknown tensor: mtp.extra"),
        (lambda w: w.update({"backbone.norm": np.zeros(3)}), r"backbone\.norm has shape \[3\]"),
        (
            lambda w: w.update({"lm_head.weight.int4": np.zeros(1024, np.uint8)}),
            r"lm_head\.weight\.int4 .* with no scale does not unpack",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(tiny: ModuleType, change: Any, match: str) -> None:
    model = tiny.model_spec()
    weights, embedding = tiny.random_weights(model)
    change(weights)
    with pytest.raises(BundleError, match=match):
        ReferenceBackend(tiny.manifest(model), weights, embedding)


def test_embedding_of_another_shape_is_named(tiny: ModuleType) -> None:
    model = tiny.model_spec()
    weights, embedding = tiny.random_weights(model)
    with pytest.raises(BundleError, match=r"embedding has shape \[63, 32\]"):
        ReferenceBackend(tiny.manifest(model), weights, embedding[:-1])


def _quantised(matrix: Any, block: int) -> tuple[Any, Any, Any]:
    """Packed int4, scales, and the matrix they stand for."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows // block, block, columns)
    scale = (np.abs(blocks).max(axis=1) / 7).astype(np.float32)
    codes = np.clip(np.round(blocks / scale[:, None]), -8, 7).astype(np.int64)
    flat = codes.reshape(-1) & 0x0F
    packed = (flat[0::2] | flat[1::2] << 4).astype(np.uint8)
    return packed, scale, (codes * scale[:, None].astype(np.float64)).reshape(rows, columns)


@pytest.mark.parametrize("int4", [False, True])
def test_backend_from_a_bundle_equals_the_one_from_arrays(
    tiny: ModuleType, bundle_files: ModuleType, tmp_path: Path, int4: bool
) -> None:
    model = tiny.model_spec(mtp=MtpSpec(concat="hidden_first", tap="pre_norm", draft_vocab_size=9))
    weights, embedding = tiny.random_weights(model)
    embedding = embedding.astype(np.float32)
    stored, meant = dict(weights), dict(weights)
    for name in [name for name in weights if int4 and name.endswith(".weight")]:
        packed, scale, meant[name] = _quantised(stored.pop(name), 16)
        stored |= {f"{name}.int4": packed, f"{name}.scale": scale}
    path = bundle_files.write_bundle(
        tmp_path / "bundle",
        tiny.manifest(model),
        weights=lambda file: save_file(stored, file),
        embedding=lambda file: save_file({"embedding": embedding}, file),
    )
    loaded = ReferenceBackend.from_bundle(path)
    direct = ReferenceBackend(tiny.manifest(model), meant, embedding)
    results = []
    for backend in (loaded, direct):
        states = backend.allocate(batch=1, capacity=64)
        step = _step([0], [3], [[2]])
        output = backend.run_backbone(states, step, np.array([[1, 2, 3]]))
        drafts = backend.run_mtp(states, step, np.array([[2, 3, 4]]), output.hidden)
        results.append((output.logits, drafts.top_values))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_bundle_whose_weights_are_no_safetensors_is_refused(
    tiny: ModuleType, bundle_files: ModuleType, tmp_path: Path
) -> None:
    path = bundle_files.write_bundle(tmp_path / "bundle", tiny.manifest(tiny.model_spec()))
    with pytest.raises(BundleError, match=r"embedding\.safetensors cannot be read"):
        ReferenceBackend.from_bundle(path)
