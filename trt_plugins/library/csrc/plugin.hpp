// What the plugins share: TensorRT's V3 interfaces, their phases, and the names they go by.
#pragma once
#include <memory>

#include "NvInferRuntime.h"
#include "fields.hpp"
#include "log.hpp"
#include "tensors.hpp"

namespace selfdraft {

constexpr const char* plugin_namespace = "selfdraft";
constexpr const char* plugin_version = "1";
constexpr int succeeded = 0, failed = 1;

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;
using nvinfer1::TensorRTPhase;

// `Own` has `name`, `inputs()`, `outputs()` (forms), `add_fields`, `check_shapes`, `workspace`,
// `prepare` (load kernels) and `run`.
template <class Own>
class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuildV2,
               public nvinfer1::IPluginV3OneRuntime {
 public:
  explicit Plugin(TensorRTPhase phase) : phase_(phase) {}

  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override {
    switch (type) {
      case nvinfer1::PluginCapabilityType::kCORE:
        return static_cast<nvinfer1::IPluginV3OneCore*>(this);
      case nvinfer1::PluginCapabilityType::kBUILD:
        return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
      case nvinfer1::PluginCapabilityType::kRUNTIME:
        return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }

  nvinfer1::IPluginV3* clone() noexcept override {
    return guarded<nvinfer1::IPluginV3*>(nullptr, [&] { return new Own(own()); });
  }

  const char* getPluginName() const noexcept override { return Own::name; }
  const char* getPluginVersion() const noexcept override { return plugin_version; }
  const char* getPluginNamespace() const noexcept override { return plugin_namespace; }

  int getNbOutputs() const noexcept override { return static_cast<int>(own().outputs().size()); }

  int getOutputDataTypes(DataType* outputs, int num_outputs, const DataType* inputs,
                         int num_inputs) const noexcept override {
    return guarded(failed, [&] {
      check_counts(num_inputs, num_outputs);
      const auto wanted = own().inputs();
      for (int i = 0; i < num_inputs; ++i) check_type(Own::name, wanted[i], inputs[i]);
      const auto given = own().outputs();
      for (int i = 0; i < num_outputs; ++i) outputs[i] = given[i].type;
      return succeeded;
    });
  }

  bool supportsFormatCombination(int position, const DynamicPluginTensorDesc* tensors,
                                 int num_inputs, int num_outputs) noexcept override {
    return guarded(false, [&] {
      check_counts(num_inputs, num_outputs);
      const auto form = position < num_inputs ? own().inputs()[position]
                                              : own().outputs()[position - num_inputs];
      const PluginTensorDesc& found = tensors[position].desc;
      return found.type == form.type && found.format == nvinfer1::TensorFormat::kLINEAR;
    });
  }

  int configurePlugin(const DynamicPluginTensorDesc* inputs, int num_inputs,
                      const DynamicPluginTensorDesc*, int num_outputs) noexcept override {
    return guarded(failed, [&] {
      check_counts(num_inputs, num_outputs);
      for (const bool largest : {false, true}) {
        std::vector<PluginTensorDesc> bound;
        for (int i = 0; i < num_inputs; ++i) {
          bound.push_back(inputs[i].desc);
          bound.back().dims = largest ? inputs[i].max : inputs[i].min;
        }
        check_inputs(bound.data());
      }
      return succeeded;
    });
  }

  std::size_t getWorkspaceSize(const DynamicPluginTensorDesc* inputs, int num_inputs,
                               const DynamicPluginTensorDesc*, int) const noexcept override {
    return guarded<std::size_t>(0, [&] {
      std::vector<Dims> largest;
      for (int i = 0; i < num_inputs; ++i) largest.push_back(inputs[i].max);
      return own().workspace(largest.data());
    });
  }

  int onShapeChange(const PluginTensorDesc* inputs, int num_inputs, const PluginTensorDesc*,
                    int num_outputs) noexcept override {
    return guarded(failed, [&] {
      check_counts(num_inputs, num_outputs);
      check_inputs(inputs);
      return succeeded;
    });
  }

  int enqueue(const PluginTensorDesc* inputs, const PluginTensorDesc*,
              const void* const* input_data, void* const* output_data, void* workspace,
              cudaStream_t stream) noexcept override {
    return guarded(failed, [&] {
      own().run(inputs, input_data, output_data, workspace, stream);
      return succeeded;
    });
  }

  // Kernels are loaded here, since a stream may be captured when the first step runs.
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override {
    return guarded<nvinfer1::IPluginV3*>(nullptr, [&] {
      if (phase_ == TensorRTPhase::kRUNTIME) own().prepare();
      return new Own(own());
    });
  }

  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override {
    return guarded<const nvinfer1::PluginFieldCollection*>(nullptr, [&] {
      fields_ = std::make_shared<FieldList>();
      own().add_fields(*fields_);
      return fields_->collection();
    });
  }

 protected:
  TensorRTPhase phase_;

 private:
  Own& own() { return static_cast<Own&>(*this); }
  const Own& own() const { return static_cast<const Own&>(*this); }

  void check_counts(int num_inputs, int num_outputs) const {
    check_count(Own::name, "inputs", num_inputs, own().inputs().size());
    check_count(Own::name, "outputs", num_outputs, own().outputs().size());
  }

  void check_inputs(const PluginTensorDesc* found) const {
    const auto wanted = own().inputs();
    std::vector<Dims> dims;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      check_type(Own::name, wanted[i], found[i].type);
      check_dims(Own::name, wanted[i], found[i].dims);
      dims.push_back(found[i].dims);
    }
    own().check_shapes(dims.data());
  }

  std::shared_ptr<FieldList> fields_;
};

// `Own` has `name`, `fields` (names and types), and a constructor from fields and phase.
template <class Own>
class Creator : public nvinfer1::IPluginCreatorV3One {
 public:
  Creator() : fields_(Own::fields()) {
    names_.nbFields = static_cast<int>(fields_.size());
    names_.fields = fields_.data();
  }

  nvinfer1::IPluginV3* createPlugin(const char*, const nvinfer1::PluginFieldCollection* given,
                                    TensorRTPhase phase) noexcept override {
    return guarded<nvinfer1::IPluginV3*>(
        nullptr, [&] { return new Own(Fields(Own::name, given), phase); });
  }

  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &names_; }
  const char* getPluginName() const noexcept override { return Own::name; }
  const char* getPluginVersion() const noexcept override { return plugin_version; }
  const char* getPluginNamespace() const noexcept override { return plugin_namespace; }

 private:
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection names_{};
};

}  // namespace selfdraft
