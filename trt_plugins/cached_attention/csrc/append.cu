// Append k and v to the caches (fp16, or int8 with one scale a token) and recompute the summaries
// that the step completes.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin append.cu      check: pytest tests/trt_plugins
// launch:  grid (blocks that a step can touch, Hkv, B), 128 threads, 512 bytes of shared memory
// reads    k, v, the rest of a block whose summary is recomputed; writes caches, scales, summaries
// Oracle:  oracle.py::_append, int8_kv.py::quantise, summaries.py::refresh (NumPy, fp64)
// Versions: v0 a CTA for each touched block, one warp a token, one thread a channel of a summary.
//
// A window that reaches into another CTA's block takes the tokens behind past_len from k, not from the
// cache: what a rejected draft left there cannot matter, and no CTA waits for another. Only summaries of complete blocks and windows
// are written; the others are never read.
#include "step.cuh"

constexpr int append_threads = 128;
constexpr float smallest_scale = 0x1p-24f;
constexpr float largest_scale = 65504.0f;

// Largest |x|, NaN if any is.
SD_DEVICE float magnitude(float a, float b) { return b > a || is_nan(b) ? b : a; }

SD_DEVICE float quantisation_scale(float largest_value) {
  if (largest_value == 0) return 1;
  float scale = divide_exact(largest_value, 127.0f);
  if (scale > largest_scale) scale = largest_scale;
  scale = float_from_half(half_from_float(scale));
  return scale < smallest_scale ? smallest_scale : scale;
}

SD_DEVICE float code_from(float x, float scale) {
  const float ratio = round_even(divide_exact(x, scale));
  if (is_nan(ratio)) return 0;
  return ratio > 127 ? 127 : ratio < -127 ? -127 : ratio;
}

// Blocks whose summaries the step recomputes: from the block of the token before past_len;
// infllm_v2 from one earlier, since windows reach into the next block.
SD_DEVICE i64 first_stale_block(const Step& p, i64 past) {
  i64 first = (past > 0 ? past - 1 : 0) / block_tokens;
  if (p.selector == select_infllm_v2 && first > 0) first -= 1;
  return first;
}

template <int d, bool int8>
struct Append {
  static constexpr int lane_values = d / 32;

  const Step& p;
  int slot, kv_head;
  i64 past, length;  // before and after the step
  i64 begin;         // first token of the block
  float* scales;     // [128]: of the block's tokens and of those that its windows reach

  SD_DEVICE i64 fresh_offset(i64 token) const {
    return ((static_cast<i64>(slot) * p.rows + (token - past)) * p.kv_heads + kv_head) * d;
  }

  // One warp: scale of a row of k or v, 1 where nothing is quantised.
  SD_DEVICE float row_scale(const half_t* row, int lane) const {
    if (!int8) return 1;
    float largest_value = 0;
#pragma unroll
    for (int i = 0; i < lane_values; ++i) {
      const float x = float_from_half(load_global<Traffic::rows>(row + 32 * i + lane));
      largest_value = magnitude(largest_value, x < 0 ? -x : x);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      largest_value = magnitude(largest_value, shuffle_xor(largest_value, mask));
    }
    return quantisation_scale(largest_value);
  }

  SD_DEVICE void write_row(const half_t* row, void* cache, half_t* scale_cache, float scale,
                           i64 token, int lane) const {
    const i64 at = token_offset(p, slot, kv_head, token);
#pragma unroll
    for (int i = 0; i < lane_values; ++i) {
      const int channel = 32 * i + lane;
      const half_t x = load_global<Traffic::rows>(row + channel);
      if (int8) {
        const auto code = static_cast<i8>(code_from(float_from_half(x), scale));
        store_global<Traffic::kv>(static_cast<i8*>(cache) + at * d + channel, code);
      } else {
        store_global<Traffic::kv>(static_cast<half_t*>(cache) + at * d + channel, x);
      }
    }
    if (int8 && lane == 0) store_global<Traffic::scale>(scale_cache + at, half_from_float(scale));
  }

