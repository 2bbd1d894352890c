#include "attention_launches.hpp"

#include <algorithm>
#include <cmath>

namespace selfdraft {
namespace {

constexpr int tile_rows = 16;
constexpr int block_tokens = 64;
constexpr int budget_parts_unit = 65536;
constexpr int busy_blocks = 32;  // thread blocks for the 16 multiprocessors of an Orin
constexpr std::size_t alignment = 256;
const char* const selectors[] = {"all", "window", "mean_std", "min_max", "infllm_v2"};

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

std::size_t take(std::size_t& total, std::size_t bytes) {
  const std::size_t place = total;
  total += (bytes + alignment - 1) / alignment * alignment;
  return place;
}

}  // namespace

int AttentionAttributes::selector_code() const {
  for (int code = 0; code < 5; ++code) {
    if (selector == selectors[code]) return code;
  }
  return -1;
}

int AttentionAttributes::summary_vectors() const {
  const int vectors[] = {0, 0, 2, 2, 5};
  return vectors[selector_code()];
}

StepShape::StepShape(const AttentionAttributes& op, int batch, int rows, int blocks)
    : op_(op),
      batch_(batch),
      rows_(rows),
      blocks_(blocks),
      tiles_(ceil_div(rows, tile_rows / op.group())),
      splits_(std::max(busy_blocks / op.num_kv_heads, 1)),
      prefill_(rows > max_step_rows) {
  if (prefill_) splits_ = 1;
}

std::vector<KernelLaunch> StepShape::launches() const {
  std::vector<KernelLaunch> found{append()};
  if (op_.summary_vectors()) found.push_back(score());
  found.push_back(select());
  if (prefill_) {
    found.push_back(prefill());
  } else {
    found.push_back(attend());
    found.push_back(combine());
  }
  return found;
}

StepShape::Arrays StepShape::arrays() const {
  const std::size_t heads = std::size_t(batch_) * op_.num_kv_heads * tiles_;
  const std::size_t columns = std::size_t(blocks_) * (op_.selector == "infllm_v2" ? 5 : 1);
  const std::size_t split = heads * splits_ * tile_rows;
  const std::size_t query_rows = tile_rows / op_.group();
  Arrays a{};
  a.list = take(a.total, heads * blocks_ * 4);
  a.list_count = take(a.total, heads * 4);
  if (!prefill_) {
    a.partial = take(a.total, split * op_.head_dim * 4);
    a.partial_ml = take(a.total, split * 2 * 4);
  }
  if (op_.summary_vectors()) {
    a.logits = take(a.total, heads * tile_rows * columns * 4);
    a.keys = take(a.total, heads * query_rows * blocks_ * 4);
  }
  return a;
}

std::size_t StepShape::workspace_bytes() const { return arrays().total; }

void StepShape::fill(StepParams& p, void* base) const {
  const Arrays a = arrays();
  const auto at = [&](std::size_t offset) { return static_cast<char*>(base) + offset; };
  p.list = at(a.list);
  p.list_count = at(a.list_count);
  p.partial = prefill_ ? nullptr : at(a.partial);
  p.partial_ml = prefill_ ? nullptr : at(a.partial_ml);
  p.logits = op_.summary_vectors() ? at(a.logits) : nullptr;
  p.keys = op_.summary_vectors() ? at(a.keys) : nullptr;
  p.batch = batch_;
  p.rows = rows_;
  p.kv_heads = op_.num_kv_heads;
  p.group = op_.group();
  p.blocks = blocks_;
  p.tiles = tiles_;
  p.splits = splits_;
  p.selector = op_.selector_code();
  p.sinks = op_.sinks;
  p.local_blocks = op_.local_blocks;
  p.budget_tokens = op_.budget_tokens;
  p.budget_parts = static_cast<int>(std::nearbyint(double(op_.budget_share) * budget_parts_unit));
  p.sliding_window = op_.sliding_window;
  p.scale = op_.scale;
  p.spread = op_.spread;
}

unsigned StepShape::query_bytes() const { return tile_rows * (op_.head_dim + 8) * 2; }

unsigned StepShape::stage_bytes(int tokens) const {
  const int token_bytes = op_.is_int8() ? op_.head_dim + 2 : 2 * op_.head_dim;
  return 2 * 2 * tokens * token_bytes;
}

unsigned StepShape::count_bytes() const { return 4 + ceil_div(blocks_, 32) * 4; }

KernelLaunch StepShape::append() const {
  const int reach = op_.selector == "infllm_v2" ? 1 : 0;
  const unsigned touched = 1 + ceil_div(rows_, block_tokens) + reach;
  const std::string kernel = "append_" + op_.kv_dtype + "_d" + std::to_string(op_.head_dim);
  return {"append", kernel, {touched, unsigned(op_.num_kv_heads), unsigned(batch_)}, 128, 512};
}

KernelLaunch StepShape::score() const {
  const std::string kind = op_.selector == "infllm_v2" ? "windows" : "blocks";
  const Grid grid{unsigned(ceil_div(blocks_, 64)), unsigned(op_.num_kv_heads * tiles_),
                  unsigned(batch_)};
  return {"score", "score_" + kind + "_d" + std::to_string(op_.head_dim), grid, 128, query_bytes()};
}

KernelLaunch StepShape::select() const {
  const Grid grid{unsigned(tiles_), unsigned(op_.num_kv_heads), unsigned(batch_)};
  return {"select", "select_blocks", grid, 256, 4096};
}

KernelLaunch StepShape::attend() const {
  const int tokens = op_.head_dim == 256 && !op_.is_int8() ? 32 : 64;
  const unsigned weights = tile_rows * (tokens + 8) * 2;
  const unsigned notes = 4 * tile_rows * 4;
  const unsigned queue = ceil_div(blocks_, splits_) * 4;
  const Grid grid{unsigned(splits_), unsigned(op_.num_kv_heads * tiles_), unsigned(batch_)};
  return {"attend", "attend_" + op_.kv_dtype + "_d" + std::to_string(op_.head_dim), grid, 128,
          stage_bytes(tokens) + query_bytes() + weights + notes + queue};
}

KernelLaunch StepShape::combine() const {
  const Grid grid{unsigned(rows_), unsigned(op_.num_kv_heads), unsigned(batch_)};
  return {"combine", "combine_d" + std::to_string(op_.head_dim), grid, 128, count_bytes()};
}

KernelLaunch StepShape::prefill() const {
  const int tokens = op_.head_dim == 256 ? 32 : 64;
  const unsigned own = stage_bytes(tokens) + 4 * query_bytes();
  const Grid grid{unsigned(ceil_div(tiles_, 4)), unsigned(op_.num_kv_heads), unsigned(batch_)};
  return {"prefill", "prefill_" + op_.kv_dtype + "_d" + std::to_string(op_.head_dim), grid, 128,
          std::max(own, count_bytes())};
}

}  // namespace selfdraft
