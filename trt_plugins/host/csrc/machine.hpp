// One CTA at a time, executed by fibres: schedule, barriers, warp collectives, asynchronous copies,
// bytes counted and addresses checked. A launch is a pure function of its inputs and its seed.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "fibre.hpp"

namespace sd::host {

constexpr int warp_lanes = 32;
constexpr int max_threads = 1024;
constexpr size_t stack_bytes = 64 * 1024;
constexpr size_t slot_bytes = 64;
constexpr size_t guard_bytes = 1024;  // behind the shared memory, to notice writes past it

struct Range {
  uint64_t begin, end;
};

// Mirrored in trt_plugins/host/launch.py.
struct Launch {
  uint32_t grid[3];
  uint32_t threads;
  uint64_t shared_bytes;
  uint64_t seed;
  uint64_t num_ranges;
  const Range* ranges;  // global memory that the kernel may touch
};

struct Report {
  uint64_t read[traffic_kinds];
  uint64_t written[traffic_kinds];
  uint64_t switches;
  char problem[256];
};

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  int group;
};

enum class State : uint8_t { ready, at_collective, at_barrier, done };

struct Fibre {
  Context context;
  State state;
  int lane, warp;
  uint32_t index[3];
  int group;  // number of the asynchronous group that is open
  uint32_t collectives;
  std::vector<Copy> copies;
};

// A collective's inputs and results by lane; two sets, since a lane can be one collective ahead.
struct Warp {
  int arrived;
  const void* kind;
  int ready;
  uint32_t first, stride, turn;
  alignas(64) uint8_t in[2][warp_lanes][slot_bytes];
  alignas(64) uint8_t out[2][warp_lanes][slot_bytes];
};

struct Machine {
  Context scheduler;
  Fibre* current;
  const Launch* launch;
  Report* report;
  void (*thread)(const void*);
  const void* params;
  Random random;
  uint32_t block[3];
  int at_barrier, done, num_warps;
  uint32_t stay;  // of 256: how often the scheduler goes on with the warp it ran last
  size_t last_range;
  bool failed;
  std::vector<uint8_t> stacks, shared;
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
};

inline Machine machine;

inline void copy_now(const Copy& copy) {
  if (copy.from) {
    memcpy(copy.to, copy.from, 16);
  } else {
    memset(copy.to, 0, 16);
  }
}

inline void enter_scheduler() { switch_context(machine.current->context, machine.scheduler); }

// Ends the launch with a message that names the thread.
__attribute__((noinline, noreturn)) inline void fail(const char* format, ...) {
  Machine& m = machine;
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(m.report->problem, sizeof m.report->problem, "CTA (%u, %u, %u) thread %d: %s",
           m.block[0], m.block[1], m.block[2],
           m.current->warp * warp_lanes + m.current->lane, text);
  m.failed = true;
  for (;;) enter_scheduler();
}

inline Fibre& fibre_at(Warp& warp, uint32_t turn) {
  const auto lane = (warp.first + turn * warp.stride) % warp_lanes;
  return machine.fibres[(&warp - machine.warps.data()) * warp_lanes + lane];
}

// The running fibre cannot go on: the next ready lane of its warp runs, or else the scheduler.
__attribute__((noinline)) inline void give_way() {
  Machine& m = machine;
  Fibre& self = *m.current;
  Warp& warp = m.warps[self.warp];
  ++m.report->switches;
  while (++warp.turn < warp_lanes) {
    Fibre& next = fibre_at(warp, warp.turn);
    if (next.state != State::ready || &next == &self) continue;
    m.current = &next;
    switch_context(self.context, next.context);
    return;
  }
  enter_scheduler();
}

inline void run_pending(Fibre& fibre, int last_group) {
  size_t kept = 0;
  for (auto& copy : fibre.copies) {
    if (copy.group <= last_group) {
      copy_now(copy);
    } else {
      fibre.copies[kept++] = copy;
    }
  }
  fibre.copies.resize(kept);
}

