// One step of GatedDeltaRule as its kernels see it: parameters, layouts, and the window of rows that
// the step computes. Contract: docs/gated_delta.md.
#pragma once
#include "../../csrc/device.cuh"

constexpr int block_rows = 8;             // tokens of a block (selfdraft.recurrent)
constexpr int log_rows = 2 * block_rows;  // rows that the log holds
constexpr int most_taps = 8;
constexpr int columns = 32;  // of a state that one CTA keeps
constexpr int delta_threads = 128, delta_warps = delta_threads / 32;
constexpr float log2_e = 1.4426950408889634f;

// Mirrored in trt_plugins/gated_delta_rule/launches.py. B slots, n rows of a slot, C = 2 Hk dk + Hv dv
// channels: q, k, v; W rows of a slot's window.
struct DeltaStep {
  const half_t* x;            // [B, n, C] before the convolution
  const float* beta;          // [B, n, Hv]
  const float* log_decay;     // [B, n, Hv]
  const float* conv_weight;   // [C, taps]
  float* recurrent;           // [B, Hv, dk, dv]
  half_t* conv_rows;          // [B, taps - 1 + 16, C]
  float* gate_rows;           // [B, 16, 2 Hv]
  const i64* past_len;        // [B]
  const i64* row_count;       // [B]
  const i64* replay_rows;     // [B]
  float* y;                   // [B, n, Hv dv]
  float* mixed;               // [B, W, C] workspace: q and k normed, v, behind convolution and SiLU
  i32 batch, rows, key_heads, value_heads, taps, window;
};

// Rows of one slot from its state's length on: `replay` of the log, then `count` of the step.
struct Window {
  int slot, replay, count;
  bool fresh;  // a new sequence: the states hold nothing
  int moved;   // rows by which the state's length moves on

  SD_DEVICE int total() const { return replay + count; }
};

SD_DEVICE Window window_of(const DeltaStep& p, int slot) {
  const i64 past = load_global<Traffic::control>(p.past_len + slot);
  Window w;
  w.slot = slot;
  w.count = static_cast<int>(load_global<Traffic::control>(p.row_count + slot));
  w.replay = static_cast<int>(load_global<Traffic::control>(p.replay_rows + slot));
  w.fresh = past == 0;
  // selfdraft.recurrent.state_length, from the state's own length on
  const i64 begun = past / block_rows * block_rows;
  const i64 end = ceil_div(past + w.count, i64{block_rows}) * block_rows;
  const i64 least = end - log_rows;
  w.moved = static_cast<int>((begun > least ? begun : least) - (past - w.replay));
  return w;
}

// Input of the convolution `index` rows behind the log's begin.
SD_DEVICE float raw_input(const DeltaStep& p, const Window& w, int index, int channel, int channels) {
  const int logged = p.taps - 1 + w.replay;
  if (index < logged) {
    if (w.fresh) return 0;
    const i64 row = static_cast<i64>(w.slot) * (p.taps - 1 + log_rows) + index;
    return float_from_half(load_global<Traffic::log>(p.conv_rows + row * channels + channel));
  }
  const i64 row = static_cast<i64>(w.slot) * p.rows + (index - logged);
  return float_from_half(load_global<Traffic::rows>(p.x + row * channels + channel));
}

// Write strength (column < Hv) or log decay of window row `t`.
SD_DEVICE float gate(const DeltaStep& p, const Window& w, int t, int column) {
  if (t < w.replay) {
    const i64 row = static_cast<i64>(w.slot) * log_rows + t;
    return load_global<Traffic::log>(p.gate_rows + row * 2 * p.value_heads + column);
  }
  const i64 row = static_cast<i64>(w.slot) * p.rows + (t - w.replay);
  const bool strength = column < p.value_heads;
  const float* from = strength ? p.beta : p.log_decay;
  const int head = strength ? column : column - p.value_heads;
  return load_global<Traffic::rows>(from + row * p.value_heads + head);
}

SD_DEVICE float exp_fast(float x) { return exp2_fast(x * log2_e); }
