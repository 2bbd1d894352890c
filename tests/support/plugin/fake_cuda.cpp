// A CUDA driver for tests: a cubin holds the path of a host library, a launch runs its kernel at once.
// Calls are logged, one a line; a stream is nothing.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

namespace {

// Mirrors of trt_plugins/host/csrc/machine.hpp; plugin_probe.py defines TRAFFIC_KINDS.
struct Range {
  std::uint64_t begin, end;
};
struct Launch {
  std::uint32_t grid[3];
  std::uint32_t threads;
  std::uint64_t shared_bytes, seed, num_ranges;
  const Range* ranges;
};
struct Report {
  std::uint64_t read[TRAFFIC_KINDS], written[TRAFFIC_KINDS], switches;
  char problem[256];
};
using Run = int (*)(const Launch*, const void*, Report*);

struct Kernel {
  std::string name;
  Run run;
  unsigned allowed_shared = 48 * 1024;
};

constexpr int invalid_value = 1, not_found = 500, launch_failed = 719;
std::string log_text, problem;
int driver_version = 12060, architecture = 87, runs = 1;

void note(const std::string& line) { log_text += line + "\n"; }

}  // namespace

extern "C" {

const char* fake_log() { return log_text.c_str(); }
void fake_reset(int version, int arch, int run_kernels) {
  log_text.clear();
  driver_version = version;
  architecture = arch;
  runs = run_kernels;
}

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = driver_version, 0; }
// What was loaded on one kind of device is not there on another.
int cuCtxGetCurrent(void** context) {
  static std::map<std::tuple<int, int, int>, char> contexts;
  *context = &contexts[{driver_version, architecture, runs}];
  return 0;
}
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? architecture / 10 : architecture % 10;
  return 0;
}
int cuGetErrorString(int, const char** text) { return *text = problem.c_str(), 0; }

int cuModuleLoadData(void** module, const void* image) {
  const auto* path = static_cast<const char*>(image);
  note(std::string("load ") + path);
  *module = runs ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : const_cast<void*>(image);
  problem = *module ? "" : dlerror();
  return *module ? 0 : not_found;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::string symbol = std::string("host_run_") + name;
  const Run run = runs ? reinterpret_cast<Run>(dlsym(module, symbol.c_str())) : nullptr;
  problem = "named symbol not found";
  if (runs && !run) return not_found;
  *function = new Kernel{name, run};
  return 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  problem = "invalid argument";
  if (attribute != 8 || value > 163 * 1024) return invalid_value;
  auto* kernel = static_cast<Kernel*>(function);
  if (static_cast<unsigned>(value) > kernel->allowed_shared) kernel->allowed_shared = value;
  return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, void*, void** parameters, void**) {
  auto* kernel = static_cast<Kernel*>(function);
  char line[256];
  std::snprintf(line, sizeof line, "launch %s %u %u %u %u %u", kernel->name.c_str(), x, y, z,
                threads, shared_bytes);
  note(line);
  problem = "invalid argument";
  if (shared_bytes > kernel->allowed_shared) return invalid_value;
  if (!runs) return 0;
  const Range everything{0, ~std::uint64_t{0}};
  const Launch launch{{x, y, z}, threads, shared_bytes, 1, 1, &everything};
  Report report{};
  const int status = kernel->run(&launch, parameters[0], &report);
  problem = report.problem;
  return status ? launch_failed : 0;
}

int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t bytes, void*) {
  note("clear " + std::to_string(bytes));
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return 0;
}

}  // extern "C"
