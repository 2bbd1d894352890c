// From logits to the list of blocks that each tile attends to: softmax over the group's heads, top-k
// for each row, then the union of the tile's rows with a mask of who sees what.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin select.cu      check: pytest tests/trt_plugins
// launch:  grid (T, Hkv, B), 256 threads, 4096 bytes of shared memory
// reads    logits of the score kernel; writes keys (its own notes), list, list_count
// Oracle:  selection.py::slot_blocks, scores.py (NumPy, fp64)
// Versions: v0 radix select in four passes of eight bits; ties go to the lower block id.
//           v1 loads of logits and keys in batches: one wait for the cache, not one for each.
//
// Dense steps (attend_all, selector `all`, a budget that covers the context) get the identity list
// here, on the device. A row's blocks follow from its own position and query alone.
#include "step.cuh"

constexpr int select_threads = 256;
constexpr int select_warps = select_threads / 32;
constexpr int logit_batch = 8;
constexpr int head_batch = 4;
constexpr int key_batch = 4;
constexpr int windows_of_block = 4;
constexpr int vectors_of_block = 5;  // of infllm_v2: four C1, one C2

// What decides whether a row sees a block.
struct RowRule {
  i64 own;         // the row's own block
  i64 local;       // first block of its local window
  i32 dense;       // sees every block up to its own
  i32 all_chosen;  // sees every selectable block
  i32 scored;      // sees those whose key is above `threshold`, and the first `ties` equal to it
  u32 threshold;
  u32 ties;
};

struct SelectShared {
  float largest_logit[tile_rows], weights[tile_rows];  // by head
  u32 histogram[256];
  u32 prefix, need;
  RowRule rules[tile_rows];
  u32 ties[tile_rows][select_warps];
  u32 active[select_warps];
};

struct Selection {
  const Step& p;
  const Tile& t;
  SelectShared& s;

  SD_DEVICE bool windows() const { return p.selector == select_infllm_v2; }
  SD_DEVICE int lane() const { return threadIdx.x % 32; }
  SD_DEVICE int warp() const { return threadIdx.x / 32; }

  SD_DEVICE float logit(int row, int head, i64 column) const {
    const i64 stride = static_cast<i64>(p.blocks) * logit_columns(p);
    return load_global<Traffic::logits>(
        p.logits + (t.index * tile_rows + row * p.group + head) * stride + column);
  }

  SD_DEVICE u32* key_at(int row, i64 block) const {
    return p.keys + (t.index * rows_per_tile(p) + row) * p.blocks + block;
  }

  // Column i of those that weigh a head's scores: selectable blocks, or complete C2 windows.
  SD_DEVICE i64 weighing_column(i64 i) const {
    return windows() ? i * vectors_of_block + windows_of_block : p.sinks + i;
  }
  SD_DEVICE i64 weighing_columns(i64 position) const {
    if (windows()) return (position + 1 - 128) / 64 + 1;
    return first_local(p, position) - p.sinks;
  }

  // Every 32nd of a head's weighing columns from `first`; -infinity, which weighs nothing, behind them.
  SD_DEVICE void load_logits(float (&x)[logit_batch], int row, int head, i64 first, i64 count) const {
#pragma unroll
    for (int i = 0; i < logit_batch; ++i) {
      const i64 column = first + 32 * i;
      x[i] = column < count ? logit(row, head, weighing_column(column)) : -infinity;
    }
  }

