#include "attention_plugin.hpp"

#include <cmath>

namespace selfdraft {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

constexpr int first_state = 3;  // after q, k, v; outputs: after y
constexpr int block_tokens = 64;
const int head_dims[] = {64, 128, 256};

std::string text(int value) { return std::to_string(value); }

void check_attributes(const AttentionAttributes& op) {
  const char* own = CachedAttention::name;
  const auto at_least = [&](const char* name, int value, int least) {
    require(value >= least, own, name, text(value), "at least " + text(least));
  };
  at_least("num_kv_heads", op.num_kv_heads, 1);
  at_least("num_heads", op.num_heads, 1);
  require(op.num_heads % op.num_kv_heads == 0 && op.group() <= max_group, own, "num_heads",
          text(op.num_heads), "1 to 16 times num_kv_heads " + text(op.num_kv_heads));
  bool known = false;
  for (const int d : head_dims) known |= op.head_dim == d;
  require(known, own, "head_dim", text(op.head_dim), "64, 128 or 256");
  require(op.block == block_tokens, own, "block", text(op.block), "64");
  require(op.selector_code() >= 0, own, "selector", op.selector,
          "all, window, mean_std, min_max or infllm_v2");
  require(op.kv_dtype == "fp16" || op.is_int8(), own, "kv_dtype", op.kv_dtype, "fp16 or int8");
  require(std::isfinite(op.scale) && op.scale > 0, own, "scale", std::to_string(op.scale),
          "finite and above 0");
  require(std::isfinite(op.spread) && op.spread >= 0, own, "spread", std::to_string(op.spread),
          "finite and at least 0");
  require(op.budget_share >= 0 && op.budget_share < 1, own, "budget_share",
          std::to_string(op.budget_share), "in [0, 1)");
  at_least("sinks", op.sinks, 0);
  at_least("budget_tokens", op.budget_tokens, 0);
  at_least("sliding_window", op.sliding_window, 0);
  at_least("local_blocks", op.local_blocks, op.selector == "infllm_v2" ? 3 : 2);
  require(op.alias_states == 0 || op.alias_states == 1, own, "alias_states", text(op.alias_states),
          "0 or 1");
}

}  // namespace

std::vector<PluginField> CachedAttention::fields() {
  std::vector<PluginField> found;
  for (const char* name : {"num_heads", "num_kv_heads", "head_dim", "block", "sinks",
                           "local_blocks", "budget_tokens", "sliding_window", "alias_states"}) {
    found.emplace_back(name, nullptr, PluginFieldType::kINT32, 1);
  }
  for (const char* name : {"scale", "budget_share", "spread"}) {
    found.emplace_back(name, nullptr, PluginFieldType::kFLOAT32, 1);
  }
  for (const char* name : {"selector", "kv_dtype"}) {
    found.emplace_back(name, nullptr, PluginFieldType::kCHAR, 1);
  }
  return found;
}

CachedAttention::CachedAttention(const Fields& given, TensorRTPhase phase) : Plugin(phase) {
  op_.num_heads = given.integer("num_heads");
  op_.num_kv_heads = given.integer("num_kv_heads");
  op_.head_dim = given.integer("head_dim");
  op_.block = given.integer("block");
  op_.sinks = given.integer("sinks");
  op_.local_blocks = given.integer("local_blocks");
  op_.budget_tokens = given.integer("budget_tokens");
  op_.sliding_window = given.integer("sliding_window");
  op_.alias_states = given.integer_or("alias_states", 0);
  op_.scale = given.real("scale");
  op_.budget_share = given.real("budget_share");
  op_.spread = given.real("spread");
  op_.selector = given.text("selector");
  op_.kv_dtype = given.text("kv_dtype");
  check_attributes(op_);
}

