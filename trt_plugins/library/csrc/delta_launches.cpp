#include "delta_launches.hpp"

namespace selfdraft {
namespace {

constexpr int block_rows = 8;  // tokens of a block
constexpr int threads = 128, warps = threads / 32;
constexpr int columns = 32;  // of a state that a thread block keeps

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

DeltaShape::DeltaShape(const DeltaAttributes& op, int batch, int rows)
    : op_(op),
      batch_(batch),
      rows_(rows),
      window_(ceil_div(rows + log_rows, block_rows) * block_rows) {}

std::vector<KernelLaunch> DeltaShape::launches() const {
  const unsigned batch = batch_, values = op_.num_value_heads;
  const unsigned heads = 2 * op_.num_key_heads + values;
  const unsigned logged = ceil_div(op_.channels(), threads) + ceil_div(2 * values, threads);
  return {launch("mix", {unsigned(ceil_div(window_, warps)), heads, batch}, 0),
          launch("scan", {unsigned(op_.value_dim / columns), values, batch}, scan_shared_bytes()),
          launch("log", {logged, batch, 1}, 0)};
}

KernelLaunch DeltaShape::launch(const char* name, Grid grid, unsigned shared_bytes) const {
  const std::string kernel = std::string("delta_") + name + "_k" + std::to_string(op_.key_dim) +
                             "_v" + std::to_string(op_.value_dim);
  return {"delta", kernel, grid, threads, shared_bytes};
}

// Bytes of Layout in gated_delta_rule/csrc/delta.cu.
unsigned DeltaShape::scan_shared_bytes() const {
  const int rows = 2 * block_rows;
  const int stage = rows * (op_.key_dim + 4) + block_rows * columns;
  const int partial = warps * rows * columns;
  const int likeness = 2 * block_rows * block_rows;
  const int gates = 4 * block_rows;
  return 4 * (2 * stage + partial + likeness + gates);
}

std::size_t DeltaShape::workspace_bytes() const {
  return std::size_t(batch_) * window_ * op_.channels() * sizeof(float);
}

void DeltaShape::fill(DeltaParams& p, void* workspace) const {
  p.mixed = workspace;
  p.batch = batch_;
  p.rows = rows_;
  p.key_heads = op_.num_key_heads;
  p.value_heads = op_.num_value_heads;
  p.taps = op_.taps;
  p.window = window_;
}

}  // namespace selfdraft
