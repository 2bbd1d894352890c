// Tiles of keys and values in shared memory: how they get there, and how they become operands of the
// MMA. fp16 and int8 differ only here.
#pragma once
#include "step.cuh"

// K and V of `tokens` tokens of one kv head, two stages, chunks of 16 bytes swizzled against bank
// conflicts. int8 tiles carry the scales of their tokens behind them.
template <int d, bool int8, int tokens>
struct KvTiles {
  static constexpr int row_bytes = d * (int8 ? 1 : 2);
  static constexpr int row_chunks = row_bytes / 16;
  static constexpr int tile_bytes = tokens * row_bytes;
  static constexpr int scale_bytes = int8 ? tokens * 2 : 0;
  static constexpr int stage_bytes = 2 * (tile_bytes + scale_bytes);

  u8* base;

  SD_DEVICE u8* keys(int stage) const { return base + stage * stage_bytes; }
  SD_DEVICE u8* values(int stage) const { return keys(stage) + tile_bytes; }
  SD_DEVICE half_t* key_scales(int stage) const {
    return reinterpret_cast<half_t*>(keys(stage) + 2 * tile_bytes);
  }
  SD_DEVICE half_t* value_scales(int stage) const { return key_scales(stage) + tokens; }

  // Where chunk `chunk` of a token's row lies in its tile.
  SD_DEVICE static int offset(int token, int chunk) {
    const int shift = row_chunks >= 8 ? token & 7 : token >> 1 & 3;
    return token * row_bytes + (chunk ^ shift) * 16;
  }

  // Issues the copies of one tile of K or V; tokens that no row of the tile sees become zeros.
  SD_DEVICE static void fetch(const Step& p, const Tile& t, u8* to, const void* cache, i64 first) {
    const auto* from = static_cast<const u8*>(cache) +
                       token_offset(p, t.slot, t.kv_head, first) * row_bytes;
    for (int i = threadIdx.x; i < tokens * row_chunks; i += blockDim.x) {
      const int token = i / row_chunks, chunk = i % row_chunks;
      copy_async_16<Traffic::kv>(to + offset(token, chunk), from + static_cast<i64>(i) * 16,
                                 is_read(p, t, first + token));
    }
  }

  SD_DEVICE static void fetch_scales(const Step& p, const Tile& t, half_t* to, const half_t* scales,
                                     i64 first, int thread) {
    if (thread < 0 || thread >= tokens / 8) return;
    const half_t* from = scales + token_offset(p, t.slot, t.kv_head, first) + 8 * thread;
    copy_async_16<Traffic::scale>(to + 8 * thread, from, true);
  }

  SD_DEVICE void fetch_keys(const Step& p, const Tile& t, int stage, i64 first) const {
    fetch(p, t, keys(stage), p.k_cache, first);
    if (int8) {
      const int thread = threadIdx.x;
      fetch_scales(p, t, key_scales(stage), p.k_scale, first, thread);
      fetch_scales(p, t, value_scales(stage), p.v_scale, first, thread - 32);
    }
  }

  SD_DEVICE void fetch_values(const Step& p, const Tile& t, int stage, i64 first) const {
    fetch(p, t, values(stage), p.v_cache, first);
  }

  // Scales come eight at a time: those of values that were not read become zero. One call for each
  // tile, behind the barrier at which its keys have landed.
  SD_DEVICE void clear_unread_scales(const Step& p, const Tile& t, int stage, i64 first) const {
    if (!int8) return;
    const int token = threadIdx.x;
    if (token < tokens && !is_read(p, t, first + token)) value_scales(stage)[token] = {0};
  }
};

constexpr u32 sign_bytes = 0x80808080u;
constexpr u32 code_magic = 0x64646464u;   // high bytes of 1024 + code + 128 in fp16
constexpr u32 code_offset = 0x64806480u;  // 1152, twice

// Two codes of `bytes` (selector nibbles 0 and 2) as exact fp16.
SD_DEVICE u32 half2_from_codes(u32 bytes, u32 selector) {
  return half2_sub(byte_permute(bytes ^ sign_bytes, code_magic, selector), code_offset);
}

