"""NumPy fp64 oracle of ``GatedDeltaRule``: row by row, what every other body is compared with.

Source of the rule: Gated Delta Networks (arXiv 2412.06464), eq. 10; of convolution, L2 norm and
scale the published Qwen3.5 model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS, state_length
from selfdraft.trt_plugins.gated_delta_rule.contract import L2_EPS, GatedDeltaRule

IntArray = NDArray[np.int64]
Float64 = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]


def gated_delta_rule(
    op: GatedDeltaRule,
    rows: dict[str, FloatArray],
    states: dict[str, FloatArray],
    *,
    conv_weight: FloatArray,
    past_len: IntArray,
    row_count: IntArray,
    replay_rows: IntArray,
) -> Float64:
    """``y [B, n, Hv dv]`` of a step; ``states`` (contract) are updated in place.

    ``rows``: ``x [B, n, C]``, ``beta`` and ``log_decay [B, n, Hv]``; ``conv_weight [C, taps]``; the
    rest ``[B]``. Rows beyond ``row_count`` give zeros and write nothing; a slot without rows keeps
    its states. Raises ``ValueError`` where ``past_len`` is no length that the states reach.
    """
    x = rows["x"]
    y = np.zeros((*x.shape[:2], op.value_size))
    for slot in np.flatnonzero(row_count).tolist():
        count = int(row_count[slot])
        y[slot, :count] = _slot(
            op,
            {name: array[slot, :count] for name, array in rows.items()},
            {name: array[slot] for name, array in states.items()},
            conv_weight.astype(np.float64),
            past_len=int(past_len[slot]),
            replay=int(replay_rows[slot]),
        )
    return y


def _slot(
    op: GatedDeltaRule,
    rows: dict[str, FloatArray],
    states: dict[str, FloatArray],
    conv_weight: Float64,
    *,
    past_len: int,
    replay: int,
) -> Float64:
    """Replay the log, then the rows of one slot: ``y [rows, Hv dv]``."""
    first = past_len - replay
    if first % DELTA_BLOCK or not 0 <= replay <= min(LOG_ROWS, past_len):
        raise ValueError(f"length {past_len} with {replay} rows of the log is out of reach")
    if past_len == 0:
        for name in ("recurrent", "conv_rows"):
            states[name][:] = 0
    before = op.taps - 1
    raw = np.concatenate([states["conv_rows"][: before + replay], rows["x"]]).astype(np.float64)
    gates = np.concatenate([rows["beta"], rows["log_decay"]], axis=-1)
    gates = np.concatenate([states["gate_rows"][:replay], gates]).astype(np.float64)
    count = len(gates)
    q, k, v = _heads(op, raw, conv_weight, count)
    beta, log_decay = np.split(gates, 2, axis=-1)
    moved = state_length(past_len, count - replay) - first
    state = states["recurrent"].astype(np.float64)  # [Hv, dk, dv]
    y = np.empty((count, op.num_value_heads, op.value_dim))
    for t in range(count):
        if t == moved:
            states["recurrent"][:] = state
        state = state * np.exp(log_decay[t])[:, None, None]
        known = np.einsum("hkv,hk->hv", state, k[t])
        written = (v[t] - known) * beta[t][:, None]
        state = state + k[t][:, :, None] * written[:, None, :]
        y[t] = np.einsum("hkv,hk->hv", state, q[t])
    if moved == count:
        states["recurrent"][:] = state
    _log(states["conv_rows"], raw[moved:])
    _log(states["gate_rows"], gates[moved:])
    return y[replay:].reshape(count - replay, -1)


def _log(log: FloatArray, rows: Float64) -> None:
    log[: len(rows)] = rows
    log[len(rows) :] = 0


def _heads(
    op: GatedDeltaRule, raw: Float64, conv_weight: Float64, count: int
) -> tuple[Float64, Float64, Float64]:
    """q and k ``[rows, Hv, dk]``, v ``[rows, Hv, dv]`` behind convolution, SiLU and norms."""
    windows = np.lib.stride_tricks.sliding_window_view(raw, op.taps, axis=0)  # [rows, C, taps]
    mixed = np.einsum("tcj,cj->tc", windows, conv_weight)
    mixed = mixed * 0.5 * (1.0 + np.tanh(0.5 * mixed))
    q, k, v = np.split(mixed, (op.key_size, 2 * op.key_size), axis=-1)
    keys = [_normed(part.reshape(count, op.num_key_heads, op.key_dim)) for part in (q, k)]
    q, k = (np.repeat(part, op.group, axis=1) for part in keys)
    return q * op.key_dim**-0.5, k, v.reshape(count, op.num_value_heads, op.value_dim)


def _normed(x: Float64) -> Float64:
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS))