void CachedAttention::add_fields(FieldList& fields) const {
  fields.add("num_heads", op_.num_heads);
  fields.add("num_kv_heads", op_.num_kv_heads);
  fields.add("head_dim", op_.head_dim);
  fields.add("block", op_.block);
  fields.add("sinks", op_.sinks);
  fields.add("local_blocks", op_.local_blocks);
  fields.add("budget_tokens", op_.budget_tokens);
  fields.add("sliding_window", op_.sliding_window);
  fields.add("alias_states", op_.alias_states);
  fields.add("scale", op_.scale);
  fields.add("budget_share", op_.budget_share);
  fields.add("spread", op_.spread);
  fields.add("selector", op_.selector);
  fields.add("kv_dtype", op_.kv_dtype);
}

int CachedAttention::num_states() const {
  return 2 + (op_.is_int8() ? 2 : 0) + (op_.summary_vectors() ? 1 : 0);
}

std::vector<TensorForm> CachedAttention::inputs() const {
  const std::int64_t heads = op_.num_heads, kv = op_.num_kv_heads, d = op_.head_dim;
  const DataType cache = op_.is_int8() ? DataType::kINT8 : DataType::kHALF;
  std::vector<TensorForm> found{
      {"q", DataType::kHALF, {any_size, any_size, heads * d}},
      {"k", DataType::kHALF, {any_size, any_size, kv * d}},
      {"v", DataType::kHALF, {any_size, any_size, kv * d}},
      {"k_cache", cache, {any_size, any_size, kv, block_tokens, d}},
      {"v_cache", cache, {any_size, any_size, kv, block_tokens, d}},
  };
  if (op_.is_int8()) {
    found.push_back({"k_scale", DataType::kHALF, {any_size, any_size, kv, block_tokens}});
    found.push_back({"v_scale", DataType::kHALF, {any_size, any_size, kv, block_tokens}});
  }
  if (const int vectors = op_.summary_vectors()) {
    found.push_back({"summary", DataType::kHALF, {any_size, kv, any_size, vectors, d}});
  }
  for (const char* name : {"past_len", "row_count", "attend_all"}) {
    found.push_back({name, DataType::kINT64, {any_size}});
  }
  return found;
}

std::vector<TensorForm> CachedAttention::outputs() const {
  const auto given = inputs();
  std::vector<TensorForm> found{{"y", DataType::kHALF, given[0].dims}};
  for (int i = 0; i < num_states(); ++i) found.push_back(given[first_state + i]);
  if (op_.selector != "all") found.push_back({"blocks_read", DataType::kINT64, {1}});
  return found;
}

void CachedAttention::check_shapes(const Dims* found) const {
  const auto wanted = inputs();
  const Dims& q = found[0];
  const Dims& cache = found[first_state];
  for (std::size_t i = 1; i < wanted.size(); ++i) {
    check_equal(name, "the batch of q", q.d[0], wanted[i].name, found[i].d[0]);
  }
  check_equal(name, "q's rows", q.d[1], "k", found[1].d[1]);
  check_equal(name, "q's rows", q.d[1], "v", found[2].d[1]);
  for (int i = 1; i < num_states(); ++i) {
    const bool is_summary = op_.summary_vectors() && i == num_states() - 1;
    const int axis = is_summary ? 2 : 1;  // of the blocks
    check_equal(name, "k_cache's blocks", cache.d[1], wanted[first_state + i].name,
                found[first_state + i].d[axis]);
  }
  if (q.d[0] < 0 || q.d[1] < 0 || cache.d[1] < 0) return;  // not known yet
  if (cache.d[1] >= max_blocks) {
    throw PluginError(std::string(name) + ": k_cache has " + std::to_string(cache.d[1]) +
                      " blocks, must be below " + text(max_blocks));
  }
  for (const KernelLaunch& launch : shape_of(found).launches()) {
    if (launch.shared_bytes > max_shared_bytes) {
      throw PluginError(std::string(name) + ": k_cache has " + std::to_string(cache.d[1]) +
                        " blocks, too many for the shared memory of " + launch.kernel);
    }
  }
}

StepShape CachedAttention::shape_of(const Dims* inputs) const {
  return StepShape(op_, static_cast<int>(inputs[0].d[0]), static_cast<int>(inputs[0].d[1]),
                   static_cast<int>(inputs[first_state].d[1]));
}

