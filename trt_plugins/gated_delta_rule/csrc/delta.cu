// The gated delta rule over the rows of a step: convolution, recurrence, and the log that takes rows back.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin delta.cu       check: pytest tests/trt_plugins
// launch:  three kernels in this order, 128 threads each (launches.py)
//   delta_mix   grid (W / 4, 2 Hk + Hv, B)       one warp a row of a head: convolution, SiLU, unit length
//   delta_scan  grid (dv / 32, Hv, B)            one CTA 32 columns of a state: blocks of 8 rows in turn
//   delta_log   grid (C / 128 + 2 Hv / 128, B)   one thread a channel of the log
// Oracle:  oracle.py (NumPy, fp64, row by row). Source of the rule: arXiv 2412.06464, eq. 10.
// Versions: v0 fp32 FMA; a state is read once a step, written once every 8 tokens.
//
// Within a block the rows' writes are found by forward substitution, so that a row depends on no later one;
// a row that is not there yet is zeros. Every sum has one order: a row has the same bits in any step.
#include "step.cuh"

namespace {

constexpr float l2_eps = 1e-6f;

SD_DEVICE int channels_of(const DeltaStep& p, int key_dim, int value_dim) {
  return 2 * p.key_heads * key_dim + p.value_heads * value_dim;
}

// ---- convolution -------------------------------------------------------------------------------

SD_DEVICE float silu(float x) { return divide_exact(x, 1.0f + exp_fast(-x)); }

SD_DEVICE float convolved(const DeltaStep& p, const Window& w, int t, int channel, int channels) {
  float sum = 0;
  for (int tap = 0; tap < p.taps; ++tap) {
    const float weight = load_global<Traffic::weight>(p.conv_weight + static_cast<i64>(channel) * p.taps + tap);
    sum = multiply_add(weight, raw_input(p, w, t + tap, channel, channels), sum);
  }
  return silu(sum);
}

// A warp: `d` channels from `first` on of window row `t`. `scale` 0: as they are; else of that length.
template <int d>
SD_DEVICE void mix_head(const DeltaStep& p, const Window& w, int t, int first, float scale, int channels) {
  const int lane = threadIdx.x % 32;
  float x[d / 32];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < d / 32; ++i) {
    x[i] = convolved(p, w, t, first + 32 * i + lane, channels);
    squares = multiply_add(x[i], x[i], squares);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) squares += shuffle_xor(squares, mask);
  const float factor = scale == 0 ? 1.0f : divide_exact(scale, square_root(squares + l2_eps));
  const i64 row = static_cast<i64>(w.slot) * p.window + t;
#pragma unroll
  for (int i = 0; i < d / 32; ++i) {
    store_global<Traffic::partial>(p.mixed + row * channels + first + 32 * i + lane, x[i] * factor);
  }
}

template <int key_dim, int value_dim>
SD_DEVICE void mix(const DeltaStep& p) {
  const Window w = window_of(p, blockIdx.z);
  const int t = blockIdx.x * delta_warps + threadIdx.x / 32;
  if (w.count == 0 || t >= w.total()) return;  // whole warps
  const int channels = channels_of(p, key_dim, value_dim);
  const int head = blockIdx.y, keys = 2 * p.key_heads;
  if (head < keys) {
    const float query_scale = divide_exact(1.0f, square_root(static_cast<float>(key_dim)));
    mix_head<key_dim>(p, w, t, head * key_dim, head < p.key_heads ? query_scale : 1.0f, channels);
  } else {
    mix_head<value_dim>(p, w, t, keys * key_dim + (head - keys) * value_dim, 0, channels);
  }
}

// ---- recurrence --------------------------------------------------------------------------------

struct alignas(16) Four {
  float value[4];
};

// Shared memory of the scan, in floats. Rows of q and k are padded, so that eight of them lie in
// different banks.
template <int key_dim>
struct Layout {
  static constexpr int stride = key_dim + 4;
  static constexpr int keys = 0;
  static constexpr int queries = block_rows * stride;
  static constexpr int values = 2 * block_rows * stride;
  static constexpr int stage = values + block_rows * columns;
  static constexpr int partial = 2 * stage;  // [warp][8 of k, 8 of q][column]
  static constexpr int likeness = partial + delta_warps * 2 * block_rows * columns;  // [k, q][row][row]
  static constexpr int gates = likeness + 2 * block_rows * block_rows;  // strength [8], log decay [8]
  static constexpr int reach = gates + 2 * block_rows;  // decay from before the block to each row
  static constexpr int left = reach + block_rows;       // decay from each row to the block's end
};

