#include "kernels.hpp"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace selfdraft {
namespace {

// The newest code that the device and its driver take: a driver runs what older toolkits compiled.
const Cubin& cubin_for(const char* source, int architecture, int driver_version) {
  const Cubin* best = nullptr;
  bool known = false;
  for (int i = 0; i < num_cubins; ++i) {
    const Cubin& cubin = cubins[i];
    if (std::string(cubin.source) != source || cubin.architecture != architecture) continue;
    known = true;
    if (cubin.cuda <= driver_version && (!best || cubin.cuda > best->cuda)) best = &cubin;
  }
  if (best) return *best;
  const std::string arch = "sm_" + std::to_string(architecture);
  if (!known) throw PluginError(std::string("no code of ") + source + " for " + arch);
  throw PluginError(std::string("the code of ") + source + " for " + arch +
                    " needs a newer CUDA than the driver's " + std::to_string(driver_version));
}

struct Loaded {
  std::map<std::pair<Context, std::string>, Module> modules;
  std::map<std::pair<Context, std::string>, std::pair<Function, unsigned>> functions;
  std::mutex lock;
};

}  // namespace

Function kernel_function(const char* source, const std::string& kernel, unsigned shared_bytes) {
  static Loaded loaded;
  const Driver& driver = Driver::get();
  const Context context = driver.context();
  if (!context) throw PluginError("there is no current CUDA context");
  const std::lock_guard<std::mutex> guard(loaded.lock);
  auto found = loaded.functions.find({context, kernel});
  if (found == loaded.functions.end()) {
    auto module = loaded.modules.find({context, source});
    if (module == loaded.modules.end()) {
      const Cubin& cubin = cubin_for(source, driver.architecture(), driver.version());
      const Module fresh = driver.load(cubin.data);
      module = loaded.modules.emplace(std::make_pair(context, source), fresh).first;
    }
    const Function function = driver.function(module->second, kernel.c_str());
    found = loaded.functions.emplace(std::make_pair(context, kernel), std::make_pair(function, 0u))
                .first;
  }
  auto& [function, allowed] = found->second;
  if (shared_bytes > allowed) {
    driver.allow_shared(function, shared_bytes);
    allowed = shared_bytes;
  }
  return function;
}

void launch_kernel(const KernelLaunch& launch, void* params, cudaStream_t stream) {
  const Function function = kernel_function(launch.source, launch.kernel, launch.shared_bytes);
  Driver::get().launch(function, launch.grid, launch.threads, launch.shared_bytes, stream, params);
}

}  // namespace selfdraft