  // New tokens of the block go to the caches; scales of all tokens up to `end` into shared memory.
  SD_DEVICE void write_tokens(i64 end) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 token = (begin > past ? begin : past) + warp; token < end; token += append_threads / 32) {
      const i64 offset = fresh_offset(token);
      const float scale = row_scale(p.k + offset, lane);
      if (lane == 0) scales[token - begin] = scale;
      if (token >= begin + block_tokens) continue;  // another CTA's block
      write_row(p.k + offset, p.k_cache, p.k_scale, scale, token, lane);
      write_row(p.v + offset, p.v_cache, p.v_scale, row_scale(p.v + offset, lane), token, lane);
    }
  }

  SD_DEVICE void read_scales(i64 end) const {
    const i64 token = begin + threadIdx.x;
    if (token >= end || token >= past) return;
    scales[threadIdx.x] = int8 ? float_from_half(load_global<Traffic::scale>(
                                     p.k_scale + token_offset(p, slot, kv_head, token)))
                               : 1.0f;
  }

  // Key `i` behind `token` as attention reads it, from the cache: written before the step, or by this
  // CTA. Both lie in one block.
  SD_DEVICE float key(i64 token, int i, int channel) const {
    const i64 at = token_offset(p, slot, kv_head, token) * d + i * d + channel;
    if (int8) {
      const i8 code = load_global<Traffic::kv>(static_cast<const i8*>(p.k_cache) + at);
      return code * scales[token - begin + i];
    }
    return float_from_half(load_global<Traffic::kv>(static_cast<const half_t*>(p.k_cache) + at));
  }

  // The same of a token that another CTA may be writing just now.
  SD_DEVICE float key_behind_block(i64 token, int channel) const {
    if (token < past) return key(token, 0, channel);
    const float x = float_from_half(load_global<Traffic::rows>(p.k + fresh_offset(token) + channel));
    const float scale = scales[token - begin];
    return int8 ? code_from(x, scale) * scale : x;
  }

  SD_DEVICE void write_summary(int vector, int channel, float x) const {
    const i64 block = (static_cast<i64>(slot) * p.kv_heads + kv_head) * p.blocks + begin / block_tokens;
    const i64 at = (block * summary_vectors(p) + vector) * d + channel;
    store_global<Traffic::summary>(p.summary + at, half_from_float(x));
  }

  // Mean and population standard deviation, two passes over the 64 keys held in registers.
  SD_DEVICE void write_moments(int channel) const {
    float x[block_tokens];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < block_tokens; ++i) sum += x[i] = key(begin, i, channel);
    const float mean = sum / block_tokens;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < block_tokens; ++i) squares += (x[i] - mean) * (x[i] - mean);
    write_summary(0, channel, mean);
    write_summary(1, channel, square_root(squares / block_tokens));
  }

  SD_DEVICE void write_box(int channel) const {
    float low = key(begin, 0, channel), high = low;
    for (int i = 1; i < block_tokens; ++i) {
      const float x = key(begin, i, channel);
      if (x < low || is_nan(x)) low = x;
      if (x > high || is_nan(x)) high = x;
    }
    write_summary(0, channel, (high + low) / 2);
    write_summary(1, channel, (high - low) / 2);
  }

  // Four means of 32 keys and one of 128, from the sums of 16 keys.
  SD_DEVICE void write_windows(int channel) const {
    float piece[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      piece[i] = 0;
      const i64 first = begin + 16 * i;
      if (first + 16 > length) continue;
#pragma unroll 1
      for (int j = 0; j < 16; ++j) {
        piece[i] += i < 4 ? key(first, j, channel) : key_behind_block(first + j, channel);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (begin + 16 * i + 32 <= length) write_summary(i, channel, (piece[i] + piece[i + 1]) / 32);
    }
    if (begin + 128 > length) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += piece[i];
    write_summary(4, channel, sum / 128);
  }

  // Whether the step completes the block, or for infllm_v2 its first window.
  SD_DEVICE bool has_summary() const {
    if (p.selector < select_mean_std) return false;
    return begin + (p.selector == select_infllm_v2 ? 32 : block_tokens) <= length;
  }

  SD_DEVICE void run() const {
    const i64 reach = begin + (p.selector == select_infllm_v2 ? 2 : 1) * block_tokens;
    const i64 end = reach < length ? reach : length;
    write_tokens(end);
    if (!has_summary()) return;
    read_scales(end);
    __syncthreads();
    for (int channel = threadIdx.x; channel < d; channel += append_threads) {
      if (p.selector == select_mean_std) write_moments(channel);
      if (p.selector == select_min_max) write_box(channel);
      if (p.selector == select_infllm_v2) write_windows(channel);
    }
  }
};

template <int d, bool int8>
SD_DEVICE void append(const Step& p) {
  const int slot = blockIdx.z;
  if (p.blocks_read && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) {
    store_global<Traffic::control>(p.blocks_read, i64{1});  // the combine kernel raises it
  }
  const i64 past = load_global<Traffic::control>(p.past_len + slot);
  const i64 rows = load_global<Traffic::control>(p.row_count + slot);
  const i64 begin = (first_stale_block(p, past) + blockIdx.x) * block_tokens;
  if (rows == 0 || begin >= past + rows) return;
  auto* scales = reinterpret_cast<float*>(shared_memory());
  const Append<d, int8> step{p, slot, static_cast<int>(blockIdx.y), past, past + rows, begin, scales};
  step.run();
}

SD_KERNEL(append_fp16_d64, Step, append_threads, 2) { append<64, false>(p); }
SD_KERNEL(append_fp16_d128, Step, append_threads, 2) { append<128, false>(p); }
SD_KERNEL(append_fp16_d256, Step, append_threads, 2) { append<256, false>(p); }
SD_KERNEL(append_int8_d64, Step, append_threads, 2) { append<64, true>(p); }
SD_KERNEL(append_int8_d128, Step, append_threads, 2) { append<128, true>(p); }
SD_KERNEL(append_int8_d256, Step, append_threads, 2) { append<256, true>(p); }
