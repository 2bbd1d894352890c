// Tensors of a plugin by name: expected types and shapes, and refusals that name what differs.
#pragma once
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "driver.hpp"

namespace selfdraft {

constexpr std::int64_t any_size = -1;

// What a plugin expects of one input or output.
struct TensorForm {
  const char* name;
  nvinfer1::DataType type;
  std::vector<std::int64_t> dims;  // any_size: free; the rank is fixed unless `leading`
  bool leading = false;            // dims are the last ones, any number may come before
};

std::string text_of(nvinfer1::DataType type);
std::string text_of(const nvinfer1::Dims& dims);

// Throw PluginError naming the tensor and both values.
void check_count(const char* plugin, const char* what, int found, std::size_t wanted);
void check_type(const char* plugin, const TensorForm& form, nvinfer1::DataType found);
void check_dims(const char* plugin, const TensorForm& form, const nvinfer1::Dims& found);
void check_equal(const char* plugin, const char* what, std::int64_t left, const char* other,
                 std::int64_t right);

}  // namespace selfdraft
