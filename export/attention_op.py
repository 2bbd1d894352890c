"""``selfdraft::CachedAttention`` in torch: an eager body, a traceable op, its ONNX name.

The contract is design's op (docs/architecture.md); ``trt_plugins.cached_attention`` holds the
NumPy oracle and the ONNX function body that this op stands for in a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("selfdraft::cached_attention", mutates_args=())
def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    past_len: Tensor,
    row_count: Tensor,
    attend_all: Tensor,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``y [B, n, Hq d]`` and the caches ``[B, Hkv, S, d]`` with k, v appended at ``past_len``.

    q ``[B, n, Hq d]``, k and v ``[B, n, Hkv d]``; ``past_len``, ``row_count``, ``attend_all``
    ``[B]``. Padded rows go to the scratch slot S-1.
    """
    batch, rows, _ = q.shape
    head_dim = k.shape[2] // num_kv_heads
    capacity = k_cache.shape[2]
    row = torch.arange(rows)
    position = past_len[:, None] + row  # [B, n]
    slot = torch.where(row < row_count[:, None], position, capacity - 1)
    slots = torch.arange(batch)[:, None]
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    k_cache[slots, :, slot] = k.reshape(batch, rows, num_kv_heads, head_dim)
    v_cache[slots, :, slot] = v.reshape(batch, rows, num_kv_heads, head_dim)
    total = max(int((past_len + row_count).max()), 1)
    keys, values = k_cache[:, :, :total], v_cache[:, :, :total]  # [B, Hkv, T, d]
    group = num_heads // num_kv_heads
    queries = q.reshape(batch, rows, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    scores = torch.einsum("bhgnd,bhtd->bhgnt", queries * scale, keys)
    visible = torch.arange(total) <= position[..., None]  # [B, n, T]
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    y = torch.einsum("bhgnt,bhtd->bnhgd", scores.softmax(-1), values)
    return y.reshape(batch, rows, num_heads * head_dim), k_cache, v_cache


@cached_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


def onnx_translation() -> Any:
    """The function that ``torch.onnx.export`` calls to emit the op (custom_translation_table)."""
    import onnx
    import onnxscript

    schema_type = onnx.defs.OpSchema
    formal = schema_type.FormalParameter
    floats = ["q", "k", "v", "k_cache", "v_cache"]
    integers = ["past_len", "row_count", "attend_all"]
    attribute = schema_type.Attribute
    schema = schema_type(
        "CachedAttention",
        "selfdraft",
        1,
        inputs=[formal(n, "T") for n in floats] + [formal(n, "I") for n in integers],
        outputs=[formal(n, "T") for n in ("y", "k_cache_out", "v_cache_out")],
        type_constraints=[
            ("T", ["tensor(float)", "tensor(float16)"], "activations and caches"),
            ("I", ["tensor(int64)"], "lengths"),
        ],
        attributes=[
            attribute("num_heads", schema_type.AttrType.INT, required=True),
            attribute("num_kv_heads", schema_type.AttrType.INT, required=True),
            attribute("scale", schema_type.AttrType.FLOAT, required=True),
        ],
    )
    op = onnxscript.values.Op(onnxscript.values.Opset("selfdraft", 1), "CachedAttention", schema)

    def translate(
        q: Any,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        past_len: Any,
        row_count: Any,
        attend_all: Any,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
    ) -> Any:
        return op(
            q,
            k,
            v,
            k_cache,
            v_cache,
            past_len,
            row_count,
            attend_all,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            scale=scale,
        )

    return translate