// One CTA's work: 32 columns of the state of one value head of one slot. A thread keeps `depth` rows of
// one column in registers.
template <int key_dim, int value_dim>
struct Scan {
  using Place = Layout<key_dim>;
  static constexpr int depth = key_dim / delta_warps;
  using State = float[depth];

  const DeltaStep& p;
  Window w;
  int head, column, warp;  // value head; column of the value, and rows of the key by warp
  float* shared;

  SD_DEVICE int key_head() const { return head / (p.value_heads / p.key_heads); }

  SD_DEVICE float* state_at(int i) const {
    const i64 row = (static_cast<i64>(w.slot) * p.value_heads + head) * key_dim + warp * depth + i;
    return p.recurrent + row * value_dim + column;
  }

  SD_DEVICE void read_state(State& state) const {
#pragma unroll
    for (int i = 0; i < depth; ++i) state[i] = w.fresh ? 0 : load_global<Traffic::state>(state_at(i));
  }

  SD_DEVICE void write_state(const State& state) const {
#pragma unroll
    for (int i = 0; i < depth; ++i) store_global<Traffic::state>(state_at(i), state[i]);
  }

  // Queue the copy of a block's q, k and v; zeros for rows behind the window.
  SD_DEVICE void stage_block(int block) const {
    float* stage = shared + block % 2 * Place::stage;
    const int channels = channels_of(p, key_dim, value_dim);
    constexpr int units = key_dim / 4;
    for (int i = threadIdx.x; i < 2 * block_rows * units; i += delta_threads) {
      const int part = i / (block_rows * units), row = i / units % block_rows, unit = i % units;
      const int channel = (part * p.key_heads + key_head()) * key_dim + 4 * unit;
      float* to = stage + (part == 0 ? Place::queries : Place::keys) + row * Place::stride + 4 * unit;
      stage_unit(to, block, row, channel, channels);
    }
    const int first = 2 * p.key_heads * key_dim + head * value_dim + static_cast<int>(blockIdx.x) * columns;
    const int row = threadIdx.x / (columns / 4), unit = threadIdx.x % (columns / 4);
    if (row < block_rows) {
      stage_unit(stage + Place::values + row * columns + 4 * unit, block, row, first + 4 * unit, channels);
    }
  }

  SD_DEVICE void stage_unit(float* to, int block, int row, int channel, int channels) const {
    const int t = block * block_rows + row;
    const bool valid = t < w.total();
    const i64 at = (static_cast<i64>(w.slot) * p.window + t) * channels + channel;
    copy_async_16<Traffic::partial>(to, valid ? p.mixed + at : p.mixed, valid);
  }

  // Threads 0 … 15: strength or log decay of a row of the block, 0 behind the window.
  SD_DEVICE float block_gate(int block) const {
    const int t = block * block_rows + static_cast<int>(threadIdx.x) % block_rows;
    if (threadIdx.x >= 2 * block_rows || t >= w.total()) return 0;
    return gate(p, w, t, head + (threadIdx.x < block_rows ? 0 : p.value_heads));
  }

  SD_DEVICE float strength(int row) const { return shared[Place::gates + row]; }
  SD_DEVICE float reach(int row) const { return shared[Place::reach + row]; }

  // What is left at row `to` of what was there behind row `from`; -1: before the block.
  SD_DEVICE float decay(int from, int to) const {
    float fall = 0;
    for (int row = from + 1; row <= to; ++row) fall += shared[Place::gates + block_rows + row];
    return exp_fast(fall);
  }

  SD_DEVICE void find_decays() const {
    const int row = threadIdx.x % block_rows;
    if (threadIdx.x < block_rows) {
      shared[Place::reach + row] = decay(-1, row);
    } else if (threadIdx.x < 2 * block_rows) {
      shared[Place::left + row] = decay(row, block_rows - 1);
    }
  }