  // One warp a head: largest logit and sum of weights over the row's columns.
  SD_DEVICE void normalise(int row, i64 position) const {
    const i64 count = weighing_columns(position);
    for (int head = warp(); head < p.group; head += select_warps) {
      float most = -infinity;
      for (i64 first = lane(); first < count; first += 32 * logit_batch) {
        float x[logit_batch];
        load_logits(x, row, head, first, count);
#pragma unroll
        for (int i = 0; i < logit_batch; ++i) most = largest(x[i], most);
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) most = largest(shuffle_xor(most, mask), most);
      float sum = 0;
      for (i64 first = lane(); first < count; first += 32 * logit_batch) {
        float x[logit_batch];
        load_logits(x, row, head, first, count);
#pragma unroll
        for (int i = 0; i < logit_batch; ++i) sum += exp2_fast(x[i] - most);
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (lane() == 0) {
        s.largest_logit[head] = most;
        s.weights[head] = 1 / sum;
      }
    }
  }

  // Σ over heads of the softmax weight of one column.
  SD_DEVICE float column_score(int row, i64 column) const {
    float sum = 0;
    for (int first = 0; first < p.group; first += head_batch) {
      float x[head_batch];
#pragma unroll
      for (int i = 0; i < head_batch; ++i) {
        x[i] = first + i < p.group ? logit(row, first + i, column) : 0;
      }
#pragma unroll
      for (int i = 0; i < head_batch; ++i) {
        const int head = first + i;
        if (head < p.group) sum += exp2_fast(x[i] - s.largest_logit[head]) * s.weights[head];
      }
    }
    return sum;
  }

  // Scores are at least 0, so that their bits are in order; NaN comes before everything.
  SD_DEVICE u32 key_from(float score) const { return is_nan(score) ? 0 : bits_from_float(score) + 1; }

  // infllm_v2: the best of the complete C1 windows that touch the block.
  SD_DEVICE u32 window_key(int row, i64 block, i64 position) const {
    u32 best = 0;
    const i64 complete = (position + 1 - 32) / 16 + 1;
    for (i64 w = windows_of_block * block - 1; w < windows_of_block * (block + 1); ++w) {
      if (w < 0 || w >= complete) continue;
      const i64 column = w / windows_of_block * vectors_of_block + w % windows_of_block;
      const u32 key = key_from(column_score(row, column));
      best = key > best ? key : best;
    }
    return best;
  }

  SD_DEVICE void write_keys(int row, i64 position) const {
    for (i64 block = p.sinks + threadIdx.x; block < first_local(p, position); block += select_threads) {
      const u32 key = windows() ? window_key(row, block, position) : key_from(column_score(row, block));
      store_global<Traffic::list>(key_at(row, block), key);
    }
  }

  // First warp: the digit at which `need` keys are reached from above, and what is still needed.
  SD_DEVICE void pick_digit(int shift) const {
    const int top = 255 - 8 * lane();
    u32 own = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) own += s.histogram[top - i];
    u32 above = own;  // inclusive sum over lanes, then exclusive
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 other = shuffle(above, lane() - step);
      if (lane() >= step) above += other;
    }
    above -= own;
    const u32 need = s.need;
    __syncwarp();
    if (above >= need || above + own < need) return;  // exactly one lane stays
    for (int i = 0; i < 8; ++i) {
      const u32 here = s.histogram[top - i];
      if (above + here >= need) {
        s.prefix |= static_cast<u32>(top - i) << shift;
        s.need = need - above;
        return;
      }
      above += here;
    }
  }

  // The `chosen`-th largest key of the row, and how many equal to it are among the chosen.
  SD_DEVICE void find_threshold(int row, i64 position, u32 chosen) const {
    if (threadIdx.x == 0) {
      s.prefix = 0;
      s.need = chosen;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
      s.histogram[threadIdx.x] = 0;
      __syncthreads();  // zeroed, and in the first pass all keys are written
      const u32 fixed = shift == 24 ? 0 : ~0u << (shift + 8);
      const i64 end = first_local(p, position);
      for (i64 block = p.sinks + threadIdx.x; block < end; block += select_threads * key_batch) {
        u32 keys[key_batch];
#pragma unroll
        for (int i = 0; i < key_batch; ++i) {
          const i64 at = block + i * select_threads;
          keys[i] = at < end ? load_global<Traffic::list>(key_at(row, at)) : 0;
        }
#pragma unroll
        for (int i = 0; i < key_batch; ++i) {
          const bool real = block + i * select_threads < end;
          if (real && (keys[i] & fixed) == s.prefix) atomicAdd(&s.histogram[keys[i] >> shift & 255], 1u);
        }
      }
      __syncthreads();
      if (warp() == 0) pick_digit(shift);
      __syncthreads();
    }
  }

  SD_DEVICE void decide_row(int row) const {
    const i64 position = position_of(t, row);
    const bool scored = is_scored(p, t.slot, position);
    const i64 chosen = chosen_blocks(p, position), local = first_local(p, position);
    if (scored) {
      normalise(row, position);
      __syncthreads();
      write_keys(row, position);
      find_threshold(row, position, static_cast<u32>(chosen));
    }
    if (threadIdx.x == 0) {
      const bool dense =
          p.selector == select_all || load_global<Traffic::control>(p.attend_all + t.slot) != 0;
      const bool covered = p.selector >= select_mean_std && local - p.sinks <= chosen;
      s.rules[row] = {position / block_tokens, local, dense, covered, scored,
                      scored ? s.prefix : 0, scored ? s.need : 0};
    }
    __syncthreads();
  }

  SD_DEVICE bool is_tie(int row, i64 block) const {
    const RowRule& rule = s.rules[row];
    if (!rule.scored || block < p.sinks || block >= rule.local) return false;
    return load_global<Traffic::list>(key_at(row, block)) == rule.threshold;
  }

  // Whether the row sees the block; `tie`: its rank among the keys equal to the threshold.
  SD_DEVICE bool sees_block(int row, i64 block, u32 tie) const {
    const RowRule& rule = s.rules[row];
    if (block > rule.own) return false;
    if (p.selector == select_all && p.sliding_window && block >= p.sinks &&
        (block + 1) * block_tokens <= position_of(t, row) - p.sliding_window + 1) {
      return false;  // every token lies behind the window
    }
    if (rule.dense || block < p.sinks || block >= rule.local || rule.all_chosen) return true;
    if (!rule.scored) return false;
    const u32 key = load_global<Traffic::list>(key_at(row, block));
    return key > rule.threshold || (key == rule.threshold && tie < rule.ties);
  }

  // Rows that see the block, as bits. `before`: lane r holds row r's ties behind this chunk.
  SD_DEVICE u32 rows_that_see(i64 block, u32 before) const {
    u32 mask = 0;
    for (int row = 0; row < t.num_rows; ++row) {
      const u32 votes = warp_ballot(is_tie(row, block));
      u32 rank = shuffle(before, row) + count_bits(votes & ((1u << lane()) - 1));
      for (int w = 0; w < warp(); ++w) rank += s.ties[row][w];
      mask |= static_cast<u32>(sees_block(row, block, rank)) << row;
    }
    return mask;
  }

  // The union in ascending order, one chunk of blocks after the other.
  SD_DEVICE void write_list() const {
    const i64 blocks = s.rules[t.num_rows - 1].own + 1;
    u32 before = 0, count = 0;
    for (i64 chunk = 0; chunk < blocks; chunk += select_threads) {
      const i64 block = chunk + threadIdx.x;
      for (int row = 0; row < t.num_rows; ++row) {
        const u32 votes = warp_ballot(is_tie(row, block));
        if (lane() == 0) s.ties[row][warp()] = count_bits(votes);
      }
      __syncthreads();
      const u32 mask = rows_that_see(block, before);
      if (lane() < t.num_rows) {
        for (int w = 0; w < select_warps; ++w) before += s.ties[lane()][w];
      }
      const u32 votes = warp_ballot(mask != 0);
      if (lane() == 0) s.active[warp()] = count_bits(votes);
      __syncthreads();
      u32 at = count + count_bits(votes & ((1u << lane()) - 1));
      for (int w = 0; w < select_warps; ++w) {
        if (w < warp()) at += s.active[w];
        count += s.active[w];
      }
      if (mask) {
        store_global<Traffic::list>(p.list + t.index * p.blocks + at,
                                    static_cast<u32>(block) << 16 | mask);
      }
    }
    if (threadIdx.x == 0) store_global<Traffic::list>(p.list_count + t.index, static_cast<i32>(count));
  }
};

SD_KERNEL(select_blocks, Step, select_threads, 2) {
  const Tile t = tile_at(p, blockIdx.z, blockIdx.y, blockIdx.x);
  if (t.num_rows == 0) {
    if (threadIdx.x == 0) store_global<Traffic::list>(p.list_count + t.index, 0);
    return;
  }
  const Selection selection{p, t, *reinterpret_cast<SelectShared*>(shared_memory())};
  for (int row = 0; row < t.num_rows; ++row) selection.decide_row(row);
  selection.write_list();
}
