// Attention of a chunk of a prompt: dense, or over each tile's own list of blocks. Writes y itself.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin prefill.cu     check: pytest tests/trt_plugins
// launch:  grid (T / 4, Hkv, B), 128 threads, prefill_bytes of shared memory (launches.py)
// reads    q, lists, K and V (and scales) of the blocks on any of four lists; writes y, blocks_read
// Oracle:  oracle.py::_attend on the kernel's own lists (NumPy, fp64)
// Versions: v0 one tile of 16 rows a warp, its weights in registers; four warps share keys and values
//           in two stages of cp.async.
//
// The four lists are merged while they are walked: each warp shows the block at the head of its list,
// the lowest id comes next, and a warp whose list does not have it sits the block out. No splits: a
// row's sum runs over its blocks in ascending order, whatever the chunk.
#include "count.cuh"
#include "tiles.cuh"

constexpr int prefill_threads = 128;
constexpr int prefill_warps = prefill_threads / 32;
constexpr u32 no_block = 0xffffffffu;

// What is computed next: a part of a block, and this warp's rows that see the block.
struct Part {
  u32 block;
  int sub;
  u32 rows;
};

template <int d, bool int8, int tokens>
struct Prefill {
  using Tiles = KvTiles<d, int8, tokens>;
  static constexpr int steps = d / 16;
  static constexpr int pairs = d / 16;
  static constexpr int groups = tokens / 8;  // of keys
  static constexpr int parts = block_tokens / tokens;

  const Step& p;
  const Tile& t;       // of this warp
  const Tile& shared;  // rows of all four warps: what is read for them together
  Tiles kv;
  half_t* q;    // [16, d + 8] of this warp
  u32* heads;   // [4]: block at the head of each warp's list
  int place;    // of the head in this warp's list
  int count;    // entries of this warp's list

  float sums[pairs][2][4];
  float most[2], total[2];

  SD_DEVICE Prefill(const Step& step, const Tile& own, const Tile& all)
      : p(step), t(own), shared(all), place(0) {
    kv.base = shared_memory();
    auto* queries = reinterpret_cast<half_t*>(kv.base + 2 * Tiles::stage_bytes);
    q = queries + warp() * tile_rows * (d + 8);
    heads = reinterpret_cast<u32*>(queries + d);  // 16 bytes that pad a row: two CTAs then fit
    count = t.num_rows > 0 ? load_global<Traffic::list>(p.list_count + t.index) : 0;
  }

  SD_DEVICE int lane() const { return threadIdx.x % 32; }
  SD_DEVICE int warp() const { return threadIdx.x / 32; }

  SD_DEVICE u32 head() const {
    return place < count ? load_global<Traffic::list>(p.list + t.index * p.blocks + place) : no_block;
  }

  // For the other warps; they read it behind the next barrier.
  SD_DEVICE void show_head() const {
    const u32 entry = head();
    if (lane() == 0) heads[warp()] = entry == no_block ? no_block : entry >> 16;
  }

  SD_DEVICE Part next(const Part& now) {
    if (now.block != no_block && now.sub + 1 < parts) return {now.block, now.sub + 1, now.rows};
    u32 lowest = no_block;
#pragma unroll
    for (int w = 0; w < prefill_warps; ++w) lowest = heads[w] < lowest ? heads[w] : lowest;
    if (lowest == no_block || heads[warp()] != lowest) return {lowest, 0, 0};
    const u32 rows = head() & 0xffff;
    ++place;
    return {lowest, 0, rows};
  }

  SD_DEVICE i64 first_token(const Part& part) const {
    return static_cast<i64>(part.block) * block_tokens + part.sub * tokens;
  }

  SD_DEVICE void fetch(const Part& part, int stage) const {
    const bool any = part.block != no_block;
    if (any) kv.fetch_keys(p, shared, stage, first_token(part));
    copy_async_commit();
    if (any) kv.fetch_values(p, shared, stage, first_token(part));
    copy_async_commit();
  }

