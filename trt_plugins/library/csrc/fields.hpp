// Attributes of a node as TensorRT hands them over and keeps them in a plan.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "driver.hpp"

namespace selfdraft {

// Fields given to a creator, read by name. Throws PluginError naming what is missing or misshaped.
class Fields {
 public:
  Fields(const char* plugin, const nvinfer1::PluginFieldCollection* given);

  int integer(const char* name) const;
  int integer_or(const char* name, int otherwise) const;
  float real(const char* name) const;
  std::string text(const char* name) const;  // the final NUL, if any, is dropped

 private:
  const nvinfer1::PluginField* find(const char* name) const;
  const nvinfer1::PluginField& require(const char* name) const;
  int read_integer(const nvinfer1::PluginField& field) const;
  PluginError wrong(const char* name, const char* wanted) const;

  std::string plugin_;
  const nvinfer1::PluginFieldCollection* given_;
};

// Fields with values of their own: what a plan keeps of a plugin.
class FieldList {
 public:
  void add(const char* name, int value);
  void add(const char* name, float value);
  void add(const char* name, const std::string& value);
  const nvinfer1::PluginFieldCollection* collection();

 private:
  std::deque<int> integers_;
  std::deque<float> reals_;
  std::deque<std::string> texts_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

// "CachedAttention.head_dim is 32, must be 64, 128 or 256"
void require(bool holds, const char* plugin, const char* name, const std::string& found,
             const std::string& wanted);

}  // namespace selfdraft
