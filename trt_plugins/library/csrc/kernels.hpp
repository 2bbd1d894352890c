// The embedded kernels: machine code by source file, architecture and CUDA version.
#pragma once
#include <string>
#include <vector>

#include "driver.hpp"

namespace selfdraft {

struct Cubin {
  const char* source;  // "attend"
  int architecture;    // 87
  int cuda;            // version that compiled it: 12060
  const unsigned char* data;
  unsigned long long bytes;
};

// Generated with the library: every cubin it holds.
extern const Cubin cubins[];
extern const int num_cubins;

// The function `kernel` of `source` for the current context's device, with that much shared memory
// allowed. Loaded once for each context; not to be called first while a stream is captured.
// Throws PluginError where no embedded code runs on the device.
Function kernel_function(const char* source, const std::string& kernel, unsigned shared_bytes);

struct KernelLaunch {
  const char* source;
  std::string kernel;
  Grid grid;
  unsigned threads, shared_bytes;
};

// Launches with a parameter block, which is copied.
void launch_kernel(const KernelLaunch& launch, void* params, cudaStream_t stream);

}  // namespace selfdraft