// The most of a prefill and of the largest step that is none.
std::size_t CachedAttention::workspace(const Dims* largest) const {
  const int batch = static_cast<int>(largest[0].d[0]), rows = static_cast<int>(largest[0].d[1]);
  const int blocks = static_cast<int>(largest[first_state].d[1]);
  const StepShape all(op_, batch, rows, blocks);
  const StepShape step(op_, batch, std::min(rows, max_step_rows), blocks);
  return std::max(all.workspace_bytes(), step.workspace_bytes());
}

// Loads every kernel of this node; shared memory is allowed when a step is known.
void CachedAttention::prepare() const {
  for (const int rows : {1, max_step_rows + 1}) {
    for (const KernelLaunch& launch : StepShape(op_, 1, rows, 1).launches()) {
      kernel_function(launch.source, launch.kernel, launch.shared_bytes);
    }
  }
}

void CachedAttention::run(const PluginTensorDesc* inputs, const void* const* input_data,
                          void* const* output_data, void* workspace, cudaStream_t stream) const {
  // The builder times plugins on lengths that mean nothing: kernels would write anywhere.
  if (phase_ == TensorRTPhase::kBUILD) return clear_outputs(inputs, output_data, stream);
  std::vector<Dims> dims;
  const auto forms = this->inputs();
  for (std::size_t i = 0; i < forms.size(); ++i) dims.push_back(inputs[i].dims);
  StepParams p{};
  p.q = input_data[0];
  p.k = input_data[1];
  p.v = input_data[2];
  for (int i = 0; i < num_states(); ++i) {
    if (input_data[first_state + i] == output_data[1 + i]) continue;
    throw PluginError(std::string(name) + ": " + forms[first_state + i].name +
                      " has two addresses, bind one buffer as input and output");
  }
  void* const* states = output_data + 1;
  p.k_cache = *states++;
  p.v_cache = *states++;
  if (op_.is_int8()) {
    p.k_scale = *states++;
    p.v_scale = *states++;
  }
  if (op_.summary_vectors()) p.summary = *states++;
  const int lengths = first_state + num_states();
  p.past_len = input_data[lengths];
  p.row_count = input_data[lengths + 1];
  p.attend_all = input_data[lengths + 2];
  p.y = output_data[0];
  p.blocks_read = op_.selector == "all" ? nullptr : *states;
  const StepShape shape = shape_of(dims.data());
  shape.fill(p, workspace);
  for (const KernelLaunch& launch : shape.launches()) launch_kernel(launch, &p, stream);
}

void CachedAttention::clear_outputs(const PluginTensorDesc* inputs, void* const* output_data,
                                    cudaStream_t stream) const {
  const Dims& q = inputs[0].dims;
  Driver::get().clear(output_data[0], std::size_t(q.d[0]) * q.d[1] * q.d[2] * 2, stream);
  if (op_.selector == "all") return;
  Driver::get().clear(output_data[1 + num_states()], sizeof(std::int64_t), stream);
}

int CachedAttention::getOutputShapes(const DimsExprs* inputs, int num_inputs, const DimsExprs*, int,
                                     DimsExprs* outputs, int num_outputs,
                                     nvinfer1::IExprBuilder& build) noexcept {
  return guarded(failed, [&] {
    const auto wanted = this->inputs();
    check_count(name, "inputs", num_inputs, wanted.size());
    check_count(name, "outputs", num_outputs, this->outputs().size());
    outputs[0] = inputs[0];
    for (int i = 0; i < num_states(); ++i) outputs[1 + i] = inputs[first_state + i];
    if (op_.selector != "all") {
      outputs[1 + num_states()].nbDims = 1;
      outputs[1 + num_states()].d[0] = build.constant(1);
    }
    return succeeded;
  });
}

int CachedAttention::getAliasedInput(int output) noexcept {
  const bool is_state = output >= 1 && output <= num_states();
  return op_.alias_states && is_state ? first_state + output - 1 : -1;
}

}  // namespace selfdraft