  // Whether all rows of the tile see every token of the part: no mask is needed.
  SD_DEVICE bool is_whole(const Part& part) const {
    return part.rows == (1u << t.num_rows) - 1 && p.sliding_window == 0 &&
           first_token(part) + tokens - 1 <= position_of(t, 0);
  }

  SD_DEVICE void logits(float (&c)[groups][4], const Part& part, int stage) const {
#pragma unroll
    for (int i = 0; i < groups; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
    for (int step = 0; step < steps; step += 2) {
      u32 a[2][4];
      load_queries<d, int8>(a[0], q, step);
      load_queries<d, int8>(a[1], q, step + 1);
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        u32 b[2][2];
        load_keys<d, int8, tokens>(b, kv.keys(stage), 8 * i, step);
        mma_16816(c[i], a[0], b[0]);
        mma_16816(c[i], a[1], b[1]);
      }
    }
    const float factor = p.scale * log2_e;
#pragma unroll
    for (int i = 0; i < groups; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        c[i][j] *= factor;
        if (int8) {
          c[i][j] *= float_from_half(kv.key_scales(stage)[8 * i + 2 * (lane() % 4) + j % 2]);
        }
      }
    }
    if (!is_whole(part)) hide_unseen(c, part);
  }

  SD_DEVICE void hide_unseen(float (&c)[groups][4], const Part& part) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = (lane() / 4 + j / 2 * 8) / p.group;
      const bool sees = row < t.num_rows && (part.rows >> row & 1);
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        const i64 token = first_token(part) + 8 * i + 2 * (lane() % 4) + j % 2;
        if (!sees || !sees_token(p, position_of(t, row), token)) c[i][j] = -infinity;
      }
    }
  }

  // Logits become weights; sums and totals shrink to the new largest logit.
  SD_DEVICE void weigh(float (&c)[groups][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = most[half];
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        now = largest(now, largest(c[i][2 * half], c[i][2 * half + 1]));
      }
      now = largest(now, shuffle_xor(now, 1));
      now = largest(now, shuffle_xor(now, 2));
      const float base = now == -infinity ? 0 : now;  // a row that has seen nothing yet
      const float shrink = exp2_fast(most[half] - base);
      most[half] = now;
      total[half] *= shrink;
#pragma unroll
      for (int i = 0; i < groups; ++i) {
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          c[i][j] = exp2_fast(c[i][j] - base);
          total[half] += c[i][j];
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * pairs; ++i) {
        sums[i / 2][i % 2][2 * half] *= shrink;
        sums[i / 2][i % 2][2 * half + 1] *= shrink;
      }
    }
  }

  SD_DEVICE void add_values(const float (&c)[groups][4], int stage) {
#pragma unroll
    for (int i = 0; i < groups; i += 2) {  // 16 tokens: the logits' layout is operand a's
      const u32 a[4] = {pack_half2(c[i][0], c[i][1]), pack_half2(c[i][2], c[i][3]),
                        pack_half2(c[i + 1][0], c[i + 1][1]), pack_half2(c[i + 1][2], c[i + 1][3])};
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) {
        u32 b[2][2];
        load_values<d, int8, tokens>(b, kv.values(stage), kv.value_scales(stage), 8 * i, 16 * pair);
        mma_16816(sums[pair][0], a, b[0]);
        mma_16816(sums[pair][1], a, b[1]);
      }
    }
  }

  SD_DEVICE Part attend_part(const Part& part, int stage) {
    copy_async_wait<1>();  // the keys of this part; its values may be under way
    __syncthreads();       // they have landed for all, the other stage is free, heads are shown
    const Part coming = next(part);
    fetch(coming, 1 - stage);
    kv.clear_unread_scales(p, shared, stage, first_token(part));
    float c[groups][4];
    if (part.rows) {
      logits(c, part, stage);
      weigh(c);
    }
    copy_async_wait<2>();  // the values of this part
    __syncthreads();       // they have landed for all, heads have been read
    show_head();
    if (part.rows) add_values(c, stage);
    return coming;
  }

  SD_DEVICE void run() {
    stage_queries<d>(p, t, q, lane(), 32);
    for (int half = 0; half < 2; ++half) most[half] = -infinity, total[half] = 0;
#pragma unroll
    for (int i = 0; i < 2 * pairs; ++i) {
      for (int j = 0; j < 4; ++j) sums[i / 2][i % 2][j] = 0;
    }
    show_head();
    __syncthreads();
    Part part = next({no_block, 0, 0});
    __syncthreads();  // heads have been read
    show_head();
    fetch(part, 0);
    for (int stage = 0; part.block != no_block; stage = 1 - stage) part = attend_part(part, stage);
    copy_async_wait<0>();
    write();
  }

  // Rows of padding get zeros.
  SD_DEVICE void write() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = lane() / 4 + 8 * half, row = m / p.group;
      float sum = total[half] + shuffle_xor(total[half], 1);
      sum += shuffle_xor(sum, 2);
      const bool real = row < t.num_rows;
      if (row >= rows_per_tile(p) || t.first_row + row >= p.rows) continue;
      const i64 slot_row = static_cast<i64>(t.slot) * p.rows + t.first_row + row;
      const int head = t.kv_head * p.group + m % p.group;
      half_t* y = p.y + (slot_row * p.kv_heads * p.group + head) * d;
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float low = int8 ? sums[pair][0][2 * half + j] : sums[pair][j][2 * half];
          const float high = int8 ? sums[pair][1][2 * half + j] : sums[pair][j][2 * half + 1];
          const int channel = output_channel<int8>(16 * pair, int8 ? 0 : j, int8 ? j : 0);
          const u32 packed = pack_half2(real ? low / sum : 0, real ? high / sum : 0);
          store_global<Traffic::output>(reinterpret_cast<u32*>(y + channel), packed);
        }
      }
    }
  }
};

