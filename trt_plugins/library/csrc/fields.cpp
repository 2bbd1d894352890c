#include "fields.hpp"

#include <cstring>

namespace selfdraft {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

Fields::Fields(const char* plugin, const nvinfer1::PluginFieldCollection* given)
    : plugin_(plugin), given_(given) {
  if (!given) throw PluginError(plugin_ + " was given no attributes");
}

int Fields::integer(const char* name) const { return read_integer(require(name)); }

int Fields::integer_or(const char* name, int otherwise) const {
  const PluginField* field = find(name);
  return field ? read_integer(*field) : otherwise;
}

float Fields::real(const char* name) const {
  const PluginField& field = require(name);
  if (field.length != 1 || field.type != PluginFieldType::kFLOAT32) throw wrong(name, "a float");
  float value;
  std::memcpy(&value, field.data, sizeof value);
  return value;
}

std::string Fields::text(const char* name) const {
  const PluginField& field = require(name);
  if (field.type != PluginFieldType::kCHAR) throw wrong(name, "a string");
  const auto* characters = static_cast<const char*>(field.data);
  return std::string(characters, strnlen(characters, field.length));
}

const PluginField* Fields::find(const char* name) const {
  for (int i = 0; i < given_->nbFields; ++i) {
    const PluginField& field = given_->fields[i];
    if (field.name && field.data && std::strcmp(field.name, name) == 0) return &field;
  }
  return nullptr;
}

const PluginField& Fields::require(const char* name) const {
  const PluginField* field = find(name);
  if (!field) throw PluginError(plugin_ + "." + name + " is missing: export the bundle again");
  return *field;
}

// TensorRT's parsers give INT32; INT64 is what ONNX holds.
int Fields::read_integer(const PluginField& field) const {
  if (field.length == 1 && field.type == PluginFieldType::kINT32) {
    std::int32_t value;
    std::memcpy(&value, field.data, sizeof value);
    return value;
  }
  if (field.length == 1 && field.type == PluginFieldType::kINT64) {
    std::int64_t value;
    std::memcpy(&value, field.data, sizeof value);
    if (value == static_cast<std::int32_t>(value)) return static_cast<int>(value);
  }
  throw wrong(field.name, "an integer");
}

PluginError Fields::wrong(const char* name, const char* wanted) const {
  return PluginError(plugin_ + "." + name + " is not " + wanted);
}

void FieldList::add(const char* name, int value) {
  integers_.push_back(value);
  fields_.emplace_back(name, &integers_.back(), PluginFieldType::kINT32, 1);
}

void FieldList::add(const char* name, float value) {
  reals_.push_back(value);
  fields_.emplace_back(name, &reals_.back(), PluginFieldType::kFLOAT32, 1);
}

void FieldList::add(const char* name, const std::string& value) {
  texts_.push_back(value);
  const auto length = static_cast<std::int32_t>(value.size() + 1);
  fields_.emplace_back(name, texts_.back().c_str(), PluginFieldType::kCHAR, length);
}

const nvinfer1::PluginFieldCollection* FieldList::collection() {
  collection_.nbFields = static_cast<std::int32_t>(fields_.size());
  collection_.fields = fields_.data();
  return &collection_;
}

void require(bool holds, const char* plugin, const char* name, const std::string& found,
             const std::string& wanted) {
  if (holds) return;
  throw PluginError(std::string(plugin) + "." + name + " is " + found + ", must be " + wanted);
}

}  // namespace selfdraft
