#include "log.hpp"

#include <atomic>
#include <cstdio>

namespace selfdraft {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};
thread_local std::string last;

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) { logger_finder = finder; }

void report(const std::string& message) {
  last = message;
  const std::string line = "selfdraft: " + message;
  nvinfer1::ILoggerFinder* finder = logger_finder;
  nvinfer1::ILogger* logger = finder ? finder->findLogger() : nullptr;
  if (logger) {
    logger->log(nvinfer1::ILogger::Severity::kERROR, line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

const std::string& last_report() { return last; }

}  // namespace selfdraft
