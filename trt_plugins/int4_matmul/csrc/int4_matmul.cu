// selfdraft::Int4MatMul: y [rows, N] = x [rows, K] · w, int4 weights in groups of 32, 64 or 128.
//
// compile   nvcc -cubin -arch=sm_87 --std=c++17 int4_matmul.cu   (or NVRTC 12.6)
// contract  ../contract.py (order of the sums), ../packing.py (layout of weight and scale)
// oracle    ../oracle.py; run on the host by tests/trt_plugins/test_int4_kernels.py
// kernels   int4_matmul_g<group>_r<8|16|32>  few rows: weights are read once, each warp takes a slice
//                                         of the inputs and keeps the next chunk in flight
//           int4_matmul_g<group>_many     tiles of 64 rows, chunks of x and w staged in shared memory
//
// Both add in the order of the contract, so a row's result does not depend on the other rows, nor on
// the kernel. Weights are on the 16 side of m16n8k16, rows on the 8 side: one row costs no more
// than eight, and padding costs rows, not weights.
#include "../../csrc/device.cuh"

struct Int4MatMulParams {
  const half_t* x;      // [rows, in_features]
  const u8* weight;     // [strips, chunks, 2048]
  const half_t* scale;  // [strips, groups, 64]
  half_t* y;            // [rows, out_features]
  i64 rows;
  i32 in_features, out_features;
  i32 chunks;
};

namespace {

constexpr int strip_outputs = 64, chunk_inputs = 64, half_inputs = 32, tiles = 4, slices = 8;
constexpr int chunk_bytes = strip_outputs * chunk_inputs / 2;
constexpr int lane_bytes = 16, tile_bytes = 32 * lane_bytes;
constexpr int scale_bytes = strip_outputs * 2;  // of one group

template <int group>
struct Grouping {
  // Chunks that one slice takes in turn, and rows of scales that a chunk needs.
  static constexpr int step_chunks = group > chunk_inputs ? group / chunk_inputs : 1;
  static constexpr int chunk_groups = group < chunk_inputs ? chunk_inputs / group : 1;

  static SD_DEVICE int next_chunk(int chunk) {
    const int following = chunk + 1;
    return following % step_chunks ? following : following + (slices - 1) * step_chunks;
  }
  // Row of scales of a chunk's first group.
  static SD_DEVICE int first_group(int chunk) { return chunk * chunk_groups / step_chunks; }
};

// Register i of operand A from nibbles i and i + 4: fp16 1024 + n (or 1024 + 16 n) by or-ing bits in,
// then n - 8 exactly.
SD_DEVICE void codes_from_word(u32 (&a)[4], u32 word) {
  constexpr u32 low = 0x000f000f, high = 0x00f000f0, magic = 0x64006400;
  constexpr u32 offset = 0x64086408;                         // 1032
  constexpr u32 sixteenth = 0x2c002c00, shifted = 0xd480d480;  // 1/16, -72
  a[0] = half2_sub((word & low) | magic, offset);
  a[1] = half2_fma((word & high) | magic, sixteenth, shifted);
  word >>= 8;
  a[2] = half2_sub((word & low) | magic, offset);
  a[3] = half2_fma((word & high) | magic, sixteenth, shifted);
}

// Scales of outputs g and g + 8 of a tile.
struct TileScales {
  float low, high;
};
SD_DEVICE TileScales scales_from_word(u32 word) {
  return {float_from_half({static_cast<u16>(word)}), float_from_half({static_cast<u16>(word >> 16)})};
}

SD_DEVICE void add_segment(float (&sum)[4], const float (&segment)[4], TileScales scale) {
  sum[0] = multiply_add(segment[0], scale.low, sum[0]);
  sum[1] = multiply_add(segment[1], scale.low, sum[1]);
  sum[2] = multiply_add(segment[2], scale.high, sum[2]);
  sum[3] = multiply_add(segment[3], scale.high, sum[3]);
}

// A chunk's rows as operand B: word [h] holds inputs 32 h + 8 t ... + 7 of row g.
struct ChunkRows {
  u32x4 half[2];
};

// sums [row tile] += one tile of 16 outputs times a chunk. scale: words by group of the chunk.
template <int group, int row_tiles>
SD_DEVICE void add_tile(float (&sums)[row_tiles][4], u32x4 codes, const ChunkRows (&rows)[row_tiles],
                        const u32 (&scale)[Grouping<group>::chunk_groups]) {
  constexpr bool by_half = Grouping<group>::chunk_groups == 2;
  const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
  float segment[row_tiles][4] = {};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    u32 a[4];
    codes_from_word(a, words[word]);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
      const u32x4& half = rows[r].half[word / 2];
      const u32 b[2] = {word % 2 ? half.z : half.x, word % 2 ? half.w : half.y};
      mma_16816(segment[r], a, b);
    }
    if (word == 3 || (by_half && word == 1)) {
      const TileScales scales = scales_from_word(scale[by_half ? word / 2 : 0]);
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        add_segment(sums[r], segment[r], scales);
        segment[r][0] = segment[r][1] = segment[r][2] = segment[r][3] = 0.0f;
      }
    }
  }
}

