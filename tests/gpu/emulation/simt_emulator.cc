#include "tests/gpu/emulation/simt_emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

namespace espalier::emulation {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = size_t{256} << 10, kMaxGiven = 64;

// A barrier. Arriving threads belong to the round after the last complete one.
struct Meeting {
  int members = 0, come = 0;
  uint64_t rounds = 0;
  uint8_t given[2][kLanes * kMaxGiven];

  void CompleteIfAll() {
    if (come < members || members == 0) return;
    come = 0;
    ++rounds;
  }
};

// A coroutine starts by setcontext; later switches use longjmp, which needs no system calls.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  bool begun = false;
  Thread self;
  const Meeting* waiting = nullptr;
  uint64_t round = 0;
  bool done = false;
};

using Stacks = std::vector<std::unique_ptr<uint8_t[]>>;  // one per thread

class Block {
 public:
  Block(Index grid, Index block, const Stacks& stacks, int64_t shared_bytes,
        const std::function<void()>& kernel)
      : kernel_(kernel),
        shared_(std::make_unique<uint8_t[]>(static_cast<size_t>(shared_bytes))),
        warps_(stacks.size() / kLanes),
        fibers_(stacks.size()) {
    whole_.members = static_cast<int>(stacks.size());
    for (Meeting& warp : warps_) warp.members = kLanes;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[i];
      fiber.self = {{static_cast<uint32_t>(i), 0, 0}, block, grid};
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks[i].get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Block::Enter, 0);
    }
  }

  std::string Run() {
    running_block_ = this;
    for (size_t left = fibers_.size(); left > 0;) {
      bool progress = false;
      for (Fiber& fiber : fibers_) {
        if (fiber.done || (fiber.waiting != nullptr && fiber.waiting->rounds < fiber.round)) {
          continue;
        }
        progress = true;
        running_ = &fiber;
        Continue(&fiber);
        if (!fiber.done) continue;
        --left;
        Leave(&whole_);
        Leave(&WarpOf(fiber));
      }
      if (!progress) {
        return "threads of block " + std::to_string(fibers_[0].self.block.x) +
               " wait for others that do not come";
      }
    }
    return "";
  }

  static Block& Running() { return *running_block_; }
  Fiber& fiber() { return *running_; }
  uint8_t* shared() { return shared_.get(); }

  void MeetAll() { Meet(&whole_); }
  const void* MeetWarp(const void* given, size_t bytes) {
    Meeting& warp = WarpOf(*running_);
    // A lane may reach the next exchange before others have read the values of this one.
    uint8_t* const board = warp.given[warp.rounds % 2];
    std::memcpy(board + running_->self.thread.x % kLanes * bytes, given, bytes);
    Meet(&warp);
    return board;
  }

 private:
  static void Enter() {
    Block& block = Running();
    block.kernel_();
    block.running_->done = true;
    _longjmp(block.scheduler_, 1);
  }
  // Runs the thread until it waits or returns.
  void Continue(Fiber* fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber->begun) _longjmp(fiber->place, 1);
    fiber->begun = true;
    setcontext(&fiber->context);
  }
  Meeting& WarpOf(const Fiber& fiber) { return warps_[fiber.self.thread.x / kLanes]; }
  void Leave(Meeting* meeting) {
    --meeting->members;
    meeting->CompleteIfAll();
  }
  void Meet(Meeting* meeting) {
    Fiber* const self = running_;
    self->round = meeting->rounds + 1;
    ++meeting->come;
    meeting->CompleteIfAll();
    self->waiting = meeting;
    while (meeting->rounds < self->round) {
      if (_setjmp(self->place) == 0) _longjmp(scheduler_, 1);
    }
    self->waiting = nullptr;
  }

  static Block* running_block_;
  const std::function<void()>& kernel_;
  const std::unique_ptr<uint8_t[]> shared_;
  jmp_buf scheduler_;
  Meeting whole_;
  std::vector<Meeting> warps_;
  std::vector<Fiber> fibers_;
  Fiber* running_ = nullptr;
};

Block* Block::running_block_ = nullptr;

}  // namespace

const Thread& Current() { return Block::Running().fiber().self; }
void* SharedMemory() { return Block::Running().shared(); }
void MeetInBlock() { Block::Running().MeetAll(); }
const void* MeetInWarp(const void* given, size_t bytes) {
  return Block::Running().MeetWarp(given, bytes);
}

std::string Launch(Index grid, int threads, int64_t shared_bytes,
                   const std::function<void()>& kernel) {
  Stacks stacks;
  for (int i = 0; i < threads; ++i) {
    stacks.push_back(std::make_unique_for_overwrite<uint8_t[]>(kStackBytes));
  }
  for (uint32_t y = 0; y < grid.y; ++y) {
    for (uint32_t x = 0; x < grid.x; ++x) {
      Block block(grid, {x, y, 0}, stacks, shared_bytes, kernel);
      if (std::string error = block.Run(); !error.empty()) return error;
    }
  }
  return "";
}

}  // namespace espalier::emulation