// Operand b of logits: keys `token` ... token + 7 on the 8 side, channels of step `step` (16 of them).
// A call gives two steps. int8 takes channels 4t ... 4t + 3 of each step where fp16 takes 2t, 2t + 1,
// 2t + 8, 2t + 9: load_queries follows.
template <int d, bool int8, int tokens>
SD_DEVICE void load_keys(u32 (&b)[2][2], const u8* tile, int token, int step) {
  using Tiles = KvTiles<d, int8, tokens>;
  const int lane = threadIdx.x % 32, row = token + lane % 8;
  if constexpr (int8) {
    u32 r[2];
    load_matrix_x2(r, tile + Tiles::offset(row, step + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      b[i][0] = half2_from_codes(r[i], 0x4140);
      b[i][1] = half2_from_codes(r[i], 0x4342);
    }
  } else {
    u32 r[4];
    load_matrix_x4(r, tile + Tiles::offset(row, 2 * step + lane / 8));
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
  }
}

// Operand a of logits: the tile's queries, channels of step `step`; `q` has rows of d + 8.
template <int d, bool int8>
SD_DEVICE void load_queries(u32 (&a)[4], const half_t* q, int step) {
  const int lane = threadIdx.x % 32;
  if constexpr (int8) {
    const half_t* own = q + lane / 4 * (d + 8) + 16 * step + 4 * (lane % 4);
    const auto low = *reinterpret_cast<const u32x2*>(own);
    const auto high = *reinterpret_cast<const u32x2*>(own + 8 * (d + 8));
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
  } else {
    load_matrix_x4(a, q + lane % 16 * (d + 8) + 16 * step + lane / 16 * 8);
  }
}

// Operand b of the output: values of tokens `token` ... token + 15, 16 channels from `channel` as two
// halves of 8. fp16: half i is channels channel + 8i ...; int8: channels channel + i, + i + 2, ...
template <int d, bool int8, int tokens>
SD_DEVICE void load_values(u32 (&b)[2][2], const u8* tile, const half_t* scales, int token,
                           int channel) {
  using Tiles = KvTiles<d, int8, tokens>;
  const int lane = threadIdx.x % 32, row = token + lane % 16;
  if constexpr (int8) {
    u32 r[2];
    load_matrix_x2_trans(r, tile + Tiles::offset(row, channel / 16));
    const half_t* own = scales + token + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // tokens 2t, 2t + 1 and 2t + 8, 2t + 9
      const u32 scale = *reinterpret_cast<const u32*>(own + 8 * i);
      b[0][i] = half2_mul(half2_from_codes(r[i], 0x4240), scale);
      b[1][i] = half2_mul(half2_from_codes(r[i], 0x4341), scale);
    }
  } else {
    u32 r[4];
    load_matrix_x4_trans(r, tile + Tiles::offset(row, channel / 8 + lane / 16));
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
  }
}

// Channel of accumulator column 2t + i of half `half` (load_values) in 16 channels from `channel`.
template <bool int8>
SD_DEVICE int output_channel(int channel, int half, int i) {
  const int column = 2 * (threadIdx.x % 4) + i;
  return int8 ? channel + 2 * column + half : channel + 8 * half + column;
}

// The tile's queries into shared memory, one row of d + 8 for each (row, head); padding is zero.
template <int d>
SD_DEVICE void stage_queries(const Step& p, const Tile& t, half_t* to, int thread, int threads) {
  for (int i = thread; i < tile_rows * d / 8; i += threads) {
    const int m = i / (d / 8), channel = i % (d / 8) * 8;
    const int row = t.first_row + m / p.group, head = t.kv_head * p.group + m % p.group;
    const i64 slot_row = static_cast<i64>(t.slot) * p.rows + row;
    const i64 at = (slot_row * p.kv_heads * p.group + head) * d + channel;
    u32x4 x{0, 0, 0, 0};
    if (m / p.group < t.num_rows) {
      x = load_global<Traffic::rows>(reinterpret_cast<const u32x4*>(p.q + at));
    }
    *reinterpret_cast<u32x4*>(to + m * (d + 8) + channel) = x;
  }
}
