// Merge the partial results of the splits, in their order, and count the blocks that were read.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin combine.cu     check: pytest tests/trt_plugins
// launch:  grid (n, Hkv, B), 128 threads, 128 bytes of shared memory
// reads    partial, partial_ml, lists; writes y (zeros in rows of padding), blocks_read
// Oracle:  oracle.py::_attend, oracle.py::_blocks_read (NumPy)
// Versions: v0 one thread two channels of one head.
#include "step.cuh"

constexpr int combine_threads = 128;

struct Pair {
  float x, y;
};

// Σ over splits of two channels of one row, divided by the sum of weights.
SD_DEVICE Pair merged(const Step& p, const Tile& t, int m, int channel, int d) {
  const i64 first = t.index * p.splits * tile_rows + m;
  float most = -infinity;
  for (int s = 0; s < p.splits; ++s) {
    most = largest(load_global<Traffic::partial>(p.partial_ml + (first + s * tile_rows) * 2), most);
  }
  float total = 0;
  Pair sum{0, 0};
  for (int s = 0; s < p.splits; ++s) {
    const i64 at = first + s * tile_rows;
    const float own = load_global<Traffic::partial>(p.partial_ml + at * 2);
    if (own == -infinity) continue;  // nothing seen, nothing written
    const float weight = exp2_fast(own - most);
    total += weight * load_global<Traffic::partial>(p.partial_ml + at * 2 + 1);
    sum.x += weight * load_global<Traffic::partial>(p.partial + at * d + channel);
    sum.y += weight * load_global<Traffic::partial>(p.partial + at * d + channel + 1);
  }
  return {divide_exact(sum.x, total), divide_exact(sum.y, total)};
}

// Whether the sorted list [count] of blocks has the block.
SD_DEVICE bool has_block(const u32* list, i32 count, u32 block) {
  i32 low = 0, high = count;
  while (low < high) {
    const i32 middle = (low + high) / 2;
    const u32 found = load_global<Traffic::list>(list + middle) >> 16;
    if (found == block) return true;
    if (found < block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return false;
}

// Blocks on any list of the slot and head; each is counted on the first list that has it.
SD_DEVICE u32 union_size(const Step& p, i64 first_tile) {
  u32 found = 0;
  for (int tile = 0; tile < p.tiles; ++tile) {
    const u32* list = p.list + (first_tile + tile) * p.blocks;
    const i32 count = load_global<Traffic::list>(p.list_count + first_tile + tile);
    for (i32 i = threadIdx.x; i < count; i += combine_threads) {
      const u32 block = load_global<Traffic::list>(list + i) >> 16;
      bool fresh = true;
      for (int before = 0; before < tile && fresh; ++before) {
        fresh = !has_block(p.list + (first_tile + before) * p.blocks,
                           load_global<Traffic::list>(p.list_count + first_tile + before), block);
      }
      found += fresh;
    }
  }
  return found;
}

// Blocks in use where nothing is left out, by the rule of every body; else 0.
SD_DEVICE i64 blocks_if_everything_is_read(const Step& p) {
  i64 longest = 1;
  bool all = true;
  for (int slot = 0; slot < p.batch; ++slot) {
    const i64 length = load_global<Traffic::control>(p.past_len + slot) +
                       load_global<Traffic::control>(p.row_count + slot);
    longest = length > longest ? length : longest;
    all = all && load_global<Traffic::control>(p.attend_all + slot) != 0;
  }
  const bool window = p.selector == select_window;
  const i64 budget = window ? 0 : ceil_div(p.budget_tokens, block_tokens);
  const i64 least = p.sinks + p.local_blocks;
  const i64 covered = (budget > least ? budget : least) * block_tokens;
  const bool everything = all || (longest <= covered && !(window && p.sliding_window > 0));
  return everything ? ceil_div(longest, static_cast<i64>(block_tokens)) : 0;
}

SD_DEVICE void count_blocks(const Step& p, i64 first_tile) {
  auto* found = reinterpret_cast<u32*>(shared_memory());
  u32 own = union_size(p, first_tile);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) own += shuffle_xor(own, mask);
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  i64 blocks = blocks_if_everything_is_read(p);
  if (blocks == 0) {
    for (int w = 0; w < combine_threads / 32; ++w) blocks += found[w];
  }
  atomicMax(p.blocks_read, blocks);
}

template <int d>
SD_DEVICE void combine(const Step& p) {
  const int row = blockIdx.x, kv_head = blockIdx.y, slot = blockIdx.z;
  const Tile t = tile_at(p, slot, kv_head, row / rows_per_tile(p));
  const int row_of_tile = row - t.first_row;
  for (int i = threadIdx.x; i < p.group * d / 2; i += combine_threads) {
    const int head = i / (d / 2), channel = i % (d / 2) * 2;
    Pair y{0, 0};
    if (row_of_tile < t.num_rows) y = merged(p, t, row_of_tile * p.group + head, channel, d);
    const i64 slot_row = static_cast<i64>(slot) * p.rows + row;
    const i64 at = (slot_row * p.kv_heads * p.group + kv_head * p.group + head) * d + channel;
    store_global<Traffic::output>(reinterpret_cast<u32*>(p.y + at), pack_half2(y.x, y.y));
  }
  if (row == 0 && p.blocks_read) {
    count_blocks(p, (static_cast<i64>(slot) * p.kv_heads + kv_head) * p.tiles);
  }
}

SD_KERNEL(combine_d64, Step, combine_threads, 4) { combine<64>(p); }
SD_KERNEL(combine_d128, Step, combine_threads, 4) { combine<128>(p); }
SD_KERNEL(combine_d256, Step, combine_threads, 4) { combine<256>(p); }
