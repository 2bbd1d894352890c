// Calls the methods of a plugin library as TensorRT would, for ctypes: no TensorRT is in the process.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

using namespace nvinfer1;

namespace {

constexpr int max_rank = 8;

struct Tensor {  // mirrored in plugin_probe.py
  int type, format, rank, padding;
  std::int64_t dims[max_rank], min[max_rank], max[max_rank];
};

struct Field {
  const char* name;
  int type, length;
  const void* data;
};

using GetCreators = IPluginCreatorInterface* const* (*)(std::int32_t&);

struct Library {
  std::vector<IPluginCreatorV3One*> creators;
};

// A dimension with a value; TensorRT's own are symbolic.
class Number : public IDimensionExpr, public apiv::VDimensionExpr {
 public:
  explicit Number(std::int64_t value) : value_(value) { mImpl = this; }
  bool isConstant() const override { return true; }
  std::int64_t getConstantValue() const override { return value_; }
  bool isSizeTensor() const override { return false; }

 private:
  std::int64_t value_;
};

class Numbers : public IExprBuilder, public apiv::VExprBuilder {
 public:
  Numbers() { mImpl = this; }
  const IDimensionExpr* constant(std::int64_t value) override {
    made_.push_back(std::make_unique<Number>(value));
    return made_.back().get();
  }
  const IDimensionExpr* operation(DimensionOperation, const IDimensionExpr&,
                                  const IDimensionExpr&) override {
    return nullptr;  // no plugin of ours computes with sizes
  }
  const IDimensionExpr* declareSizeTensor(std::int32_t, const IDimensionExpr&,
                                          const IDimensionExpr&) override {
    return nullptr;
  }

