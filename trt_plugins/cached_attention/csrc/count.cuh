// The counter `blocks_read`: how many blocks a slot and kv head read, the largest of all.
#pragma once
#include "step.cuh"

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

// One CTA a slot and kv head: the union of its tiles' lists as bits in shared memory, counted. The
// append kernel has set the counter to 1.
SD_DEVICE void count_blocks(const Step& p, i64 first_tile) {
  auto* total = reinterpret_cast<u32*>(shared_memory());
  u32* words = total + 1;
  const int num_words = ceil_div(p.blocks, 32);
  for (int i = threadIdx.x; i < num_words + 1; i += blockDim.x) total[i] = 0;
  __syncthreads();
  for (int tile = 0; tile < p.tiles; ++tile) {
    const u32* list = p.list + (first_tile + tile) * p.blocks;
    const i32 count = load_global<Traffic::list>(p.list_count + first_tile + tile);
    for (i32 i = threadIdx.x; i < count; i += blockDim.x) {
      const u32 block = load_global<Traffic::list>(list + i) >> 16;
      atomicOr(&words[block / 32], 1u << block % 32);
    }
  }
  __syncthreads();
  u32 own = 0;
  for (int i = threadIdx.x; i < num_words; i += blockDim.x) own += count_bits(words[i]);
  atomicAdd(total, own);
  __syncthreads();
  if (threadIdx.x > 0) return;
  const i64 everything = blocks_if_everything_is_read(p);
  const i64 read = everything > 0 ? everything : static_cast<i64>(*total);
  atomicMax(p.blocks_read, read);
}
