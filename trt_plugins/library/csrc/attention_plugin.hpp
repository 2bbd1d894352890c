// selfdraft::CachedAttention for TensorRT. Contract: docs/attention.md; layouts: step.cuh.
#pragma once
#include "attention_launches.hpp"
#include "plugin.hpp"

namespace selfdraft {

class CachedAttention : public Plugin<CachedAttention> {
 public:
  static constexpr const char* name = "CachedAttention";
  static std::vector<nvinfer1::PluginField> fields();

  CachedAttention(const Fields& given, TensorRTPhase phase);

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
  int num_states() const;
  StepShape shape_of(const Dims* inputs) const;
  void clear_outputs(const PluginTensorDesc* inputs, void* const* output_data,
                     cudaStream_t stream) const;

  AttentionAttributes op_;
};

}  // namespace selfdraft