 private:
  std::vector<std::unique_ptr<Number>> made_;
};

Dims dims_from(const std::int64_t (&sizes)[max_rank], int rank) {
  Dims dims{};
  dims.nbDims = rank;
  for (int i = 0; i < rank; ++i) dims.d[i] = sizes[i];
  return dims;
}

PluginTensorDesc described(const Tensor& tensor) {
  PluginTensorDesc desc{};
  desc.dims = dims_from(tensor.dims, tensor.rank);
  desc.type = static_cast<DataType>(tensor.type);
  desc.format = static_cast<TensorFormat>(tensor.format);
  return desc;
}

std::vector<DynamicPluginTensorDesc> ranges(const Tensor* tensors, int count) {
  std::vector<DynamicPluginTensorDesc> found;
  for (int i = 0; i < count; ++i) {
    DynamicPluginTensorDesc desc{};
    desc.desc = described(tensors[i]);
    desc.min = dims_from(tensors[i].min, tensors[i].rank);
    desc.max = dims_from(tensors[i].max, tensors[i].rank);
    found.push_back(desc);
  }
  return found;
}

std::vector<PluginTensorDesc> fixed(const Tensor* tensors, int count) {
  std::vector<PluginTensorDesc> found;
  for (int i = 0; i < count; ++i) found.push_back(described(tensors[i]));
  return found;
}

auto* build_of(IPluginV3* plugin) {
  return static_cast<IPluginV3OneBuildV2*>(
      plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
}

auto* runtime_of(IPluginV3* plugin) {
  return static_cast<IPluginV3OneRuntime*>(
      plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

IPluginCreatorV3One* creator_of(Library* library, const char* name) {
  for (auto* creator : library->creators) {
    if (std::string(creator->getPluginName()) == name) return creator;
  }
  return nullptr;
}

std::string listed(const PluginFieldCollection* fields, bool values) {
  std::string text = "[";
  for (int i = 0; i < fields->nbFields; ++i) {
    const PluginField& field = fields->fields[i];
    text += std::string(i ? ", " : "") + "[\"" + field.name + "\", " +
            std::to_string(static_cast<int>(field.type)) + ", " + std::to_string(field.length);
    if (values && field.type == PluginFieldType::kINT32) {
      text += ", " + std::to_string(*static_cast<const std::int32_t*>(field.data));
    } else if (values && field.type == PluginFieldType::kFLOAT32) {
      text += ", " + std::to_string(*static_cast<const float*>(field.data));
    } else if (values) {
      text += std::string(", \"") + static_cast<const char*>(field.data) + "\"";
    }
    text += "]";
  }
  return text + "]";
}

const char* kept(std::string text) {
  static thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

}  // namespace

extern "C" {

Library* probe_open(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  const auto get_creators = reinterpret_cast<GetCreators>(dlsym(handle, "getCreators"));
  if (!get_creators) return nullptr;
  auto* library = new Library;
  std::int32_t count = 0;
  IPluginCreatorInterface* const* creators = get_creators(count);
  for (int i = 0; i < count; ++i) {
    if (std::string(creators[i]->getInterfaceInfo().kind) != "PLUGIN CREATOR_V3ONE") return nullptr;
    library->creators.push_back(static_cast<IPluginCreatorV3One*>(creators[i]));
  }
  return library;
}

const char* probe_creators(Library* library) {
  std::string text = "[";
  for (auto* creator : library->creators) {
    text += std::string(text.size() > 1 ? ", " : "") + "{\"name\": \"" + creator->getPluginName() +
            "\", \"version\": \"" + creator->getPluginVersion() + "\", \"namespace\": \"" +
            creator->getPluginNamespace() +
            "\", \"fields\": " + listed(creator->getFieldNames(), false) + "}";
  }
  return kept(text + "]");
}

IPluginV3* probe_create(Library* library, const char* name, const Field* given, int count,
                        int phase) {
  std::vector<PluginField> fields;
  for (int i = 0; i < count; ++i) {
    fields.emplace_back(given[i].name, given[i].data, static_cast<PluginFieldType>(given[i].type),
                        given[i].length);
  }
  const PluginFieldCollection collection{count, fields.data()};
  return creator_of(library, name)
      ->createPlugin("layer", &collection, static_cast<TensorRTPhase>(phase));
}

// What a plan does: fields out of one plugin, into another.
IPluginV3* probe_round_trip(Library* library, IPluginV3* plugin) {
  const auto* core = static_cast<IPluginV3OneCore*>(
      plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  return creator_of(library, core->getPluginName())
      ->createPlugin("layer", runtime_of(plugin)->getFieldsToSerialize(), TensorRTPhase::kRUNTIME);
}

const char* probe_fields(IPluginV3* plugin) {
  return kept(listed(runtime_of(plugin)->getFieldsToSerialize(), true));
}

const char* probe_names(IPluginV3* plugin) {
  auto* core = static_cast<IPluginV3OneCore*>(
      plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  return kept(std::string(core->getPluginName()) + " " + core->getPluginVersion() + " " +
              core->getPluginNamespace() + " " + build_of(plugin)->getInterfaceInfo().kind + " " +
              std::to_string(build_of(plugin)->getInterfaceInfo().major));
}

IPluginV3* probe_clone(IPluginV3* plugin) { return plugin->clone(); }
IPluginV3* probe_attach(IPluginV3* plugin) { return runtime_of(plugin)->attachToContext(nullptr); }
void probe_destroy(IPluginV3* plugin) { delete plugin; }
int probe_num_outputs(IPluginV3* plugin) { return build_of(plugin)->getNbOutputs(); }
int probe_alias(IPluginV3* plugin, int output) { return build_of(plugin)->getAliasedInput(output); }

int probe_types(IPluginV3* plugin, const int* inputs, int num_inputs, int* outputs,
                int num_outputs) {
  std::vector<DataType> given, found(num_outputs);
  for (int i = 0; i < num_inputs; ++i) given.push_back(static_cast<DataType>(inputs[i]));
  const int status =
      build_of(plugin)->getOutputDataTypes(found.data(), num_outputs, given.data(), num_inputs);
  for (int i = 0; i < num_outputs; ++i) outputs[i] = static_cast<int>(found[i]);
  return status;
}

int probe_shapes(IPluginV3* plugin, const Tensor* inputs, int num_inputs, Tensor* outputs,
                 int num_outputs) {
  Numbers numbers;
  std::vector<DimsExprs> given(num_inputs), found(num_outputs);
  for (int i = 0; i < num_inputs; ++i) {
    given[i].nbDims = inputs[i].rank;
    for (int j = 0; j < inputs[i].rank; ++j) given[i].d[j] = numbers.constant(inputs[i].dims[j]);
  }
  const int status = build_of(plugin)->getOutputShapes(given.data(), num_inputs, nullptr, 0,
                                                       found.data(), num_outputs, numbers);
  for (int i = 0; status == 0 && i < num_outputs; ++i) {
    outputs[i].rank = found[i].nbDims;
    for (int j = 0; j < found[i].nbDims; ++j) outputs[i].dims[j] = found[i].d[j]->getConstantValue();
  }
  return status;
}

int probe_supports(IPluginV3* plugin, int position, const Tensor* tensors, int num_inputs,
                   int num_outputs) {
  const auto all = ranges(tensors, num_inputs + num_outputs);
  return build_of(plugin)->supportsFormatCombination(position, all.data(), num_inputs, num_outputs);
}

int probe_configure(IPluginV3* plugin, const Tensor* tensors, int num_inputs, int num_outputs) {
  const auto all = ranges(tensors, num_inputs + num_outputs);
  return build_of(plugin)->configurePlugin(all.data(), num_inputs, all.data() + num_inputs,
                                           num_outputs);
}

std::int64_t probe_workspace(IPluginV3* plugin, const Tensor* tensors, int num_inputs,
                             int num_outputs) {
  const auto all = ranges(tensors, num_inputs + num_outputs);
  return static_cast<std::int64_t>(build_of(plugin)->getWorkspaceSize(
      all.data(), num_inputs, all.data() + num_inputs, num_outputs));
}

int probe_shape_change(IPluginV3* plugin, const Tensor* tensors, int num_inputs, int num_outputs) {
  const auto all = fixed(tensors, num_inputs + num_outputs);
  return runtime_of(plugin)->onShapeChange(all.data(), num_inputs, all.data() + num_inputs,
                                           num_outputs);
}

int probe_enqueue(IPluginV3* plugin, const Tensor* tensors, int num_inputs, int num_outputs,
                  const void* const* inputs, void* const* outputs, void* workspace) {
  const auto all = fixed(tensors, num_inputs + num_outputs);
  return runtime_of(plugin)->enqueue(all.data(), all.data() + num_inputs, inputs, outputs,
                                     workspace, nullptr);
}

}  // extern "C"