// ---- few rows ----------------------------------------------------------------------------------

constexpr int few_threads = 32 * slices;
constexpr int partial_stride = strip_outputs + 4;  // lanes of a warp write to 32 banks

// What a lane reads of one chunk: its codes of four tiles, and the scales of lane's place.
template <int group>
struct ChunkWeights {
  u32x4 codes[tiles];
  u32 scale[Grouping<group>::chunk_groups];
};

template <int group>
SD_DEVICE void load_weights(ChunkWeights<group>& to, const Int4MatMulParams& p, int chunk, int lane) {
  const i64 strip = blockIdx.y;
  const u8* codes = p.weight + (strip * p.chunks + chunk) * chunk_bytes + lane * lane_bytes;
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
    to.codes[tile] =
        load_global<Traffic::weight>(reinterpret_cast<const u32x4*>(codes + tile * tile_bytes));
  }
  // A group of two chunks: the second one keeps the scales of the first.
  if (chunk % Grouping<group>::step_chunks) return;
  const int groups = Grouping<group>::first_group(p.chunks);
  const i64 first = strip * groups + Grouping<group>::first_group(chunk);
  const auto* scale = reinterpret_cast<const u32*>(p.scale + first * strip_outputs) + lane;
#pragma unroll
  for (int i = 0; i < Grouping<group>::chunk_groups; ++i) {
    to.scale[i] = load_global<Traffic::scale>(scale + i * (strip_outputs / 2));
  }
}

// Rows and inputs that do not exist are zeros.
SD_DEVICE void load_rows(ChunkRows& to, const Int4MatMulParams& p, i64 row, int chunk, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int input = chunk * chunk_inputs + h * half_inputs;
    to.half[h] = {0, 0, 0, 0};
    if (row < p.rows && input < p.in_features) {
      const half_t* from = p.x + row * p.in_features + input + 8 * t;
      to.half[h] = load_global<Traffic::rows>(reinterpret_cast<const u32x4*>(from));
    }
  }
}

// Adds the slices' partial sums [slice][8 rows][outputs] in order and writes y.
SD_DEVICE void write_rows(const Int4MatMulParams& p, const float* partial, i64 first_row) {
  for (int i = threadIdx.x; i < 8 * strip_outputs; i += few_threads) {
    const int row = i / strip_outputs, output = i % strip_outputs;
    float total = 0.0f;
#pragma unroll
    for (int slice = 0; slice < slices; ++slice) {
      total += partial[(slice * 8 + row) * partial_stride + output];
    }
    const i64 column = static_cast<i64>(blockIdx.y) * strip_outputs + output;
    if (first_row + row < p.rows && column < p.out_features) {
      half_t* to = p.y + (first_row + row) * p.out_features + column;
      store_global<Traffic::output>(to, half_from_float(total));
    }
  }
}

template <int row_tiles>
SD_DEVICE void add_slices(const Int4MatMulParams& p, const float (&sums)[tiles][row_tiles][4],
                          i64 first_row) {
  auto* partial = reinterpret_cast<float*>(shared_memory());
  const int slice = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    if (r > 0) __syncthreads();  // the tile before has been read
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      float* to = partial + (slice * 8 + 2 * t) * partial_stride + tile * 16 + g;
      to[0] = sums[tile][r][0];
      to[partial_stride] = sums[tile][r][1];
      to[8] = sums[tile][r][2];
      to[partial_stride + 8] = sums[tile][r][3];
    }
    __syncthreads();  // all slices have written
    write_rows(p, partial, first_row + 8 * r);
  }
}

// grid [row blocks, strips]; warp = slice.
template <int group, int row_tiles>
SD_DEVICE void few_rows(const Int4MatMulParams& p) {
  using Groups = Grouping<group>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const i64 first_row = static_cast<i64>(blockIdx.x) * (8 * row_tiles);
  float sums[tiles][row_tiles][4] = {};
  int chunk = static_cast<int>(threadIdx.x / 32) * Groups::step_chunks;
  ChunkWeights<group> next = {};
  if (chunk < p.chunks) load_weights<group>(next, p, chunk, lane);
  while (chunk < p.chunks) {
    const ChunkWeights<group> weights = next;
    ChunkRows rows[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) load_rows(rows[r], p, first_row + 8 * r + g, chunk, t);
    chunk = Groups::next_chunk(chunk);
    if (chunk < p.chunks) load_weights<group>(next, p, chunk, lane);
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      u32 scale[Groups::chunk_groups];
#pragma unroll
      for (int i = 0; i < Groups::chunk_groups; ++i) {
        // Lane 4 g + tile loaded the scales of outputs g and g + 8 of that tile.
        scale[i] = shuffle(weights.scale[i], lane - t + tile);
      }
      add_tile<group, row_tiles>(sums[tile], weights.codes[tile], rows, scale);
    }
  }
  add_slices<row_tiles>(p, sums, first_row);
}

