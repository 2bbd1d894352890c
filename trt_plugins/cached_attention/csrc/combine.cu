// Merge the partial results of the splits, in their order, and count the blocks that were read.
//
// build:   nvcc -arch=sm_87 -std=c++17 -cubin combine.cu     check: pytest tests/trt_plugins
// launch:  grid (n, Hkv, B), 128 threads, count_bytes of shared memory (launches.py)
// reads    partial, partial_ml, lists; writes y (zeros in rows of padding), blocks_read
// Oracle:  oracle.py::_attend, oracle.py::_blocks_read (NumPy)
// Versions: v0 one thread two channels of one head.
#include "count.cuh"

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
