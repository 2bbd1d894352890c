// The host's half of trt_plugins/csrc/device.cuh: the same names, executed by g++.
#pragma once

#include "machine.hpp"

#define SD_DEVICE inline
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict

// One copy of what a kernel uses in a hundred unrolled places: compiles three times faster.
#define SD_ONE_COPY __attribute__((noinline)) inline

#define SD_EXPORT extern "C" __attribute__((visibility("default")))

#define SD_KERNEL(name, Params, threads, blocks_per_sm)                                         \
  static void name##_thread(const Params& p);                                                   \
  SD_EXPORT u64 host_params_bytes_##name() { return sizeof(Params); }                           \
  SD_EXPORT int host_run_##name(const sd::host::Launch* launch, const void* params,             \
                                sd::host::Report* report) {                                     \
    auto thread = [](const void* bytes) { name##_thread(*static_cast<const Params*>(bytes)); }; \
    return sd::host::run(launch, threads, thread, params, report);                              \
  }                                                                                             \
  static void name##_thread(const Params& p)

struct Index3 {
  u32 x, y, z;
};
inline Index3 index_from(const u32 (&v)[3]) { return {v[0], v[1], v[2]}; }
#define threadIdx index_from(sd::host::machine.current->index)
#define blockIdx index_from(sd::host::machine.block)
#define gridDim index_from(sd::host::machine.launch->grid)
#define blockDim (Index3{sd::host::machine.launch->threads, 1, 1})

// Not kept in a register across a switch: each use asks the machine again.
inline u8* shared_memory() {
  // 16-aligned, as on a device.
  return sd::host::machine.shared.data();
}

template <class T>
inline T bits_as(const void* from) {
  T value;
  memcpy(&value, from, sizeof(T));
  return value;
}

template <Traffic kind, class T>
inline T load_global(const T* p) {
  sd::host::check_global(p, sizeof(T));
  sd::host::machine.report->read[static_cast<int>(kind)] += sizeof(T);
  return *p;
}

template <Traffic kind, class T>
inline void store_global(T* p, T value) {
  sd::host::check_global(p, sizeof(T));
  sd::host::machine.report->written[static_cast<int>(kind)] += sizeof(T);
  *p = value;
}

// Done now or at the latest moment that copy_async_wait allows, at random: both happen on a GPU.
template <Traffic kind>
SD_ONE_COPY void copy_async_16(void* to_shared, const void* from, bool valid) {
  auto& m = sd::host::machine;
  sd::host::check_shared(to_shared, 16);
  if (valid) {
    sd::host::check_global(from, 16);
    m.report->read[static_cast<int>(kind)] += 16;
  }
  const sd::host::Copy copy{to_shared, valid ? from : nullptr, m.current->group};
  if (m.random.next() & 1) {
    sd::host::copy_now(copy);
  } else {
    m.current->copies.push_back(copy);
  }
}

inline void copy_async_commit() { ++sd::host::machine.current->group; }

template <int groups>
inline void copy_async_wait() {
  auto& self = *sd::host::machine.current;
  sd::host::run_pending(self, self.group - 1 - groups);
}

inline void __syncthreads() { sd::host::barrier(); }
inline void __threadfence() {}

struct Nothing {};
inline void meet_lanes(u8 (*)[64], u8 (*)[64]) {}
inline void __syncwarp() { sd::host::collective<Nothing, Nothing>({}, meet_lanes); }

template <class T>
struct LaneValue {
  T value;
  int lane;
};
template <class T>
inline void take_from_lanes(u8 (*in)[64], u8 (*out)[64]) {
  for (int lane = 0; lane < 32; ++lane) {
    memcpy(out[lane], in[bits_as<LaneValue<T>>(in[lane]).lane & 31], sizeof(T));
  }
}
template <class T>
SD_ONE_COPY T lane_value(T x, int lane) {
  return sd::host::collective<LaneValue<T>, T>({x, lane}, take_from_lanes<T>);
}
inline float shuffle(float x, int lane) { return lane_value(x, lane); }
inline u32 shuffle(u32 x, int lane) { return lane_value(x, lane); }
inline float shuffle_xor(float x, int mask) {
  return lane_value(x, sd::host::machine.current->lane ^ mask);
}
inline u32 shuffle_xor(u32 x, int mask) {
  return lane_value(x, sd::host::machine.current->lane ^ mask);
}

inline void ballot_lanes(u8 (*in)[64], u8 (*out)[64]) {
  u32 bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= u32{in[lane][0] != 0} << lane;
  for (int lane = 0; lane < 32; ++lane) memcpy(out[lane], &bits, sizeof bits);
}
SD_ONE_COPY u32 warp_ballot(bool holds) {
  return sd::host::collective<bool, u32>(holds, ballot_lanes);
}

template <class T>
inline T atomicAdd(T* p, T value) {
  const T before = *p;
  *p = before + value;
  return before;
}
template <class T>
inline T atomicMax(T* p, T value) {
  const T before = *p;
  *p = before > value ? before : value;
  return before;
}
template <class T>
inline T atomicOr(T* p, T value) {
  const T before = *p;
  *p = before | value;
  return before;
}

inline float float_from_bits(u32 bits) { return bits_as<float>(&bits); }
inline u32 bits_from_float(float x) { return bits_as<u32>(&x); }
inline int count_bits(u32 x) { return __builtin_popcount(x); }

inline float float_from_half_bits(u32 h) {
  const u32 sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return float_from_bits(sign | ((magnitude << 13) + 0x38000000u));
  const float small = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -small : small;
}

// Round to nearest, ties to even.
inline u16 half_bits_from_float(float x) {
  const u32 bits = bits_from_float(x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<u16>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    const float scaled = float_from_bits(magnitude) * 0x1p24f;
    return sign | static_cast<u16>(__builtin_nearbyintf(scaled));
  }
  const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<u16>((rounded - 0x38000000u) >> 13);
}

#if defined(__F16C__)
// As immintrin.h spells them; the header itself would double the time of a compilation.
using Eight16 = short __attribute__((vector_size(16)));
using Four32 = float __attribute__((vector_size(16)));
#endif

inline float float_from_half(half_t h) {
#if defined(__F16C__)
  return __builtin_ia32_vcvtph2ps(Eight16{static_cast<i16>(h.bits)})[0];
#else
  return float_from_half_bits(h.bits);
#endif
}
inline half_t half_from_float(float x) {
#if defined(__F16C__)
  return {static_cast<u16>(__builtin_ia32_vcvtps2ph(Four32{x}, 0)[0])};
#else
  return {half_bits_from_float(x)};
#endif
}
inline float low_half(u32 x) { return float_from_half({static_cast<u16>(x)}); }
inline float high_half(u32 x) { return float_from_half({static_cast<u16>(x >> 16)}); }
inline u32 pack_half2(float low, float high) {
  return half_from_float(low).bits | static_cast<u32>(half_from_float(high).bits) << 16;
}
// fp32 holds products and sums of two halves closely enough that one more rounding is right.
inline u32 half2_mul(u32 a, u32 b) {
  return pack_half2(low_half(a) * low_half(b), high_half(a) * high_half(b));
}
inline u32 half2_sub(u32 a, u32 b) {
  return pack_half2(low_half(a) - low_half(b), high_half(a) - high_half(b));
}
inline float fma_half(float a, float b, float c) {
  // fp64 is exact for the product and rounds the sum far below fp16's last place.
  return static_cast<float>(static_cast<double>(a) * b + c);
}
inline u32 half2_fma(u32 a, u32 b, u32 c) {
  return pack_half2(fma_half(low_half(a), low_half(b), low_half(c)),
                    fma_half(high_half(a), high_half(b), high_half(c)));
}

inline u32 byte_permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<u32>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}

