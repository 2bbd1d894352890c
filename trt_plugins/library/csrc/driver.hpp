// The CUDA driver, opened at run time: the library loads where there is no CUDA at all.
// Functions and numbers: CUDA Driver API reference.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda_runtime_api.h"

namespace selfdraft {

// Something that a caller of the plugin must hear of, in one line.
struct PluginError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Function = struct CUfunc_st*;
using Module = struct CUmod_st*;
using Context = struct CUctx_st*;

struct Grid {
  unsigned x, y, z;
};

class Driver {
 public:
  // Throws PluginError where libcuda.so.1 is missing or too old.
  static const Driver& get();

  int version() const;     // of the driver: 12060 for CUDA 12.6
  Context context() const; // the current one, null without
  int architecture() const;  // of the current device: 87 for sm_87
  Module load(const void* cubin) const;
  Function function(Module module, const char* name) const;
  // Lets `function` have that much dynamic shared memory.
  void allow_shared(Function function, unsigned bytes) const;
  // One parameter block by value; asynchronous, may be captured into a graph.
  void launch(Function function, Grid grid, unsigned threads, unsigned shared_bytes,
              cudaStream_t stream, void* params) const;
  void clear(void* address, std::size_t bytes, cudaStream_t stream) const;

 private:
  Driver();
  void check(int status, const char* call) const;

  int (*init_)(unsigned);
  int (*driver_version_)(int*);
  int (*current_context_)(Context*);
  int (*current_device_)(int*);
  int (*device_attribute_)(int*, int, int);
  int (*load_)(Module*, const void*);
  int (*function_)(Function*, Module, const char*);
  int (*function_attribute_)(Function, int, int);
  int (*launch_)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 cudaStream_t, void**, void**);
  int (*clear_)(std::uint64_t, unsigned char, std::size_t, cudaStream_t);
  int (*error_text_)(int, const char**);
};

}  // namespace selfdraft
