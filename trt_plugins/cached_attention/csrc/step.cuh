// One step of CachedAttention as all of its kernels see it: parameters, layouts, and the one place
// that decides which row sees which block and token. Contract: docs/attention.md.
#pragma once
#include "../../csrc/device.cuh"

constexpr int block_tokens = 64;
constexpr int tile_rows = 16;  // M of the MMA: query rows times heads of a group
constexpr int budget_parts_unit = 65536;
constexpr float log2_e = 1.4426950408889634f;

enum Selector : int { select_all, select_window, select_mean_std, select_min_max, select_infllm_v2 };

// Mirrored in trt_plugins/cached_attention/launches.py. B slots, n rows of a slot, Hq = G Hkv heads,
// d head_dim, N blocks of a slot's cache, T tiles of a slot, S splits.
struct Step {
  const half_t* q;    // [B, n, Hq, d]
  const half_t* k;    // [B, n, Hkv, d]
  const half_t* v;    // [B, n, Hkv, d]
  void* k_cache;      // [B, N, Hkv, 64, d] fp16 or int8
  void* v_cache;      // [B, N, Hkv, 64, d]
  half_t* k_scale;    // [B, N, Hkv, 64], int8 caches only
  half_t* v_scale;    // [B, N, Hkv, 64]
  half_t* summary;    // [B, Hkv, N, vectors, d], selectors that score only
  const i64* past_len;    // [B]
  const i64* row_count;   // [B]
  const i64* attend_all;  // [B]
  half_t* y;          // [B, n, Hq, d]
  i64* blocks_read;   // [1], or null
  // Workspace: undefined before the step, nothing is kept between steps.
  float* logits;      // [B, Hkv, T, 16, N columns]
  u32* keys;          // [B, Hkv, T, 16 / G, N]
  u32* list;          // [B, Hkv, T, N]: block id << 16 | rows of the tile that see it
  i32* list_count;    // [B, Hkv, T]
  float* partial;     // [B, Hkv, T, S, 16, d]
  float* partial_ml;  // [B, Hkv, T, S, 16, 2]: largest logit (base 2), sum of weights
  i32 batch, rows, kv_heads, group, blocks, tiles, splits;
  i32 selector, sinks, local_blocks, budget_tokens, budget_parts, sliding_window;
  float scale, spread;
};

// A tile holds whole query rows: 16 / G of them, row-major over (row, head).
SD_DEVICE int rows_per_tile(const Step& p) { return tile_rows / p.group; }

// What a CTA that works on one tile of one kv head of one slot needs to know.
struct Tile {
  int slot, kv_head, tile;
  int first_row;  // of the slot's rows
  int num_rows;   // real rows in the tile, 0 where it is padding
  i64 past;
  i64 index;      // of (slot, kv head, tile)
};

SD_DEVICE Tile tile_at(const Step& p, int slot, int kv_head, int tile) {
  Tile t;
  t.slot = slot;
  t.kv_head = kv_head;
  t.tile = tile;
  t.first_row = tile * rows_per_tile(p);
  const int left = static_cast<int>(load_global<Traffic::control>(p.row_count + slot)) - t.first_row;
  t.num_rows = left < 0 ? 0 : left < rows_per_tile(p) ? left : rows_per_tile(p);
  t.past = load_global<Traffic::control>(p.past_len + slot);
  t.index = (static_cast<i64>(slot) * p.kv_heads + kv_head) * p.tiles + tile;
  return t;
}

SD_DEVICE i64 position_of(const Tile& t, int row) { return t.past + t.first_row + row; }

// Offset of a token's K or V scale; times d: of its K or V.
SD_DEVICE i64 token_offset(const Step& p, int slot, int kv_head, i64 token) {
  const i64 block = static_cast<i64>(slot) * p.blocks + token / block_tokens;
  return (block * p.kv_heads + kv_head) * block_tokens + token % block_tokens;
}

// Blocks that the budget leaves to the row at `position`, besides sinks and local window.
SD_DEVICE i64 chosen_blocks(const Step& p, i64 position) {
  const i64 tokens = static_cast<i64>(p.budget_tokens) * budget_parts_unit;
  const i64 share = static_cast<i64>(p.budget_parts) * (position + 1);
  const i64 parts = tokens > share ? tokens : share;
  const i64 budget = ceil_div(parts, static_cast<i64>(budget_parts_unit) * block_tokens);
  const i64 chosen = budget - p.sinks - p.local_blocks;
  return chosen > 0 ? chosen : 0;
}

// First block of the local window, or 0: the blocks sinks ... this - 1 are selectable.
SD_DEVICE i64 first_local(const Step& p, i64 position) {
  const i64 first = position / block_tokens - p.local_blocks + 1;
  return first > 0 ? first : 0;
}

// Whether the row's blocks must be scored: it neither sees everything nor lacks a choice.
SD_DEVICE bool is_scored(const Step& p, int slot, i64 position) {
  if (p.selector < select_mean_std) return false;
  if (load_global<Traffic::control>(p.attend_all + slot) != 0) return false;
  const i64 chosen = chosen_blocks(p, position);
  return chosen > 0 && first_local(p, position) - p.sinks > chosen;
}

// Which tokens the row at `position` sees of a block that it sees. A tree of drafts would ask here.
SD_DEVICE bool sees_token(const Step& p, i64 position, i64 token) {
  if (token > position) return false;
  if (p.sliding_window == 0 || token > position - p.sliding_window) return true;
  return token < static_cast<i64>(p.sinks) * block_tokens;
}

// Whether any of the tile's rows may see the token: what is not read must not matter, even as NaN.
SD_DEVICE bool is_read(const Step& p, const Tile& t, i64 token) {
  if (token > position_of(t, t.num_rows - 1)) return false;
  if (p.sliding_window == 0 || token > position_of(t, 0) - p.sliding_window) return true;
  return token < static_cast<i64>(p.sinks) * block_tokens;
}

SD_DEVICE int summary_vectors(const Step& p) {
  return p.selector < select_mean_std ? 0 : p.selector == select_infllm_v2 ? 5 : 2;
}

// Columns of logits for each block: infllm_v2 scores every window by itself.
SD_DEVICE int logit_columns(const Step& p) { return p.selector == select_infllm_v2 ? 5 : 1; }