  static SD_DEVICE float dot(const float* a, const float* b) {
    float sum[4] = {};
#pragma unroll 8
    for (int i = 0; i < key_dim; i += 4) {
      const auto x = *reinterpret_cast<const Four*>(a + i), y = *reinterpret_cast<const Four*>(b + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = multiply_add(x.value[j], y.value[j], sum[j]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  // Keys (threads 0 … 63) or queries of row i times the key of row j, with the decay between them.
  SD_DEVICE void find_likeness(const float* stage) const {
    const int part = threadIdx.x / 64, row = threadIdx.x / 8 % 8, other = threadIdx.x % 8;
    float product = 0;
    if (other <= row) {
      const float* a = stage + (part == 0 ? Place::keys : Place::queries) + row * Place::stride;
      const float* b = stage + Place::keys + other * Place::stride;
      product = dot(a, b) * decay(other, row);
    }
    shared[Place::likeness + threadIdx.x] = product;
  }

  // This warp's rows of the state, asked with the block's keys and queries.
  SD_DEVICE void probe(const float* stage, const State& state) const {
    float found[2 * block_rows] = {};
#pragma unroll
    for (int i = 0; i < depth; i += 4) {
#pragma unroll
      for (int row = 0; row < 2 * block_rows; ++row) {
        const float* x = stage + row * Place::stride + warp * depth + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) found[row] = multiply_add(x[j], state[i + j], found[row]);
      }
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 2 * block_rows; ++row) {
      shared[Place::partial + (warp * 2 * block_rows + row) * columns + lane] = found[row];
    }
  }

  // The state's answer to key `row`, or query `row - 8`, in this thread's column.
  SD_DEVICE float answer(int row) const {
    const int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < delta_warps; ++part) {
      sum += shared[Place::partial + (part * 2 * block_rows + row) * columns + lane];
    }
    return sum;
  }

  // What each row writes in this thread's column; all warps find the same.
  SD_DEVICE void find_writes(const float* stage, float (&written)[block_rows]) const {
    const int lane = threadIdx.x % 32;
    const float* likeness = shared + Place::likeness;
#pragma unroll
    for (int row = 0; row < block_rows; ++row) {
      float known = answer(row) * reach(row);
#pragma unroll
      for (int other = 0; other < row; ++other) {
        known = multiply_add(likeness[row * block_rows + other], written[other], known);
      }
      written[row] = (stage[Place::values + row * columns + lane] - known) * strength(row);
    }
  }

  // A warp writes two rows of y.
  SD_DEVICE void write_rows(int block, const float (&written)[block_rows]) const {
    const float* mixing = shared + Place::likeness + block_rows * block_rows;
#pragma unroll
    for (int half = 0; half < block_rows / delta_warps; ++half) {
      const int row = half * delta_warps + warp;
      const int of_step = block * block_rows + row - w.replay;
      float y = answer(block_rows + row) * reach(row);
#pragma unroll
      for (int other = 0; other < block_rows; ++other) {
        if (other <= row) y = multiply_add(mixing[row * block_rows + other], written[other], y);
      }
      if (of_step >= 0 && of_step < w.count) store_row(of_step, y);
    }
  }

  SD_DEVICE void store_row(int row, float y) const {
    const i64 at = (static_cast<i64>(w.slot) * p.rows + row) * p.value_heads + head;
    store_global<Traffic::output>(p.y + at * value_dim + column, y);
  }

  SD_DEVICE void move_state(const float* stage, const float (&written)[block_rows], State& state) const {
    const float kept = reach(block_rows - 1);
#pragma unroll
    for (int i = 0; i < depth; ++i) state[i] *= kept;
#pragma unroll
    for (int row = 0; row < block_rows; ++row) {
      const float* key = stage + Place::keys + row * Place::stride + warp * depth;
      const float left = written[row] * shared[Place::left + row];
#pragma unroll
      for (int i = 0; i < depth; ++i) state[i] = multiply_add(key[i], left, state[i]);
    }
  }

  SD_DEVICE void run_blocks() const {
    State state;
    const int blocks = ceil_div(w.total(), block_rows);
    stage_block(0);
    copy_async_commit();
    float next_gate = block_gate(0);
    read_state(state);
    if (w.fresh && w.moved == 0) write_state(state);
    for (int block = 0; block < blocks; ++block) {
      if (threadIdx.x < 2 * block_rows) shared[Place::gates + threadIdx.x] = next_gate;
      if (block + 1 < blocks) {
        stage_block(block + 1);
        next_gate = block_gate(block + 1);
      }
      copy_async_commit();
      copy_async_wait<1>();
      __syncthreads();  // the block's rows and gates are there for all
      const float* stage = shared + block % 2 * Place::stage;
      find_decays();
      find_likeness(stage);
      probe(stage, state);
      __syncthreads();  // every warp has asked its part of the state
      float written[block_rows];
      find_writes(stage, written);
      write_rows(block, written);
      const bool commits = (block + 1) * block_rows == w.moved;
      if (commits || block + 1 < blocks) move_state(stage, written, state);
      if (commits) write_state(state);
      __syncthreads();  // the block has been read
    }
    copy_async_wait<0>();
  }

  SD_DEVICE void run() const {
    if (w.count > 0) run_blocks();
    for (int row = w.count + warp; row < p.rows; row += delta_warps) store_row(row, 0);
  }
};

template <int key_dim, int value_dim>
SD_DEVICE void scan(const DeltaStep& p) {
  const int column = static_cast<int>(blockIdx.x) * columns + static_cast<int>(threadIdx.x) % 32;
  const Scan<key_dim, value_dim> own{p,
                                     window_of(p, blockIdx.z),
                                     static_cast<int>(blockIdx.y),
                                     column,
                                     static_cast<int>(threadIdx.x) / 32,
                                     reinterpret_cast<float*>(shared_memory())};
  own.run();
}

// ---- log ---------------------------------------------------------------------------------------

// Both logs move on by w.moved rows. What stays where it is, is not written again. A thread reads all
// rows of its column before it writes.
SD_DEVICE void move_channel(const DeltaStep& p, const Window& w, int channel, int channels) {
  constexpr int most = most_taps - 1 + log_rows;
  const int before = p.taps - 1;
  const int first = w.moved == 0 && !w.fresh ? before + w.replay : 0;
  const int end = before + w.total() - w.moved;
  half_t kept[most];
#pragma unroll
  for (int row = 0; row < most; ++row) {
    if (row < first || row >= end) continue;
    kept[row] = half_from_float(raw_input(p, w, w.moved + row, channel, channels));
  }
  const i64 base = static_cast<i64>(w.slot) * (before + log_rows);
#pragma unroll
  for (int row = 0; row < most; ++row) {
    if (row < first || row >= end) continue;
    store_global<Traffic::log>(p.conv_rows + (base + row) * channels + channel, kept[row]);
  }
}

SD_DEVICE void move_gate(const DeltaStep& p, const Window& w, int column) {
  const int first = w.moved == 0 ? w.replay : 0;
  const int end = w.total() - w.moved;
  float kept[log_rows];
#pragma unroll
  for (int row = 0; row < log_rows; ++row) {
    if (row >= first && row < end) kept[row] = gate(p, w, w.moved + row, column);
  }
  const i64 base = static_cast<i64>(w.slot) * log_rows;
#pragma unroll
  for (int row = 0; row < log_rows; ++row) {
    if (row < first || row >= end) continue;
    store_global<Traffic::log>(p.gate_rows + (base + row) * 2 * p.value_heads + column, kept[row]);
  }
}

template <int key_dim, int value_dim>
SD_DEVICE void move_log(const DeltaStep& p) {
  const Window w = window_of(p, blockIdx.y);
  if (w.count == 0) return;
  const int channels = channels_of(p, key_dim, value_dim);
  const int channel_ctas = ceil_div(channels, delta_threads);
  const int cta = blockIdx.x, thread = threadIdx.x;
  if (cta < channel_ctas) {
    const int channel = cta * delta_threads + thread;
    if (channel < channels) move_channel(p, w, channel, channels);
  } else {
    const int column = (cta - channel_ctas) * delta_threads + thread;
    if (column < 2 * p.value_heads) move_gate(p, w, column);
  }
}

}  // namespace

SD_KERNEL(delta_mix_k64_v64, DeltaStep, delta_threads, 8) { mix<64, 64>(p); }
SD_KERNEL(delta_mix_k64_v128, DeltaStep, delta_threads, 8) { mix<64, 128>(p); }
SD_KERNEL(delta_mix_k128_v64, DeltaStep, delta_threads, 8) { mix<128, 64>(p); }
SD_KERNEL(delta_mix_k128_v128, DeltaStep, delta_threads, 8) { mix<128, 128>(p); }
SD_KERNEL(delta_scan_k64_v64, DeltaStep, delta_threads, 3) { scan<64, 64>(p); }
SD_KERNEL(delta_scan_k64_v128, DeltaStep, delta_threads, 3) { scan<64, 128>(p); }
SD_KERNEL(delta_scan_k128_v64, DeltaStep, delta_threads, 3) { scan<128, 64>(p); }
SD_KERNEL(delta_scan_k128_v128, DeltaStep, delta_threads, 3) { scan<128, 128>(p); }
SD_KERNEL(delta_log_k64_v64, DeltaStep, delta_threads, 4) { move_log<64, 64>(p); }
SD_KERNEL(delta_log_k64_v128, DeltaStep, delta_threads, 4) { move_log<64, 128>(p); }
SD_KERNEL(delta_log_k128_v64, DeltaStep, delta_threads, 4) { move_log<128, 64>(p); }
SD_KERNEL(delta_log_k128_v128, DeltaStep, delta_threads, 4) { move_log<128, 128>(p); }
