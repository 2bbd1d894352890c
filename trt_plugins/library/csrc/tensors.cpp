#include "tensors.hpp"

namespace selfdraft {

using nvinfer1::DataType;
using nvinfer1::Dims;

std::string text_of(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return "fp32";
    case DataType::kHALF: return "fp16";
    case DataType::kINT8: return "int8";
    case DataType::kINT32: return "int32";
    case DataType::kINT64: return "int64";
    default: return "type " + std::to_string(static_cast<int>(type));
  }
}

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.nbDims; ++i) text += (i ? ", " : "") + std::to_string(dims.d[i]);
  return text + "]";
}

void check_count(const char* plugin, const char* what, int found, std::size_t wanted) {
  if (static_cast<std::size_t>(found) == wanted) return;
  throw PluginError(std::string(plugin) + " has " + std::to_string(found) + " " + what +
                    ", its attributes ask for " + std::to_string(wanted));
}

void check_type(const char* plugin, const TensorForm& form, DataType found) {
  if (found == form.type) return;
  throw PluginError(std::string(plugin) + ": " + form.name + " is " + text_of(found) +
                    ", must be " + text_of(form.type));
}

void check_dims(const char* plugin, const TensorForm& form, const Dims& found) {
  const int rank = static_cast<int>(form.dims.size());
  const int first = found.nbDims - rank;
  bool fits = form.leading ? first >= 0 : first == 0;
  for (int i = 0; fits && i < rank; ++i) {
    const std::int64_t wanted = form.dims[i], size = found.d[first + i];
    fits = wanted == any_size || size == any_size || size == wanted;
  }
  if (fits) return;
  std::string wanted = form.leading ? "[..." : "[";
  for (int i = 0; i < rank; ++i) {
    wanted += i || form.leading ? ", " : "";
    wanted += form.dims[i] == any_size ? "*" : std::to_string(form.dims[i]);
  }
  throw PluginError(std::string(plugin) + ": " + form.name + " has shape " + text_of(found) +
                    ", must be " + wanted + "]");
}

void check_equal(const char* plugin, const char* what, std::int64_t left, const char* other,
                 std::int64_t right) {
  if (left == right) return;
  throw PluginError(std::string(plugin) + ": " + what + " has " + std::to_string(left) + ", " +
                    other + " has " + std::to_string(right));
}

}  // namespace selfdraft
