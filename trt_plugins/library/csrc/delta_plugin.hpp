// selfdraft::GatedDeltaRule for TensorRT. Contract: docs/gated_delta.md; layouts: step.cuh.
#pragma once
#include "delta_launches.hpp"
#include "plugin.hpp"

namespace selfdraft {

class GatedDeltaRule : public Plugin<GatedDeltaRule> {
 public:
  static constexpr const char* name = "GatedDeltaRule";
  static std::vector<nvinfer1::PluginField> fields();

  GatedDeltaRule(const Fields& given, TensorRTPhase phase);

  std::vector<TensorForm> inputs() const;
  std::vector<TensorForm> outputs() const;
  void add_fields(FieldList& fields) const;
  void check_shapes(const Dims* inputs) const;
  std::size_t workspace(const Dims* largest) const;
  void prepare() const;
  void run(const PluginTensorDesc* inputs, const void* const* input_data, void* const* output_data,
           void* workspace, cudaStream_t stream) const;

  int getOutputShapes(const DimsExprs* inputs, int num_inputs, const DimsExprs*, int,
                      DimsExprs* outputs, int num_outputs,
                      nvinfer1::IExprBuilder& build) noexcept override;
  int getAliasedInput(int output) noexcept override;

 private:
  DeltaShape shape_of(const Dims& x) const;

  DeltaAttributes op_;
};

}  // namespace selfdraft
