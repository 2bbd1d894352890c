// What the library exports: TensorRT's entry points, and a description of itself.
#include <cstring>

#include "attention_plugin.hpp"
#include "delta_plugin.hpp"
#include "kernels.hpp"
#include "matmul_plugin.hpp"

#define SELFDRAFT_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

selfdraft::Creator<selfdraft::CachedAttention> attention_creator;
selfdraft::Creator<selfdraft::GatedDeltaRule> delta_creator;
selfdraft::Creator<selfdraft::Int4MatMul> matmul_creator;
nvinfer1::IPluginCreatorInterface* const creators[] = {&attention_creator, &delta_creator,
                                                       &matmul_creator};

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string describe() {
  std::string cubins;
  for (int i = 0; i < selfdraft::num_cubins; ++i) {
    const selfdraft::Cubin& cubin = selfdraft::cubins[i];
    cubins += std::string(i ? ", " : "") + "{\"source\": " + quoted(cubin.source) +
              ", \"arch\": \"sm_" + std::to_string(cubin.architecture) +
              "\", \"cuda\": " + std::to_string(cubin.cuda) +
              ", \"bytes\": " + std::to_string(cubin.bytes) + "}";
  }
  return "{\"tensorrt_headers\": [" + std::to_string(NV_TENSORRT_MAJOR) + ", " +
         std::to_string(NV_TENSORRT_MINOR) + "], \"cubins\": [" + cubins + "]}";
}

}  // namespace

// TensorRT calls these two after IPluginRegistry::loadLibrary.
SELFDRAFT_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
  count = sizeof(creators) / sizeof(creators[0]);
  return creators;
}

SELFDRAFT_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  selfdraft::set_logger_finder(finder);
}

// JSON: TensorRT's headers it was compiled with, and every embedded cubin.
SELFDRAFT_EXPORT const char* selfdraft_describe() {
  static const std::string text = describe();
  return text.c_str();
}

// The last refusal of this thread.
SELFDRAFT_EXPORT const char* selfdraft_last_report() { return selfdraft::last_report().c_str(); }