inline void fibre_main() {
  Machine& m = machine;
  m.thread(m.params);
  Fibre& self = *m.current;
  if (!self.copies.empty()) fail("ends with asynchronous copies in flight");
  self.state = State::done;
  --m.warps[self.warp].ready;
  ++m.done;
  give_way();
  abort();
}

inline void release_barrier() {
  Machine& m = machine;
  m.at_barrier = 0;
  for (auto& fibre : m.fibres) fibre.state = State::ready;
  for (auto& warp : m.warps) warp.ready = warp_lanes;
}

inline void barrier() {
  Machine& m = machine;
  Fibre& self = *m.current;
  if (m.done) fail("waits at a barrier that %d ended threads never reach", m.done);
  self.state = State::at_barrier;
  --m.warps[self.warp].ready;
  if (++m.at_barrier == static_cast<int>(m.launch->threads)) release_barrier();
  give_way();
}

// The `kind` of a collective is the address of its `compute(in, out)`, which serves all lanes.
using Compute = void (*)(uint8_t (*in)[slot_bytes], uint8_t (*out)[slot_bytes]);

template <class In, class Out>
inline Out collective(const In& in, Compute compute) {
  static_assert(sizeof(In) <= slot_bytes && sizeof(Out) <= slot_bytes);
  Machine& m = machine;
  Fibre& self = *m.current;
  Warp& warp = m.warps[self.warp];
  const auto set = self.collectives++ & 1;
  const auto* kind = reinterpret_cast<const void*>(compute);
  if (warp.arrived == 0) warp.kind = kind;
  if (warp.kind != kind) fail("meets its warp at another warp-wide operation");
  memcpy(warp.in[set][self.lane], &in, sizeof(In));
  if (++warp.arrived < warp_lanes) {
    self.state = State::at_collective;
    --warp.ready;
    give_way();
  } else {
    compute(warp.in[set], warp.out[set]);
    warp.arrived = 0;
    const auto base = static_cast<size_t>(self.warp) * warp_lanes;
    for (int lane = 0; lane < warp_lanes; ++lane) m.fibres[base + lane].state = State::ready;
    warp.ready = warp_lanes;
  }
  Out out;
  memcpy(&out, warp.out[set][self.lane], sizeof(Out));
  return out;
}

__attribute__((noinline)) inline void check_global(const void* address, size_t bytes) {
  Machine& m = machine;
  const auto begin = reinterpret_cast<uint64_t>(address);
  if (begin % bytes) fail("global address %p is not aligned to %zu bytes", address, bytes);
  for (size_t tried = 0; tried < m.launch->num_ranges; ++tried) {
    const Range& range = m.launch->ranges[m.last_range];
    if (begin >= range.begin && begin + bytes <= range.end) return;
    if (++m.last_range == m.launch->num_ranges) m.last_range = 0;
  }
  fail("global address %p (%zu bytes) lies outside of every buffer", address, bytes);
}

inline void check_shared(const void* address, size_t bytes) {
  Machine& m = machine;
  const auto* at = static_cast<const uint8_t*>(address);
  const auto* begin = m.shared.data();
  if (at < begin || at + bytes > begin + m.launch->shared_bytes) {
    fail("shared address %td lies outside of %zu bytes", at - begin,
         static_cast<size_t>(m.launch->shared_bytes));
  }
  if ((at - begin) % bytes) fail("shared address %td is not aligned to %zu", at - begin, bytes);
}

inline int ready_warp(int last) {
  Machine& m = machine;
  if (last >= 0 && m.warps[last].ready && (m.random.next() & 255) < m.stay) return last;
  const auto from = m.random.below(m.num_warps);
  for (int i = 0; i < m.num_warps; ++i) {
    const int warp = (from + i) % m.num_warps;
    if (m.warps[warp].ready) return warp;
  }
  return -1;
}

