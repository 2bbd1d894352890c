// Kernels that use every device wrapper once: the host layer is tested with them.
#include "../csrc/device.cuh"

struct TrialParams {
  const half_t* a;  // [16, 16]
  const half_t* b;  // [16, 8], row-major [k, n]
  float* c;         // [16, 8]
};

// c = a · b on the MMA unit, operands by cp.async and ldmatrix.
SD_KERNEL(trial_matmul, TrialParams, 64, 1) {
  auto* a = reinterpret_cast<half_t*>(shared_memory());
  auto* b = a + 16 * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp == 0) copy_async_16<Traffic::kv>(a + 8 * lane, p.a + 8 * lane, true);
  if (warp == 1 && lane < 16) copy_async_16<Traffic::kv>(b + 8 * lane, p.b + 8 * lane, true);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  if (warp == 0) {
    u32 fa[4], fb[2];
    float c[4] = {0, 0, 0, 0};
    load_matrix_x4(fa, a + lane % 16 * 16 + lane / 16 * 8);
    load_matrix_x2_trans(fb, b + lane % 16 * 8);
    mma_16816(c, fa, fb);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      store_global<Traffic::output>(p.c + row * 8 + column, c[i]);
    }
  }
}

struct SumParams {
  const float* x;  // [n]
  float* total;    // [1]
  int n;
};

// Σ x: strided partial sums, a butterfly in each warp, one more over the warps.
SD_KERNEL(trial_sum, SumParams, 128, 1) {
  auto* partial = reinterpret_cast<float*>(shared_memory());
  float sum = 0;
  for (int i = threadIdx.x; i < p.n; i += 128) sum += load_global<Traffic::rows>(p.x + i);
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    store_global<Traffic::output>(p.total, partial[0] + partial[1] + partial[2] + partial[3]);
  }
}

struct FusedParams {
  const float* x;  // [n, 3]
  float* y;        // [n]
  int n;
};

// y = x0 · x1 + x2, rounded once.
SD_KERNEL(trial_fused, FusedParams, 32, 1) {
  for (int i = threadIdx.x; i < p.n; i += 32) {
    const float* x = p.x + 3 * i;
    const float a = load_global<Traffic::rows>(x), b = load_global<Traffic::rows>(x + 1);
    const float sum = multiply_add(a, b, load_global<Traffic::rows>(x + 2));
    store_global<Traffic::output>(p.y + i, sum);
  }
}

struct HalvesParams {
  const float* x;       // [n]
  const u32* pairs;     // [n, 2]: operands of the half2 operations
  half_t* half;         // [n]
  float* back;          // [n]
  u32* product;         // [n]
  u32* difference;      // [n]
  u32* fused;           // [n]: a · b + a
  u32* permuted;        // [n]: bytes 0, 5, 2, 7
  u32* votes;           // [n / 32]
  u32* software;        // [n]: the conversion without hardware, where the host has its own
  int n;
};

SD_KERNEL(trial_halves, HalvesParams, 32, 1) {
  for (int i = threadIdx.x; i < p.n; i += 32) {
    const float x = load_global<Traffic::rows>(p.x + i);
    const half_t h = half_from_float(x);
    const u32 a = load_global<Traffic::rows>(p.pairs + 2 * i);
    const u32 b = load_global<Traffic::rows>(p.pairs + 2 * i + 1);
    store_global<Traffic::output>(p.half + i, h);
    store_global<Traffic::output>(p.back + i, float_from_half(h));
    store_global<Traffic::output>(p.product + i, half2_mul(a, b));
    store_global<Traffic::output>(p.difference + i, half2_sub(a, b));
    store_global<Traffic::output>(p.fused + i, half2_fma(a, b, a));
    store_global<Traffic::output>(p.permuted + i, byte_permute(a, b, 0x7250));
    const u32 vote = warp_ballot(x > 0);
    if (threadIdx.x == 0) store_global<Traffic::output>(p.votes + i / 32, vote);
#if defined(SELFDRAFT_HOST)
    const u32 bits = half_bits_from_float(x);
    const bool same = bits_from_float(float_from_half_bits(h.bits)) ==
                      bits_from_float(float_from_half(h));
    store_global<Traffic::output>(p.software + i, same || is_nan(x) ? bits : 0xffffffffu);
#endif
  }
}

struct FaultParams {
  float* x;  // [4]
  int fault;
};

// One fault for each number: what the host layer must notice.
SD_KERNEL(trial_fault, FaultParams, 64, 1) {
  const int lane = threadIdx.x % 32;
  auto* shared = reinterpret_cast<float*>(shared_memory());
  if (p.fault == 1 && threadIdx.x == 0) store_global<Traffic::output>(p.x + 4, 1.0f);
  if (p.fault == 2 && threadIdx.x == 0) {
    store_global<Traffic::output>(reinterpret_cast<u64*>(reinterpret_cast<u8*>(p.x) + 4), u64{1});
  }
  if (p.fault == 3 && threadIdx.x < 32) __syncthreads();
  if (p.fault == 4) {
    if (lane < 16) {
      shuffle(1.0f, 0);
    } else {
      warp_ballot(true);
    }
  }
  if (p.fault == 5 && threadIdx.x == 5) shared[16] = 0;
  if (p.fault == 6 && lane == 0) copy_async_16<Traffic::kv>(shared, p.x, true);
  if (p.fault == 7 && lane < 31) __syncwarp();
  if (p.fault == 8) copy_async_16<Traffic::kv>(shared + 1, p.x, true);
  if (p.fault == 9 && threadIdx.x == 0) store_global<Traffic::output>(p.x, shared[3]);
}