// ---- many rows ---------------------------------------------------------------------------------

constexpr int many_threads = 128, tile_rows = 64, stages = 3;
constexpr int row_bytes = chunk_inputs * 2;
constexpr int staged_rows = tile_rows * row_bytes;
constexpr int stage_bytes = staged_rows + chunk_bytes + 2 * scale_bytes;
constexpr int many_shared_bytes = stages * stage_bytes;
constexpr int output_stride = strip_outputs + 8;
static_assert(tile_rows * output_stride * 2 <= many_shared_bytes, "y is staged in the same memory");

// Place of 16-byte unit `unit` (0..7) of a staged row: odd rows exchange halves, so that the eight
// lanes of a quarter warp read from 32 banks.
SD_DEVICE int unit_offset(int row, int unit) { return row * row_bytes + (unit ^ (row & 1) * 4) * 16; }

// Chunks in the contract's order: slice by slice.
template <int group>
struct Walk {
  int chunk = 0, slice = 0;

  SD_DEVICE void advance(int chunks) {
    chunk = Grouping<group>::next_chunk(chunk);
    if (chunk >= chunks) chunk = ++slice * Grouping<group>::step_chunks;
  }
};

template <int group>
SD_DEVICE void stage_chunk(u8* stage, const Int4MatMulParams& p, int chunk, i64 first_row) {
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = thread; i < tile_rows * 8; i += many_threads) {
    const int row = i / 8, unit = i % 8;
    const int input = chunk * chunk_inputs + unit * 8;
    const bool valid = first_row + row < p.rows && input < p.in_features;
    const half_t* from = valid ? p.x + (first_row + row) * p.in_features + input : p.x;
    copy_async_16<Traffic::rows>(stage + unit_offset(row, unit), from, valid);
  }
  const i64 strip = blockIdx.y;
  const u8* codes = p.weight + (strip * p.chunks + chunk) * chunk_bytes + thread * 16;
  copy_async_16<Traffic::weight>(stage + staged_rows + thread * 16, codes, true);
  if (thread < Grouping<group>::chunk_groups * scale_bytes / 16) {
    const int groups = Grouping<group>::first_group(p.chunks);
    const i64 first = strip * groups + Grouping<group>::first_group(chunk);
    const auto* scale = reinterpret_cast<const u8*>(p.scale + first * strip_outputs);
    copy_async_16<Traffic::scale>(stage + staged_rows + chunk_bytes + thread * 16,
                                  scale + thread * 16, true);
  }
}

// A warp computes two tiles of outputs for four tiles of rows.
constexpr int warp_tiles = 2, warp_row_tiles = 4;
using WarpSums = float[warp_tiles][warp_row_tiles][4];

template <int group>
SD_DEVICE void add_chunk(WarpSums& sums, const u8* stage) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_tile = threadIdx.x / 32 % 2 * warp_tiles;
  const int first_row = static_cast<int>(threadIdx.x / 64) * (8 * warp_row_tiles);
  ChunkRows rows[warp_row_tiles];
#pragma unroll
  for (int r = 0; r < warp_row_tiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int offset = unit_offset(first_row + 8 * r + g, 4 * h + t);
      rows[r].half[h] = *reinterpret_cast<const u32x4*>(stage + offset);
    }
  }
  const u8* codes = stage + staged_rows + lane * lane_bytes;
  const u8* scales = stage + staged_rows + chunk_bytes + g * 16;
#pragma unroll
  for (int i = 0; i < warp_tiles; ++i) {
    const int tile = first_tile + i;
    u32 scale[Grouping<group>::chunk_groups];
#pragma unroll
    for (int j = 0; j < Grouping<group>::chunk_groups; ++j) {
      scale[j] = *reinterpret_cast<const u32*>(scales + j * scale_bytes + tile * 4);
    }
    const auto words = *reinterpret_cast<const u32x4*>(codes + tile * tile_bytes);
    add_tile<group, warp_row_tiles>(sums[i], words, rows, scale);
  }
}

