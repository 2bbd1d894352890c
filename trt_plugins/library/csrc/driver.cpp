#include "driver.hpp"

#include <dlfcn.h>

namespace selfdraft {
namespace {

#ifndef SELFDRAFT_CUDA_LIBRARY
#define SELFDRAFT_CUDA_LIBRARY "libcuda.so.1"  // tests name a driver of their own
#endif

constexpr const char* library_name = SELFDRAFT_CUDA_LIBRARY;
constexpr int attribute_major = 75, attribute_minor = 76;
constexpr int max_dynamic_shared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

template <class Pointer>
void find(void* library, const char* name, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  if (!pointer) throw PluginError(std::string(library_name) + " has no " + name);
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver;
  return driver;
}

Driver::Driver() {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw PluginError(std::string("there is no CUDA driver: ") + dlerror());
  find(library, "cuInit", init_);
  find(library, "cuDriverGetVersion", driver_version_);
  find(library, "cuCtxGetCurrent", current_context_);
  find(library, "cuCtxGetDevice", current_device_);
  find(library, "cuDeviceGetAttribute", device_attribute_);
  find(library, "cuModuleLoadData", load_);
  find(library, "cuModuleGetFunction", function_);
  find(library, "cuFuncSetAttribute", function_attribute_);
  find(library, "cuLaunchKernel", launch_);
  find(library, "cuMemsetD8Async", clear_);
  find(library, "cuGetErrorString", error_text_);
  check(init_(0), "cuInit");
}

int Driver::version() const {
  int version = 0;
  check(driver_version_(&version), "cuDriverGetVersion");
  return version;
}

Context Driver::context() const {
  Context context = nullptr;
  check(current_context_(&context), "cuCtxGetCurrent");
  return context;
}

int Driver::architecture() const {
  int device = 0, major = 0, minor = 0;
  check(current_device_(&device), "cuCtxGetDevice");
  check(device_attribute_(&major, attribute_major, device), "cuDeviceGetAttribute");
  check(device_attribute_(&minor, attribute_minor, device), "cuDeviceGetAttribute");
  return 10 * major + minor;
}

Module Driver::load(const void* cubin) const {
  Module module = nullptr;
  check(load_(&module, cubin), "cuModuleLoadData");
  return module;
}

Function Driver::function(Module module, const char* name) const {
  Function function = nullptr;
  check(function_(&function, module, name), name);
  return function;
}

void Driver::allow_shared(Function function, unsigned bytes) const {
  check(function_attribute_(function, max_dynamic_shared, static_cast<int>(bytes)),
        "cuFuncSetAttribute");
}

void Driver::launch(Function function, Grid grid, unsigned threads, unsigned shared_bytes,
                    cudaStream_t stream, void* params) const {
  void* parameters[] = {params};
  check(launch_(function, grid.x, grid.y, grid.z, threads, 1, 1, shared_bytes, stream, parameters,
                nullptr),
        "cuLaunchKernel");
}

void Driver::clear(void* address, std::size_t bytes, cudaStream_t stream) const {
  check(clear_(reinterpret_cast<std::uint64_t>(address), 0, bytes, stream), "cuMemsetD8Async");
}

void Driver::check(int status, const char* call) const {
  if (status == 0) return;
  const char* text = nullptr;
  error_text_(status, &text);
  throw PluginError(std::string(call) + ": " + (text ? text : "error " + std::to_string(status)));
}

}  // namespace selfdraft