inline float exp2_fast(float x) { return __builtin_exp2f(x); }
inline float log2_fast(float x) { return __builtin_log2f(x); }
inline float divide_exact(float a, float b) { return a / b; }
inline float multiply_exact(float a, float b) { return a * b; }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float round_even(float x) { return __builtin_nearbyintf(x); }
inline float square_root(float x) { return __builtin_sqrtf(x); }

struct RowAddress {
  const void* row;
};
template <int matrices, bool transposed>
inline void load_rows(u8 (*in)[64], u8 (*out)[64]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < matrices; ++m) {
      u16 pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = transposed ? 2 * (lane % 4) + i : lane / 4;
        const int column = transposed ? lane / 4 : 2 * (lane % 4) + i;
        const auto* bytes = static_cast<const u8*>(bits_as<RowAddress>(in[8 * m + row]).row);
        memcpy(&pair[i], bytes + 2 * column, 2);
      }
      memcpy(out[lane] + 4 * m, pair, 4);
    }
  }
}
template <int matrices, bool transposed>
SD_ONE_COPY void load_matrices(u32 (&r)[matrices], const void* row) {
  struct Words {
    u32 word[matrices];
  };
  // The device reads an address from every lane of the first 8 * matrices.
  if (sd::host::machine.current->lane < 8 * matrices) sd::host::check_shared(row, 16);
  const auto words =
      sd::host::collective<RowAddress, Words>({row}, load_rows<matrices, transposed>);
  for (int i = 0; i < matrices; ++i) r[i] = words.word[i];
}
inline void load_matrix_x4(u32 (&r)[4], const void* row) { load_matrices<4, false>(r, row); }
inline void load_matrix_x4_trans(u32 (&r)[4], const void* row) { load_matrices<4, true>(r, row); }
inline void load_matrix_x2(u32 (&r)[2], const void* row) { load_matrices<2, false>(r, row); }
inline void load_matrix_x2_trans(u32 (&r)[2], const void* row) { load_matrices<2, true>(r, row); }

struct Fragments {
  float c[4];
  u32 a[4], b[2];
};
inline void multiply_fragments(u8 (*in)[64], u8 (*out)[64]) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto f = bits_as<Fragments>(in[lane]);
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i & 1), k = t + 8 * (i >> 1);
      a[row][k] = low_half(f.a[i]), a[row][k + 1] = high_half(f.a[i]);
      c[g + 8 * (i >> 1)][t + (i & 1)] = f.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[t + 8 * i][g] = low_half(f.b[i]), b[t + 8 * i + 1][g] = high_half(f.b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) c[row][n] += a[row][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = 2 * (lane % 4);
    const float own[4] = {c[g][t], c[g][t + 1], c[g + 8][t], c[g + 8][t + 1]};
    memcpy(out[lane], own, sizeof own);
  }
}
SD_ONE_COPY void mma_16816(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  struct Sums {
    float c[4];
  };
  Fragments f;
  memcpy(f.c, c, sizeof f.c), memcpy(f.a, a, sizeof f.a), memcpy(f.b, b, sizeof f.b);
  const auto sums = sd::host::collective<Fragments, Sums>(f, multiply_fragments);
  memcpy(c, sums.c, sizeof sums.c);
}