SD_DEVICE void move_to_totals(WarpSums& totals, WarpSums& sums) {
#pragma unroll
  for (int i = 0; i < warp_tiles * warp_row_tiles * 4; ++i) {
    float& sum = sums[i / (4 * warp_row_tiles)][i / 4 % warp_row_tiles][i % 4];
    totals[i / (4 * warp_row_tiles)][i / 4 % warp_row_tiles][i % 4] += sum;
    sum = 0.0f;
  }
}

// Through shared memory, so that neighbouring threads write neighbouring outputs.
SD_DEVICE void write_tile(const Int4MatMulParams& p, const WarpSums& totals, i64 first_row) {
  auto* staged = reinterpret_cast<half_t*>(shared_memory());
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_tile = threadIdx.x / 32 % 2 * warp_tiles;
  const int warp_row = static_cast<int>(threadIdx.x / 64) * (8 * warp_row_tiles);
  __syncthreads();  // the last chunk has been read
#pragma unroll
  for (int i = 0; i < warp_tiles; ++i) {
#pragma unroll
    for (int r = 0; r < warp_row_tiles; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = warp_row + 8 * r + 2 * t + e % 2;
        const int output = (first_tile + i) * 16 + g + e / 2 * 8;
        staged[row * output_stride + output] = half_from_float(totals[i][r][e]);
      }
    }
  }
  __syncthreads();  // the tile is complete
  for (int i = threadIdx.x; i < tile_rows * strip_outputs; i += many_threads) {
    const int row = i / strip_outputs, output = i % strip_outputs;
    const i64 column = static_cast<i64>(blockIdx.y) * strip_outputs + output;
    if (first_row + row < p.rows && column < p.out_features) {
      half_t* to = p.y + (first_row + row) * p.out_features + column;
      store_global<Traffic::output>(to, staged[row * output_stride + output]);
    }
  }
}

// grid [row blocks, strips]
template <int group>
SD_DEVICE void many_rows(const Int4MatMulParams& p) {
  const i64 first_row = static_cast<i64>(blockIdx.x) * tile_rows;
  WarpSums totals = {}, sums = {};
  Walk<group> loading, adding;
  for (int i = 0; i < stages - 1; ++i) {
    if (i < p.chunks) {
      stage_chunk<group>(shared_memory() + i * stage_bytes, p, loading.chunk, first_row);
      loading.advance(p.chunks);
    }
    copy_async_commit();
  }
  for (int i = 0; i < p.chunks; ++i) {
    copy_async_wait<stages - 2>();
    __syncthreads();  // chunk i is there for all; chunk i - 1 has been read
    if (i + stages - 1 < p.chunks) {
      u8* stage = shared_memory() + (i + stages - 1) % stages * stage_bytes;
      stage_chunk<group>(stage, p, loading.chunk, first_row);
      loading.advance(p.chunks);
    }
    copy_async_commit();
    add_chunk<group>(sums, shared_memory() + i % stages * stage_bytes);
    const int slice = adding.slice;
    adding.advance(p.chunks);
    if (adding.slice != slice) move_to_totals(totals, sums);
  }
  copy_async_wait<0>();
  write_tile(p, totals, first_row);
}

}  // namespace

SD_KERNEL(int4_matmul_g32_r8, Int4MatMulParams, few_threads, 2) { few_rows<32, 1>(p); }
SD_KERNEL(int4_matmul_g64_r8, Int4MatMulParams, few_threads, 2) { few_rows<64, 1>(p); }
SD_KERNEL(int4_matmul_g128_r8, Int4MatMulParams, few_threads, 2) { few_rows<128, 1>(p); }
SD_KERNEL(int4_matmul_g32_r16, Int4MatMulParams, few_threads, 2) { few_rows<32, 2>(p); }
SD_KERNEL(int4_matmul_g64_r16, Int4MatMulParams, few_threads, 2) { few_rows<64, 2>(p); }
SD_KERNEL(int4_matmul_g128_r16, Int4MatMulParams, few_threads, 2) { few_rows<128, 2>(p); }
SD_KERNEL(int4_matmul_g32_r32, Int4MatMulParams, few_threads, 1) { few_rows<32, 4>(p); }
SD_KERNEL(int4_matmul_g64_r32, Int4MatMulParams, few_threads, 1) { few_rows<64, 4>(p); }
SD_KERNEL(int4_matmul_g128_r32, Int4MatMulParams, few_threads, 1) { few_rows<128, 4>(p); }
SD_KERNEL(int4_matmul_g32_many, Int4MatMulParams, many_threads, 2) { many_rows<32>(p); }
SD_KERNEL(int4_matmul_g64_many, Int4MatMulParams, many_threads, 3) { many_rows<64>(p); }
SD_KERNEL(int4_matmul_g128_many, Int4MatMulParams, many_threads, 3) { many_rows<128>(p); }