// The rows of four tiles as one: what any of them may read.
SD_DEVICE Tile joined(const Step& p, const Tile& first) {
  Tile t = first;
  const i64 rows = load_global<Traffic::control>(p.row_count + t.slot) - t.first_row;
  const int most = prefill_warps * rows_per_tile(p);
  t.num_rows = rows < 0 ? 0 : rows < most ? static_cast<int>(rows) : most;
  return t;
}

template <int d, bool int8, int tokens>
SD_DEVICE void prefill(const Step& p) {
  const int first = blockIdx.x * prefill_warps, kv_head = blockIdx.y, slot = blockIdx.z;
  const Tile own = tile_at(p, slot, kv_head, first + threadIdx.x / 32);
  const Tile all = joined(p, tile_at(p, slot, kv_head, first));
  Prefill<d, int8, tokens> attention(p, own, all);
  attention.run();
  if (blockIdx.x == 0 && p.blocks_read) {
    __syncthreads();
    count_blocks(p, (static_cast<i64>(slot) * p.kv_heads + kv_head) * p.tiles);
  }
}

// d 256: tiles of 32 tokens, so that the logits leave registers for the sums.
SD_KERNEL(prefill_fp16_d64, Step, prefill_threads, 2) { prefill<64, false, 64>(p); }
SD_KERNEL(prefill_fp16_d128, Step, prefill_threads, 2) { prefill<128, false, 64>(p); }
SD_KERNEL(prefill_fp16_d256, Step, prefill_threads, 1) { prefill<256, false, 32>(p); }
SD_KERNEL(prefill_int8_d64, Step, prefill_threads, 2) { prefill<64, true, 64>(p); }
SD_KERNEL(prefill_int8_d128, Step, prefill_threads, 2) { prefill<128, true, 64>(p); }
SD_KERNEL(prefill_int8_d256, Step, prefill_threads, 2) { prefill<256, true, 32>(p); }
