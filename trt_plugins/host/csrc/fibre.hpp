// A thread of a CTA as a stack of its own: switching costs some ten nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__) && !defined(SELFDRAFT_UCONTEXT)
#define SELFDRAFT_UCONTEXT
#endif
#if defined(SELFDRAFT_UCONTEXT)
#include <ucontext.h>
#endif

namespace sd::host {

#if defined(SELFDRAFT_UCONTEXT)

struct Context {
  ucontext_t saved;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }

inline void start_context(Context& context, void* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack;
  context.saved.uc_stack.ss_size = bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}

#else

struct Context {
  void* stack_pointer;
};

// Saves the registers that a call must keep, exchanges stacks, restores.
asm(R"(
.text
.p2align 4
.hidden sd_switch_stack
.globl sd_switch_stack
.type sd_switch_stack, @function
sd_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sd_switch_stack, .-sd_switch_stack
)");
extern "C" __attribute__((visibility("hidden"))) void sd_switch_stack(void** save, void* load);

inline void switch_context(Context& from, Context& to) {
  sd_switch_stack(&from.stack_pointer, to.stack_pointer);
}

inline void start_context(Context& context, void* stack, size_t bytes, void (*entry)()) {
  // Six registers, the return address, and a dead slot that keeps the stack 16-aligned in `entry`.
  auto top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  auto* words = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 6; ++i) words[i] = nullptr;
  words[6] = reinterpret_cast<void*>(entry);
  words[7] = nullptr;
  context.stack_pointer = words;
}

#endif

}  // namespace sd::host
