// Logits of blocks (mean_std, min_max) or of windows of keys (infllm_v2) against the rows of a tile,
// from the summaries alone.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin score.cu       check: pytest tests/trt_plugins
// launch:  grid (chunks of 64 blocks, Hkv T, B), 128 threads, 16 (d + 8) 2 bytes of shared memory
// reads    q, summaries of the blocks that some row must choose from; writes logits (base 2)
// Oracle:  scores.py::block_scores (NumPy, fp64). infllm_v2: MiniCPM4, arXiv 2506.07900, section 2.1.
// Versions: v0 MMA m16n8k16, rows of the tile on the 16 side, summaries on the 8 side, straight from
//           global memory to registers.
//
// A lane loads 16 contiguous bytes of a summary, channels 8t ... 8t + 7 of a group of 32, and uses
// them as the MMA's k slots 2t, 2t + 1, 2t + 8, 2t + 9 of two products. q is read in the same order:
// a product does not mind in which order channels are taken.
#include "tiles.cuh"

constexpr int score_threads = 128;
constexpr int chunk_blocks = 64;
constexpr u32 magnitudes = 0x7fff7fffu;

// Columns of logits that the tile's rows need: [begin, end), empty where nothing is scored.
struct Columns {
  i64 begin, end;
};

SD_DEVICE Columns needed_columns(const Step& p, const Tile& t) {
  i64 last = 0;
  for (int row = 0; row < t.num_rows; ++row) {
    const i64 position = position_of(t, row);
    if (!is_scored(p, t.slot, position)) continue;
    // infllm_v2 weighs by all windows that are complete, those of the local window included.
    last = p.selector == select_infllm_v2 ? position / block_tokens + 1 : first_local(p, position);
  }
  if (last == 0) return {0, 0};
  if (p.selector == select_infllm_v2) return {0, last * logit_columns(p)};
  return {p.sinks, last};
}

// c += a · b over 32 channels, for one half of the operands (`signs` masks q to |q| for spreads).
SD_DEVICE void multiply_group(float (&c)[4], const half_t* q, int stride, u32x4 b, u32 signs) {
  const auto low = *reinterpret_cast<const u32x4*>(q);
  const auto high = *reinterpret_cast<const u32x4*>(q + 8 * stride);
  const u32 a0[4] = {low.x & signs, high.x & signs, low.y & signs, high.y & signs};
  const u32 a1[4] = {low.z & signs, high.z & signs, low.w & signs, high.w & signs};
  mma_16816(c, a0, {b.x, b.y});
  mma_16816(c, a1, {b.z, b.w});
}

// Eight columns from `column`: q · summary in `centre`, |q| · spread in `spread`.
template <int d, bool windows>
SD_DEVICE void score_columns(const Step& p, const half_t* q, const half_t* summary, i64 column,
                             i64 end, float (&centre)[4], float (&spread)[4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool valid = column + g < end;
  constexpr int vectors = windows ? 1 : 2;  // of d, for each column
  const half_t* own = summary + (column + g) * vectors * d + 8 * t;
#pragma unroll
  for (int group = 0; group < d / 32; ++group) {
    const half_t* a = q + g * (d + 8) + 32 * group + 8 * t;
#pragma unroll
    for (int vector = 0; vector < vectors; ++vector) {
      u32x4 b{0, 0, 0, 0};
      const auto* from = reinterpret_cast<const u32x4*>(own + vector * d + 32 * group);
      if (valid) b = load_global<Traffic::summary>(from);
      if (vector == 0) multiply_group(centre, a, d + 8, b, ~0u);
      if (vector == 1) multiply_group(spread, a, d + 8, b, magnitudes);
    }
  }
}

template <int d, bool windows>
SD_DEVICE void score(const Step& p) {
  const Tile t = tile_at(p, blockIdx.z, blockIdx.y / p.tiles, blockIdx.y % p.tiles);
  const Columns needed = needed_columns(p, t);
  constexpr int columns = windows ? 5 : 1;
  const i64 chunk = static_cast<i64>(blockIdx.x) * chunk_blocks * columns;
  const i64 end = needed.end < chunk + chunk_blocks * columns ? needed.end : chunk + chunk_blocks * columns;
  if (chunk >= needed.end || end <= needed.begin) return;
  auto* q = reinterpret_cast<half_t*>(shared_memory());
  stage_queries<d>(p, t, q, threadIdx.x, score_threads);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 head = static_cast<i64>(t.slot) * p.kv_heads + t.kv_head;
  const half_t* summary = p.summary + head * p.blocks * (windows ? 5 : 2) * d;
  const i64 stride = static_cast<i64>(p.blocks) * columns;
  const float factor = p.scale * log2_e;
  for (i64 column = chunk + 8 * warp; column < end; column += 8 * (score_threads / 32)) {
    if (column + 8 <= needed.begin) continue;
    float centre[4] = {0, 0, 0, 0}, spread[4] = {0, 0, 0, 0};
    score_columns<d, windows>(p, q, summary, column, end, centre, spread);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = lane / 4 + 8 * (i / 2);
      const i64 at = column + 2 * (lane % 4) + i % 2;
      const float logit = factor * (windows ? centre[i] : centre[i] + p.spread * spread[i]);
      if (at < end && m < t.num_rows * p.group) {
        store_global<Traffic::logits>(p.logits + (t.index * tile_rows + m) * stride + at, logit);
      }
    }
  }
}

SD_KERNEL(score_blocks_d64, Step, score_threads, 4) { score<64, false>(p); }
SD_KERNEL(score_blocks_d128, Step, score_threads, 4) { score<128, false>(p); }
SD_KERNEL(score_blocks_d256, Step, score_threads, 4) { score<256, false>(p); }
SD_KERNEL(score_windows_d64, Step, score_threads, 4) { score<64, true>(p); }
SD_KERNEL(score_windows_d128, Step, score_threads, 4) { score<128, true>(p); }
SD_KERNEL(score_windows_d256, Step, score_threads, 4) { score<256, true>(p); }
