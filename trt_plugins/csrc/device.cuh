// What a kernel of this project may use of the machine: the only place with PTX.
// nvcc and NVRTC take the CUDA half below; g++ takes trt_plugins/host/csrc and executes the kernel.
// No standard headers (NVRTC has none). How to write a kernel: trt_plugins/host/README.md.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// IEEE binary16 as its bits: converted explicitly, computed with two at a time (half2_mul, half2_sub).
struct half_t {
  u16 bits;
};
struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};

// What a global access is for: the host layer counts bytes by it, a GPU ignores it.
enum class Traffic : int {
  kv,
  scale,
  summary,
  rows,
  logits,
  partial,
  list,
  output,
  weight,
  control,
  state,
  log
};

constexpr int traffic_kinds = 12;

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000);  // NVRTC lacks huge_val

#if defined(SELFDRAFT_HOST)
#include "../host/csrc/intrinsics.hpp"
#else
#define SD_DEVICE __device__ __forceinline__

// SD_KERNEL(name, Params, threads, CTAs per SM) { ... reads Params p ... }
#define SD_KERNEL(name, Params, threads, blocks_per_sm)                                        \
  extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name(const Params p)

extern __shared__ __align__(16) u8 sd_shared_bytes[];

// The CTA's dynamic shared memory; there is no other. Its size is given at launch.
SD_DEVICE u8* shared_memory() { return sd_shared_bytes; }

SD_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

template <Traffic kind, class T>
SD_DEVICE T load_global(const T* p) {
  return *p;
}

template <Traffic kind, class T>
SD_DEVICE void store_global(T* p, T value) {
  *p = value;
}

// 16 bytes from global to shared memory, in flight until copy_async_wait; zeros where not valid.
template <Traffic kind>
SD_DEVICE void copy_async_16(void* to_shared, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

SD_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `groups` committed groups of this thread are in flight.
template <int groups>
SD_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Four 8x8 matrices of 16-bit elements: lane l names the row of 16 bytes l % 8 of matrix l / 8.
SD_DEVICE void load_matrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

SD_DEVICE void load_matrix_x4_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

SD_DEVICE void load_matrix_x2(u32 (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

SD_DEVICE void load_matrix_x2_trans(u32 (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

// c [16x8] fp32 += a [16x16] · b [16x8], fp16; fragments as the PTX manual gives for m16n8k16.
SD_DEVICE void mma_16816(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

SD_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
SD_DEVICE u32 shuffle_xor(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
SD_DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
SD_DEVICE u32 shuffle(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
SD_DEVICE u32 warp_ballot(bool holds) { return __ballot_sync(0xffffffffu, holds); }

SD_DEVICE half_t half_from_float(float x) {
  half_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}

SD_DEVICE float float_from_half(half_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}

// Two fp16 in a register, `low` in the lower bits.
SD_DEVICE u32 pack_half2(float low, float high) {
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

SD_DEVICE u32 half2_mul(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

SD_DEVICE u32 half2_sub(u32 a, u32 b) {
  u32 r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

SD_DEVICE u32 half2_fma(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes b:a.
SD_DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

SD_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

SD_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// fp32 in exactly one rounding each, whatever the compiler's flags: what other bodies repeat.
SD_DEVICE float divide_exact(float a, float b) { return __fdiv_rn(a, b); }
SD_DEVICE float multiply_exact(float a, float b) { return __fmul_rn(a, b); }
// a * b + c, rounded once.
SD_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SD_DEVICE float round_even(float x) { return rintf(x); }
SD_DEVICE float square_root(float x) { return __fsqrt_rn(x); }

SD_DEVICE float float_from_bits(u32 bits) { return __uint_as_float(bits); }
SD_DEVICE u32 bits_from_float(float x) { return __float_as_uint(x); }
SD_DEVICE int count_bits(u32 x) { return __popc(x); }
#endif

template <class T>
SD_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

SD_DEVICE float largest(float a, float b) { return a > b ? a : b; }
SD_DEVICE bool is_nan(float x) { return (bits_from_float(x) & 0x7fffffffu) > 0x7f800000u; }
