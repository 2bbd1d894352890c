// Split-KV attention over the list of blocks of each tile: partial results of one split.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin attend.cu      check: pytest tests/trt_plugins
// launch:  grid (S, Hkv T, B), 128 threads, attend_bytes of shared memory (launches.py)
// reads    q, list, K and V (and scales) of the blocks on the list; writes partial, partial_ml
// Oracle:  oracle.py::_attend on the kernel's own list (NumPy, fp64)
// Versions: v0 16 rows (query row, head) on the MMA's 16 side; four warps share the keys of a tile for
//           the logits and its channels for the output; two stages of cp.async.
//
// Split s takes the blocks with id % S = s: what a row adds up, and in which order, then follows from
// the blocks that it sees alone, whatever rows run with it. A block that only other rows see leaves a
// row as it was: its weights are zero, its largest logit stays.
#include "tiles.cuh"

constexpr int attend_threads = 128;
constexpr int attend_warps = attend_threads / 32;

template <int d, bool int8, int tokens>
struct Attend {
  using Tiles = KvTiles<d, int8, tokens>;
  static constexpr int steps = d / 16;                       // of 16 channels
  static constexpr int warp_keys = tokens / attend_warps;    // 8 or 16: a warp's share of the logits
  static constexpr int warp_pairs = d / attend_warps / 16;   // of 16 channels: its share of the output
  static constexpr int weight_stride = tokens + 8;
  static constexpr int tiles_of_block = block_tokens / tokens;

  const Step& p;
  const Tile& t;
  Tiles kv;
  half_t* q;         // [16, d + 8]
  half_t* weights;   // [16, tokens + 8]
  float* warp_most;  // [4, 16]: largest logit of a warp's keys; at the end its sum of weights
  u32* queue;        // blocks of this split, as on the list

  u32 queries[steps][4];
  float sums[warp_pairs][2][4];
  float most[2], total[2];  // of rows g and g + 8: largest logit, this lane's sum of weights

  SD_DEVICE Attend(const Step& step, const Tile& tile) : p(step), t(tile) {
    kv.base = shared_memory();
    q = reinterpret_cast<half_t*>(kv.base + 2 * Tiles::stage_bytes);
    weights = q + tile_rows * (d + 8);
    warp_most = reinterpret_cast<float*>(weights + tile_rows * weight_stride);
    queue = reinterpret_cast<u32*>(warp_most + attend_warps * tile_rows);
  }

  SD_DEVICE int lane() const { return threadIdx.x % 32; }
  SD_DEVICE int warp() const { return threadIdx.x / 32; }

  // The blocks of this split, in order. One entry a thread, placed by votes.
  SD_DEVICE int fill_queue() {
    const int count = load_global<Traffic::list>(p.list_count + t.index);
    u32* votes_of = reinterpret_cast<u32*>(warp_most);
    int kept = 0;
    for (int first = 0; first < count; first += attend_threads) {
      const int i = first + threadIdx.x;
      const u32 entry = i < count ? load_global<Traffic::list>(p.list + t.index * p.blocks + i) : 0;
      const bool own = i < count && (entry >> 16) % p.splits == blockIdx.x;
      const u32 votes = warp_ballot(own);
      if (lane() == 0) votes_of[warp()] = count_bits(votes);
      __syncthreads();
      int at = kept + count_bits(votes & ((1u << lane()) - 1));
      for (int w = 0; w < attend_warps; ++w) {
        if (w < warp()) at += votes_of[w];
        kept += votes_of[w];
      }
      if (own) queue[at] = entry;
      __syncthreads();
    }
    return kept;
  }

  SD_DEVICE i64 first_token(int tile) const {
    const u32 entry = queue[tile / tiles_of_block];
    return static_cast<i64>(entry >> 16) * block_tokens + tile % tiles_of_block * tokens;
  }

