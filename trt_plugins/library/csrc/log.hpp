// Errors: to TensorRT's logger where it gave us one, else to stderr; the last one is kept for tests.
#pragma once
#include <string>

#include "NvInferRuntime.h"

namespace selfdraft {

void set_logger_finder(nvinfer1::ILoggerFinder* finder);

// Reports "selfdraft: <message>" as an error.
void report(const std::string& message);

// The last message of this thread, empty where there was none.
const std::string& last_report();

// Runs `body`; an exception becomes a report and `failed`, since TensorRT's methods must not throw.
template <class Result, class Body>
Result guarded(Result failed, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    report(error.what());
  }
  return failed;
}

}  // namespace selfdraft
