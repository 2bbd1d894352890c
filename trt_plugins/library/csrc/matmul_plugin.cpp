#include "matmul_plugin.hpp"

#include <algorithm>

namespace selfdraft {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

const char* const source = "int4_matmul";
constexpr int strip_outputs = 64, chunk_inputs = 64, slices = 8;
constexpr int chunk_bytes = strip_outputs * chunk_inputs / 2;
constexpr int few_rows[] = {8, 16, 32};
constexpr int many_rows = 64, few_threads = 32 * slices, many_threads = 128;
constexpr int few_shared_bytes = slices * 8 * (strip_outputs + 4) * 4;
constexpr int stages = 3;
constexpr int stage_bytes = many_rows * chunk_inputs * 2 + chunk_bytes + 2 * strip_outputs * 2;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<PluginField> Int4MatMul::fields() {
  std::vector<PluginField> found;
  for (const char* name : {"in_features", "out_features", "group_size"}) {
    found.emplace_back(name, nullptr, PluginFieldType::kINT32, 1);
  }
  return found;
}

Int4MatMul::Int4MatMul(const Fields& given, TensorRTPhase phase)
    : Plugin(phase),
      in_features_(given.integer("in_features")),
      out_features_(given.integer("out_features")),
      group_size_(given.integer("group_size")) {
  const std::string group = std::to_string(group_size_);
  require(group_size_ == 32 || group_size_ == 64 || group_size_ == 128, name, "group_size", group,
          "32, 64 or 128");
  require(out_features_ >= 1, name, "out_features", std::to_string(out_features_), "at least 1");
  require(in_features_ >= 1 && in_features_ % group_size_ == 0, name, "in_features",
          std::to_string(in_features_), "a multiple of group_size " + group);
}

void Int4MatMul::add_fields(FieldList& fields) const {
  fields.add("in_features", in_features_);
  fields.add("out_features", out_features_);
  fields.add("group_size", group_size_);
}

int Int4MatMul::strips() const {
  return static_cast<int>(ceil_div(out_features_, strip_outputs));
}

int Int4MatMul::chunks() const {
  const int step = std::max(group_size_ / chunk_inputs, 1);
  return static_cast<int>(ceil_div(in_features_, chunk_inputs * step)) * step;
}

std::vector<TensorForm> Int4MatMul::inputs() const {
  const std::int64_t groups = chunks() * chunk_inputs / group_size_;
  return {{"x", DataType::kHALF, {in_features_}, true},
          {"weight", DataType::kINT8, {strips(), chunks(), chunk_bytes}},
          {"scale", DataType::kHALF, {strips(), groups, strip_outputs}}};
}

std::vector<TensorForm> Int4MatMul::outputs() const {
  return {{"y", DataType::kHALF, {out_features_}, true}};
}

KernelLaunch Int4MatMul::launch_for(std::int64_t rows) const {
  const std::string kernel = "int4_matmul_g" + std::to_string(group_size_) + "_";
  for (const int block : few_rows) {
    if (rows > block) continue;
    return {source, kernel + "r" + std::to_string(block), {1, unsigned(strips()), 1}, few_threads,
            few_shared_bytes};
  }
  return {source, kernel + "many", {unsigned(ceil_div(rows, many_rows)), unsigned(strips()), 1},
          many_threads, stages * stage_bytes};
}

void Int4MatMul::prepare() const {
  for (const int rows : {8, 16, 32, 64}) {
    const KernelLaunch launch = launch_for(rows);
    kernel_function(launch.source, launch.kernel, launch.shared_bytes);
  }
}

void Int4MatMul::run(const PluginTensorDesc* inputs, const void* const* input_data,
                     void* const* output_data, void*, cudaStream_t stream) const {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < inputs[0].dims.nbDims; ++i) rows *= inputs[0].dims.d[i];
  if (rows == 0) return;
  MatMulParams p{input_data[0], input_data[1],  input_data[2],   output_data[0],
                 rows,          in_features_, out_features_, chunks()};
  launch_kernel(launch_for(rows), &p, stream);
}

int Int4MatMul::getOutputShapes(const DimsExprs* inputs, int num_inputs, const DimsExprs*, int,
                                DimsExprs* outputs, int num_outputs,
                                nvinfer1::IExprBuilder& build) noexcept {
  return guarded(failed, [&] {
    check_count(name, "inputs", num_inputs, 3);
    check_count(name, "outputs", num_outputs, 1);
    outputs[0] = inputs[0];
    outputs[0].d[inputs[0].nbDims - 1] = build.constant(out_features_);
    return succeeded;
  });
}

}  // namespace selfdraft