  // Logits (base 2) of this warp's keys: c[i] is 8 keys. -infinity where the row does not see them.
  SD_DEVICE void logits(float (&c)[warp_keys / 8][4], int tile, int stage) const {
    const u32 rows = queue[tile / tiles_of_block] & 0xffff;
    const float factor = p.scale * log2_e;
#pragma unroll
    for (int i = 0; i < warp_keys / 8; ++i) {
      c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
      const int key = warp() * warp_keys + 8 * i;
#pragma unroll
      for (int step = 0; step < steps; step += 2) {
        u32 b[2][2];
        load_keys<d, int8, tokens>(b, kv.keys(stage), key, step);
        mma_16816(c[i], queries[step], b[0]);
        mma_16816(c[i], queries[step + 1], b[1]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = (lane() / 4 + j / 2 * 8) / p.group, token = key + 2 * (lane() % 4) + j % 2;
        const bool seen = row < t.num_rows && (rows >> row & 1) &&
                          sees_token(p, position_of(t, row), first_token(tile) + token);
        float x = c[i][j] * factor;
        if (int8) x *= float_from_half(kv.key_scales(stage)[token]);
        c[i][j] = seen ? x : -infinity;
      }
    }
  }

  // Largest logit of rows g and g + 8 over this warp's keys, left for the other warps.
  SD_DEVICE void share_most(const float (&c)[warp_keys / 8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = -infinity;
#pragma unroll
      for (int i = 0; i < warp_keys / 8; ++i) {
        x = largest(x, largest(c[i][2 * half], c[i][2 * half + 1]));
      }
      x = largest(x, shuffle_xor(x, 1));
      x = largest(x, shuffle_xor(x, 2));
      if (lane() % 4 == 0) warp_most[warp() * tile_rows + lane() / 4 + 8 * half] = x;
    }
  }

  // Weights of this warp's keys into shared memory; sums and totals scaled to the new largest logit.
  SD_DEVICE void weigh(const float (&c)[warp_keys / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane() / 4 + 8 * half;
      float now = most[half];
#pragma unroll
      for (int w = 0; w < attend_warps; ++w) now = largest(now, warp_most[w * tile_rows + row]);
      const float base = now == -infinity ? 0 : now;  // a row that has seen nothing yet
      const float shrink = exp2_fast(most[half] - base);
      most[half] = now;
      total[half] *= shrink;
#pragma unroll
      for (int pair = 0; pair < warp_pairs; ++pair) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sums[pair][i][2 * half] *= shrink;
          sums[pair][i][2 * half + 1] *= shrink;
        }
      }
#pragma unroll
      for (int i = 0; i < warp_keys / 8; ++i) {
        const float x = exp2_fast(c[i][2 * half] - base), y = exp2_fast(c[i][2 * half + 1] - base);
        total[half] += x + y;
        const int key = warp() * warp_keys + 8 * i + 2 * (lane() % 4);
        *reinterpret_cast<u32*>(weights + row * weight_stride + key) = pack_half2(x, y);
      }
    }
  }

  // This warp's channels of weights · values.
  SD_DEVICE void add_values(int stage) {
#pragma unroll
    for (int token = 0; token < tokens; token += 16) {
      u32 a[4];
      load_matrix_x4(a, weights + lane() % 16 * weight_stride + token + lane() / 16 * 8);
#pragma unroll
      for (int pair = 0; pair < warp_pairs; ++pair) {
        u32 b[2][2];
        load_values<d, int8, tokens>(b, kv.values(stage), kv.value_scales(stage), token,
                                     16 * (warp() * warp_pairs + pair));
        mma_16816(sums[pair][0], a, b[0]);
        mma_16816(sums[pair][1], a, b[1]);
      }
    }
  }

  SD_DEVICE void fetch(int tile, int num_tiles) const {
    if (tile < num_tiles) kv.fetch_keys(p, t, tile % 2, first_token(tile));
    copy_async_commit();
    if (tile < num_tiles) kv.fetch_values(p, t, tile % 2, first_token(tile));
    copy_async_commit();
  }

  SD_DEVICE void attend_tile(int tile, int num_tiles) {
    const int stage = tile % 2;
    copy_async_wait<1>();  // the keys of this tile; its values may be under way
    __syncthreads();       // they have landed for all, and the other stage is free
    fetch(tile + 1, num_tiles);
    kv.clear_unread_scales(p, t, stage, first_token(tile));
    float c[warp_keys / 8][4];
    logits(c, tile, stage);
    share_most(c);
    __syncthreads();  // the largest logits of all warps
    weigh(c);
    copy_async_wait<2>();  // the values of this tile
    __syncthreads();       // they and the weights are there for all
    add_values(stage);
  }

  SD_DEVICE void run() {
    stage_queries<d>(p, t, q, threadIdx.x, attend_threads);
    const int num_tiles = fill_queue() * tiles_of_block;
    __syncthreads();
    fetch(0, num_tiles);
#pragma unroll
    for (int step = 0; step < steps; ++step) load_queries<d, int8>(queries[step], q, step);
    for (int half = 0; half < 2; ++half) most[half] = -infinity, total[half] = 0;
#pragma unroll
    for (int pair = 0; pair < warp_pairs; ++pair) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[pair][i / 4][i % 4] = 0;
    }
    for (int tile = 0; tile < num_tiles; ++tile) attend_tile(tile, num_tiles);
    copy_async_wait<0>();
    write();
  }

  SD_DEVICE void write() const {
    __syncthreads();
    const i64 split = (t.index * p.splits + blockIdx.x) * tile_rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane() / 4 + 8 * half;
      float sum = total[half] + shuffle_xor(total[half], 1);
      sum += shuffle_xor(sum, 2);
      if (lane() % 4 == 0) warp_most[warp() * tile_rows + row] = sum;
      if (row >= t.num_rows * p.group || most[half] == -infinity) continue;
#pragma unroll
      for (int pair = 0; pair < warp_pairs; ++pair) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = 16 * (warp() * warp_pairs + pair);
          const int channel = output_channel<int8>(first, i / 2, i % 2);
          store_global<Traffic::partial>(p.partial + (split + row) * d + channel,
                                         sums[pair][i / 2][2 * half + i % 2]);
        }
      }
    }
    __syncthreads();
    if (warp() > 0 || lane() % 4 > 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane() / 4 + 8 * half;
      float sum = 0;
      for (int w = 0; w < attend_warps; ++w) sum += warp_most[w * tile_rows + row];
      store_global<Traffic::partial>(p.partial_ml + (split + row) * 2, most[half]);
      store_global<Traffic::partial>(p.partial_ml + (split + row) * 2 + 1, sum);
    }
  }
};

template <int d, bool int8, int tokens>
SD_DEVICE void attend(const Step& p) {
  const Tile t = tile_at(p, blockIdx.z, blockIdx.y / p.tiles, blockIdx.y % p.tiles);
  if (t.num_rows == 0) return;
  Attend<d, int8, tokens> attention(p, t);
  attention.run();
}

// d 256 in fp16: tiles of 32 tokens, so that two CTAs fit on an SM.
SD_KERNEL(attend_fp16_d64, Step, attend_threads, 2) { attend<64, false, 64>(p); }
SD_KERNEL(attend_fp16_d128, Step, attend_threads, 2) { attend<128, false, 64>(p); }
SD_KERNEL(attend_fp16_d256, Step, attend_threads, 2) { attend<256, false, 32>(p); }
SD_KERNEL(attend_int8_d64, Step, attend_threads, 2) { attend<64, true, 64>(p); }
SD_KERNEL(attend_int8_d128, Step, attend_threads, 2) { attend<128, true, 64>(p); }
SD_KERNEL(attend_int8_d256, Step, attend_threads, 2) { attend<256, true, 64>(p); }
