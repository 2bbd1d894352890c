// How a step of CachedAttention is launched: the C++ half of cached_attention/launches.py. The tests
// compare both on a grid of shapes.
#pragma once
#include "kernels.hpp"

namespace selfdraft {

// Attributes of a node; docs/attention.md.
struct AttentionAttributes {
  int num_heads, num_kv_heads, head_dim, block, sinks, local_blocks, budget_tokens, sliding_window;
  int alias_states;  // 1: tell TensorRT that states are written in place
  float scale, budget_share, spread;
  std::string selector, kv_dtype;

  int group() const { return num_heads / num_kv_heads; }
  int selector_code() const;    // of step.cuh; -1: unknown
  int summary_vectors() const;  // kept for each block and kv head
  bool is_int8() const { return kv_dtype == "int8"; }
};

// The parameter block of every kernel; cached_attention/csrc/step.cuh has the layouts.
struct StepParams {
  const void *q, *k, *v;
  void *k_cache, *v_cache, *k_scale, *v_scale, *summary;
  const void *past_len, *row_count, *attend_all;
  void *y, *blocks_read;
  void *logits, *keys, *list, *list_count, *partial, *partial_ml;
  int batch, rows, kv_heads, group, blocks, tiles, splits;
  int selector, sinks, local_blocks, budget_tokens, budget_parts, sliding_window;
  float scale, spread;
};

// A step of `rows` rows in each of `batch` slots on caches of `blocks` blocks.
class StepShape {
 public:
  StepShape(const AttentionAttributes& op, int batch, int rows, int blocks);

  std::vector<KernelLaunch> launches() const;
  std::size_t workspace_bytes() const;
  // Sizes, and the workspace's arrays laid out from `base` on; other pointers are left alone.
  void fill(StepParams& params, void* base) const;

 private:
  struct Arrays {
    std::size_t list, list_count, partial, partial_ml, logits, keys, total;
  };
  Arrays arrays() const;
  unsigned query_bytes() const;
  unsigned stage_bytes(int tokens) const;
  unsigned count_bytes() const;
  KernelLaunch append() const;
  KernelLaunch score() const;
  KernelLaunch select() const;
  KernelLaunch attend() const;
  KernelLaunch combine() const;
  KernelLaunch prefill() const;

  const AttentionAttributes& op_;
  int batch_, rows_, blocks_, tiles_, splits_;
  bool prefill_;
};

// Rows from which on the prefill kernel attends: more than any step verifies.
constexpr int max_step_rows = 65;
constexpr int max_blocks = 1 << 16;
constexpr int max_group = 16;
constexpr unsigned max_shared_bytes = 163 * 1024;  // of a thread block on sm_87

}  // namespace selfdraft
