"""How far the next-token distribution of one attention is from that of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Two distributions over the vocabulary at one position."""

    kl: float
    """Kullback-Leibler divergence KL(dense || sparse) in nats, at least 0."""
    same_top: bool
    """Both find the same token likeliest."""


def divergence(dense: FloatArray, sparse: FloatArray) -> Divergence:
    """The divergence between logits ``dense [V]`` and ``sparse [V]``, computed in fp64."""
    log_p, log_q = _log_softmax(dense), _log_softmax(sparse)
    # Rounding may leave a tiny negative sum where both are equal.
    kl = max(float(np.exp(log_p) @ (log_p - log_q)), 0.0)
    return Divergence(kl=kl, same_top=int(np.argmax(log_p)) == int(np.argmax(log_q)))


def _log_softmax(logits: FloatArray) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
