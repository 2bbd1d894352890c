// selfdraft::Int4MatMul for TensorRT. Contract: int4_matmul/contract.py; layout: docs/kernels.md.
#pragma once
#include "kernels.hpp"
#include "plugin.hpp"

namespace selfdraft {

// struct Int4MatMulParams of int4_matmul/csrc/int4_matmul.cu.
struct MatMulParams {
  const void *x, *weight, *scale;
  void* y;
  std::int64_t rows;
  int in_features, out_features, chunks;
};

class Int4MatMul : public Plugin<Int4MatMul> {
 public:
  static constexpr const char* name = "Int4MatMul";
  static std::vector<nvinfer1::PluginField> fields();

  Int4MatMul(const Fields& given, TensorRTPhase phase);

  std::vector<TensorForm> inputs() const;
  std::vector<TensorForm> outputs() const;
  void add_fields(FieldList& fields) const;
  void check_shapes(const Dims*) const {}
  std::size_t workspace(const Dims*) const { return 0; }
  void prepare() const;
  void run(const PluginTensorDesc* inputs, const void* const* input_data, void* const* output_data,
           void* workspace, cudaStream_t stream) const;
  KernelLaunch launch_for(std::int64_t rows) const;

  int getOutputShapes(const DimsExprs* inputs, int num_inputs, const DimsExprs*, int,
                      DimsExprs* outputs, int num_outputs,
                      nvinfer1::IExprBuilder& build) noexcept override;

 private:
  int strips() const;
  int chunks() const;

  int in_features_, out_features_, group_size_;
};

}  // namespace selfdraft
