#include "delta_plugin.hpp"

namespace selfdraft {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

constexpr int first_state = 4, num_states = 3;  // after x, beta, log_decay, conv_weight
const char* const sizes[] = {"num_key_heads", "num_value_heads", "key_dim", "value_dim", "taps"};

std::string text(int value) { return std::to_string(value); }

void check_attributes(const DeltaAttributes& op) {
  const char* own = GatedDeltaRule::name;
  const auto is_width = [&](const char* name, int value) {
    require(value == 64 || value == 128, own, name, text(value), "64 or 128");
  };
  require(op.num_key_heads >= 1, own, "num_key_heads", text(op.num_key_heads), "at least 1");
  require(op.num_value_heads >= 1 && op.num_value_heads % op.num_key_heads == 0, own,
          "num_value_heads", text(op.num_value_heads),
          "a multiple of num_key_heads " + text(op.num_key_heads));
  is_width("key_dim", op.key_dim);
  is_width("value_dim", op.value_dim);
  require(op.taps >= 2 && op.taps <= most_taps, own, "taps", text(op.taps), "2 to 8");
  require(op.row_dtype == "fp16", own, "row_dtype", op.row_dtype, "fp16");
  require(op.alias_states == 0 || op.alias_states == 1, own, "alias_states", text(op.alias_states),
          "0 or 1");
}

}  // namespace

std::vector<PluginField> GatedDeltaRule::fields() {
  std::vector<PluginField> found;
  for (const char* name : sizes) found.emplace_back(name, nullptr, PluginFieldType::kINT32, 1);
  found.emplace_back("alias_states", nullptr, PluginFieldType::kINT32, 1);
  found.emplace_back("row_dtype", nullptr, PluginFieldType::kCHAR, 1);
  return found;
}

GatedDeltaRule::GatedDeltaRule(const Fields& given, TensorRTPhase phase) : Plugin(phase) {
  op_.num_key_heads = given.integer("num_key_heads");
  op_.num_value_heads = given.integer("num_value_heads");
  op_.key_dim = given.integer("key_dim");
  op_.value_dim = given.integer("value_dim");
  op_.taps = given.integer("taps");
  op_.alias_states = given.integer_or("alias_states", 0);
  op_.row_dtype = given.text("row_dtype");
  check_attributes(op_);
}

void GatedDeltaRule::add_fields(FieldList& fields) const {
  fields.add("num_key_heads", op_.num_key_heads);
  fields.add("num_value_heads", op_.num_value_heads);
  fields.add("key_dim", op_.key_dim);
  fields.add("value_dim", op_.value_dim);
  fields.add("taps", op_.taps);
  fields.add("alias_states", op_.alias_states);
  fields.add("row_dtype", op_.row_dtype);
}

std::vector<TensorForm> GatedDeltaRule::inputs() const {
  const std::int64_t channels = op_.channels(), values = op_.num_value_heads;
  const std::int64_t logged = op_.taps - 1 + log_rows;
  return {{"x", DataType::kHALF, {any_size, any_size, channels}},
          {"beta", DataType::kFLOAT, {any_size, any_size, values}},
          {"log_decay", DataType::kFLOAT, {any_size, any_size, values}},
          {"conv_weight", DataType::kFLOAT, {channels, op_.taps}},
          {"recurrent", DataType::kFLOAT, {any_size, values, op_.key_dim, op_.value_dim}},
          {"conv_rows", DataType::kHALF, {any_size, logged, channels}},
          {"gate_rows", DataType::kFLOAT, {any_size, log_rows, 2 * values}},
          {"past_len", DataType::kINT64, {any_size}},
          {"row_count", DataType::kINT64, {any_size}},
          {"replay_rows", DataType::kINT64, {any_size}}};
}

std::vector<TensorForm> GatedDeltaRule::outputs() const {
  const auto given = inputs();
  std::vector<TensorForm> found{{"y", DataType::kFLOAT, {any_size, any_size, op_.value_size()}}};
  for (int i = 0; i < num_states; ++i) found.push_back(given[first_state + i]);
  return found;
}

void GatedDeltaRule::check_shapes(const Dims* found) const {
  const auto wanted = inputs();
  const Dims& x = found[0];
  for (std::size_t i = 1; i < wanted.size(); ++i) {
    if (wanted[i].dims[0] != any_size) continue;  // conv_weight has no slots
    check_equal(name, "the batch of x", x.d[0], wanted[i].name, found[i].d[0]);
  }
  check_equal(name, "x's rows", x.d[1], "beta", found[1].d[1]);
  check_equal(name, "x's rows", x.d[1], "log_decay", found[2].d[1]);
}

DeltaShape GatedDeltaRule::shape_of(const Dims& x) const {
  return DeltaShape(op_, static_cast<int>(x.d[0]), static_cast<int>(x.d[1]));
}

std::size_t GatedDeltaRule::workspace(const Dims* largest) const {
  return shape_of(largest[0]).workspace_bytes();
}

void GatedDeltaRule::prepare() const {
  for (const KernelLaunch& launch : DeltaShape(op_, 1, 1).launches()) {
    kernel_function(launch.source, launch.kernel, launch.shared_bytes);
  }
}

void GatedDeltaRule::run(const PluginTensorDesc* inputs, const void* const* input_data,
                         void* const* output_data, void* workspace, cudaStream_t stream) const {
  const Dims& x = inputs[0].dims;
  // The builder times plugins on lengths that mean nothing: kernels would read and write anywhere.
  if (phase_ == TensorRTPhase::kBUILD) {
    const std::size_t values = std::size_t(x.d[0]) * x.d[1] * op_.value_size();
    return Driver::get().clear(output_data[0], values * sizeof(float), stream);
  }
  const auto forms = this->inputs();
  for (int i = first_state; i < first_state + num_states; ++i) {
    if (input_data[i] == output_data[1 + i - first_state]) continue;
    throw PluginError(std::string(name) + ": " + forms[i].name +
                      " has two addresses, bind one buffer as input and output");
  }
  DeltaParams p{};
  p.x = input_data[0];
  p.beta = input_data[1];
  p.log_decay = input_data[2];
  p.conv_weight = input_data[3];
  p.y = output_data[0];
  p.recurrent = output_data[1];
  p.conv_rows = output_data[2];
  p.gate_rows = output_data[3];
  p.past_len = input_data[7];
  p.row_count = input_data[8];
  p.replay_rows = input_data[9];
  const DeltaShape shape = shape_of(x);
  shape.fill(p, workspace);
  for (const KernelLaunch& launch : shape.launches()) launch_kernel(launch, &p, stream);
}

int GatedDeltaRule::getOutputShapes(const DimsExprs* inputs, int num_inputs, const DimsExprs*, int,
                                    DimsExprs* outputs, int num_outputs,
                                    nvinfer1::IExprBuilder& build) noexcept {
  return guarded(failed, [&] {
    check_count(name, "inputs", num_inputs, this->inputs().size());
    check_count(name, "outputs", num_outputs, this->outputs().size());
    outputs[0] = inputs[0];
    outputs[0].d[2] = build.constant(op_.value_size());
    for (int i = 0; i < num_states; ++i) outputs[1 + i] = inputs[first_state + i];
    return succeeded;
  });
}

int GatedDeltaRule::getAliasedInput(int output) noexcept {
  const bool is_state = output >= 1 && output <= num_states;
  return op_.alias_states && is_state ? first_state + output - 1 : -1;
}

}  // namespace selfdraft
