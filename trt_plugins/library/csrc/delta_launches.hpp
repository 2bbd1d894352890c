// How a step of GatedDeltaRule is launched: the C++ half of gated_delta_rule/launches.py. The tests
// compare both on a grid of shapes.
#pragma once
#include "kernels.hpp"

namespace selfdraft {

// Attributes of a node; docs/gated_delta.md.
struct DeltaAttributes {
  int num_key_heads, num_value_heads, key_dim, value_dim, taps;
  int alias_states;  // 1: tell TensorRT that states are written in place
  std::string row_dtype;

  int value_size() const { return num_value_heads * value_dim; }
  int channels() const { return 2 * num_key_heads * key_dim + value_size(); }
};

// The parameter block of every kernel; gated_delta_rule/csrc/step.cuh has the layouts.
struct DeltaParams {
  const void *x, *beta, *log_decay, *conv_weight;
  void *recurrent, *conv_rows, *gate_rows;
  const void *past_len, *row_count, *replay_rows;
  void *y, *mixed;
  int batch, rows, key_heads, value_heads, taps, window;
};

// A step of `rows` rows in each of `batch` slots.
class DeltaShape {
 public:
  DeltaShape(const DeltaAttributes& op, int batch, int rows);

  std::vector<KernelLaunch> launches() const;
  std::size_t workspace_bytes() const;
  // Sizes and the workspace; other pointers are left alone.
  void fill(DeltaParams& params, void* workspace) const;

 private:
  KernelLaunch launch(const char* name, Grid grid, unsigned shared_bytes) const;
  unsigned scan_shared_bytes() const;

  const DeltaAttributes& op_;
  int batch_, rows_, window_;
};

constexpr int log_rows = 16;
constexpr int most_taps = 8;

}  // namespace selfdraft