// The lanes of a warp run in a random order, each until it meets something it must wait for.
inline void run_warp(Warp& warp) {
  Machine& m = machine;
  warp.first = m.random.below(warp_lanes);
  warp.stride = 2 * m.random.below(warp_lanes / 2) + 1;
  for (warp.turn = 0; warp.turn < warp_lanes; ++warp.turn) {
    Fibre& fibre = fibre_at(warp, warp.turn);
    if (fibre.state != State::ready) continue;
    m.current = &fibre;
    ++m.report->switches;
    switch_context(m.scheduler, fibre.context);
    return;
  }
}

inline void start_cta() {
  Machine& m = machine;
  const auto threads = m.launch->threads;
  m.at_barrier = m.done = 0;
  // All ones is NaN in every floating type: what was not written is noticed.
  memset(m.shared.data(), 0xff, m.shared.size());
  const uint32_t stays[4] = {0, 128, 240, 256};
  m.stay = stays[m.random.below(4)];
  for (uint32_t i = 0; i < threads; ++i) {
    Fibre& fibre = m.fibres[i];
    fibre.state = State::ready;
    fibre.lane = i % warp_lanes;
    fibre.warp = i / warp_lanes;
    fibre.index[0] = i, fibre.index[1] = fibre.index[2] = 0;
    fibre.group = 0;
    fibre.collectives = 0;
    fibre.copies.clear();
    start_context(fibre.context, m.stacks.data() + i * stack_bytes, stack_bytes, fibre_main);
  }
  for (auto& warp : m.warps) warp.arrived = 0, warp.ready = warp_lanes;
}

inline void check_guard() {
  Machine& m = machine;
  for (size_t i = m.launch->shared_bytes; i < m.shared.size(); ++i) {
    if (m.shared[i] == 0xff) continue;
    snprintf(m.report->problem, sizeof m.report->problem,
             "CTA (%u, %u, %u): writes past its %zu bytes of shared memory", m.block[0],
             m.block[1], m.block[2], static_cast<size_t>(m.launch->shared_bytes));
    m.failed = true;
    return;
  }
}

inline void run_cta() {
  Machine& m = machine;
  start_cta();
  for (int last = -1; m.done < static_cast<int>(m.launch->threads);) {
    last = ready_warp(last);
    if (last < 0) {
      snprintf(m.report->problem, sizeof m.report->problem,
               "CTA (%u, %u, %u): no thread can go on: %d wait at a barrier, %d have ended",
               m.block[0], m.block[1], m.block[2], m.at_barrier, m.done);
      m.failed = true;
      return;
    }
    run_warp(m.warps[last]);
    if (m.failed) return;
  }
  check_guard();
}

// Runs every CTA of the grid, in a random order. 0, or 1 with `report->problem` filled.
inline int run(const Launch* launch, uint32_t threads, void (*thread)(const void*),
               const void* params, Report* report) {
  Machine& m = machine;
  memset(report, 0, sizeof *report);
  if (launch->threads != threads || threads % warp_lanes || threads > max_threads) {
    snprintf(report->problem, sizeof report->problem, "launched with %u threads, written for %u",
             launch->threads, threads);
    return 1;
  }
  m.launch = launch, m.report = report, m.thread = thread, m.params = params;
  m.random = Random{launch->seed};
  m.failed = false, m.last_range = 0;
  m.num_warps = threads / warp_lanes;
  m.fibres.resize(threads);
  m.warps.resize(m.num_warps);
  if (m.stacks.size() < threads * stack_bytes) m.stacks.resize(threads * stack_bytes);
  m.shared.resize(launch->shared_bytes + guard_bytes);
  const uint64_t total = uint64_t{launch->grid[0]} * launch->grid[1] * launch->grid[2];
  std::vector<uint64_t> order(total);
  for (uint64_t i = 0; i < total; ++i) order[i] = i;
  for (uint64_t i = total; i > 1; --i) std::swap(order[i - 1], order[m.random.next() % i]);
  for (const auto cta : order) {
    m.block[0] = cta % launch->grid[0];
    m.block[1] = cta / launch->grid[0] % launch->grid[1];
    m.block[2] = cta / launch->grid[0] / launch->grid[1];
    run_cta();
    if (m.failed) return 1;
  }
  return 0;
}

}  // namespace sd::host
