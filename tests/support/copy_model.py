"""A crafted model whose MTP head predicts the target exactly, if it is wired right.

Every token's embedding carries a large constant, which makes RMSNorm linear, and a random code E.
Backbone layer 0 attends to exactly the previous token and writes its code into the dimensions P.
Layer 1 reads E and P, attends to all earlier tokens but the first, and writes what the LM head
reads. The MTP layer is a copy of layer 1: its E comes from the embedding of the next token, its P
from the E of the hidden state, so row p of the head computes what layer 1 computes at p + 1.

The final norm flips the sign of E: the tap before the norm and the one after it differ, and
``proj`` expects the one that the manifest names. ``noise`` on the head's MLP makes drafts wrong
now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import ModelSpec, MtpSpec, RopeSpec
from selfdraft.runtime.reference import ReferenceBackend

CODE = 16
CONST = 0
E, P, A, OUT = (slice(1 + i * CODE, 1 + (i + 1) * CODE) for i in range(4))
HIDDEN = 1 + 4 * CODE
HEAD_DIM = 16
NUM_HEADS = 4
NUM_KV_HEADS = 2
MLP = 64
LARGE = 1e6
FIRST = 0
"""Every prompt starts with this token, which the model never writes itself."""

FREQUENCIES = (3.0, 1.7, 0.9, 0.5, 0.25, 0.11, 0.05, 0.0)
"""Seven that single out one distance, and one pair that does not turn."""

Weights = dict[str, NDArray[Any]]


def spec(**mtp: Any) -> ModelSpec:
    wiring = {"concat": "hidden_first", "tap": "pre_norm", "recycle": "pre_norm"} | mtp
    return ModelSpec(
        family="copy",
        vocab_size=64,
        hidden_size=HIDDEN,
        num_layers=2,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=MLP,
        rms_norm_eps=1e-12,
        qkv_bias=False,
        qk_norm=False,
        tied_head=False,
        rope=RopeSpec(inv_freq=FREQUENCIES),
        mtp=MtpSpec(**wiring),
    )


def backend(
    tiny: ModuleType,
    *,
    noise: float = 0.0,
    seed: int = 0,
    mtp: Mapping[str, Any] | None = None,
    claimed: Mapping[str, Any] | None = None,
    **limits: Any,
) -> ReferenceBackend:
    """The crafted model on the backend that ``tiny`` makes: the reference, unless it says otherwise.

    ``mtp`` are fields of ``MtpSpec`` that the weights are made for; ``claimed`` those that the
    manifest states instead (a planted mistake); ``limits`` go to ``manifest``.
    """
    wiring = dict(mtp or {})
    weights, embedding = weights_and_embedding(spec(**wiring), noise=noise, seed=seed)
    manifest = tiny.manifest(spec(**(wiring | dict(claimed or {}))), **limits)
    made: ReferenceBackend = tiny.make(manifest, weights, embedding)
    return made


def weights_and_embedding(
    model: ModelSpec, *, noise: float, seed: int
) -> tuple[Weights, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    embedding = np.zeros((model.vocab_size, HIDDEN))
    embedding[:, CONST] = LARGE
    embedding[:, E] = rng.standard_normal((model.vocab_size, CODE))
    embedding[FIRST, A] = 1.0  # marks the first token, for layer 1 to leave out
    content = _content_layer(rng)
    unit = np.full(HIDDEN, LARGE / np.sqrt(HIDDEN))  # undoes the norm of a vector near LARGE
    flipped = unit.copy()
    flipped[E] *= -1.0
    weights: Weights = {"backbone.norm": flipped, "mtp.final_norm": flipped}
    weights |= {"mtp.hidden_norm": unit, "mtp.embedding_norm": unit}
    weights |= _named("backbone.layers.0", _previous_token_layer(), unit)
    weights |= _named("backbone.layers.1", content, unit)
    noisy = dict(content)
    noisy["down.weight"] = content["down.weight"] + noise * np.pad(
        rng.standard_normal((MLP, CODE)) / np.sqrt(MLP), ((0, 0), (OUT.start, 0))
    )
    weights |= _named("mtp.layer", noisy, unit)
    weights["mtp.proj.weight"] = _projection(model)
    head = np.zeros((HIDDEN, model.vocab_size))
    head[OUT] = rng.standard_normal((CODE, model.vocab_size)) / 500.0
    head[CONST, FIRST] = -1.0  # times LARGE: never drawn
    weights["lm_head.weight"] = head
    if model.mtp is not None and model.mtp.draft_vocab_size is not None:
        ids = np.sort(rng.choice(model.vocab_size, model.mtp.draft_vocab_size, replace=False))
        weights |= {"mtp.draft_head.weight": head[:, ids], "mtp.draft_ids": ids.astype(np.int64)}
    return weights, embedding


def _named(prefix: str, layer: Weights, unit: NDArray[np.float64]) -> Weights:
    norms = {"input_norm": unit, "post_norm": unit}
    return {f"{prefix}.{name}": array for name, array in (norms | layer).items()}


def _projection(model: ModelSpec) -> NDArray[np.float64]:
    assert model.mtp is not None
    from_hidden, from_embedding = np.zeros((2, HIDDEN, HIDDEN))
    sign = 1.0 if model.mtp.tap == "pre_norm" else -1.0
    from_hidden[E, P] = sign * np.eye(CODE)
    from_embedding[CONST, CONST] = 1.0
    from_embedding[E, E] = np.eye(CODE)
    parts = [from_hidden, from_embedding]
    if model.mtp.concat == "embedding_first":
        parts.reverse()
    return np.concatenate(parts)


def _previous_token_layer() -> Weights:
    """Query and key are constants that fit best one position apart; the value is E."""
    qkv = np.zeros((HIDDEN, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM))
    angles = np.asarray(FREQUENCIES)
    # After rotation q·k is a sum of cos(w (distance - 1)).
    query = np.concatenate([np.cos(angles), -np.sin(angles)]) * 200.0
    key = np.concatenate([np.ones(HEAD_DIM // 2), np.zeros(HEAD_DIM // 2)])
    qkv[CONST, :HEAD_DIM] = query / LARGE
    qkv[CONST, NUM_HEADS * HEAD_DIM : (NUM_HEADS + 1) * HEAD_DIM] = key / LARGE
    first_value = (NUM_HEADS + NUM_KV_HEADS) * HEAD_DIM
    qkv[E, first_value : first_value + HEAD_DIM] = np.eye(CODE)
    out = np.zeros((NUM_HEADS * HEAD_DIM, HIDDEN))
    out[:HEAD_DIM, P] = np.eye(CODE)
    return {
        "qkv.weight": qkv,
        "o.weight": out,
        "gate_up.weight": np.zeros((HIDDEN, 2 * MLP)),
        "down.weight": np.zeros((MLP, HIDDEN)),
    }


def _content_layer(rng: np.random.Generator) -> Weights:
    """Random attention and MLP over E and P; the first token's key repels every query."""
    qkv = np.zeros((HIDDEN, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM))
    reads = slice(E.start, P.stop)
    qkv[reads] = rng.standard_normal((2 * CODE, qkv.shape[1])) * 3.0 / np.sqrt(2 * CODE)
    repelled = HEAD_DIM // 2 - 1  # the pair that does not turn
    for head in range(NUM_HEADS):
        pair = [head * HEAD_DIM + repelled, head * HEAD_DIM + repelled + HEAD_DIM // 2]
        qkv[:, pair] = 0.0
        qkv[CONST, pair[0]] = 1e3 / LARGE
    for head in range(NUM_HEADS, NUM_HEADS + NUM_KV_HEADS):
        pair = [head * HEAD_DIM + repelled, head * HEAD_DIM + repelled + HEAD_DIM // 2]
        qkv[:, pair] = 0.0
        qkv[A, pair[0]] = -1e3 / CODE
    out = np.zeros((NUM_HEADS * HEAD_DIM, HIDDEN))
    out[:, A] = rng.standard_normal((NUM_HEADS * HEAD_DIM, CODE)) * 4.0 / np.sqrt(HEAD_DIM)
    gate_up = np.zeros((HIDDEN, 2 * MLP))
    gate_up[E.start : A.stop] = rng.standard_normal((3 * CODE, 2 * MLP)) * 2.0 / np.sqrt(3 * CODE)
    down = np.zeros((MLP, HIDDEN))
    down[:, OUT] = rng.standard_normal((MLP, CODE)) / np.sqrt(MLP)
    return {"qkv.weight": qkv, "o.weight": out, "gate_up.weight": gate_up, "down.weight": down}
