#include "ops/cpu/threading/thread_team.h"

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

// Fields of state_, from the lowest bit.
constexpr uint64_t kInside = 1;          // helpers inside: 15 bits
constexpr uint64_t kMayEnter = 1 << 15;  // helpers that may enter: 15 bits
constexpr uint64_t kOpen = 1 << 30;
constexpr uint64_t kStop = uint64_t{1} << 31;
constexpr uint64_t kCall = uint64_t{1} << 32;  // number of the call: 32 bits
constexpr int kMaxThreads = 1 << 14;

bool MayEnter(uint64_t state) { return (state & kOpen) != 0 && state / kMayEnter % kMayEnter != 0; }

// How long a helper spins before it sleeps: about the time between two loops of a step, and between
// two steps. After kAlone it yields its core while it spins.
constexpr Clock::duration kAlone = std::chrono::microseconds(50);
constexpr Clock::duration kAwake = std::chrono::milliseconds(1);
// Reads of state_ between two reads of the clock.
constexpr int kLooks = 64;

// Spins without burdening the core. Returns the time spent.
class Spin {
 public:
  Clock::duration Once() {
    _mm_pause();
    if (++looks_ % kLooks != 0) return waited_;
    if (waited_ >= kAlone) std::this_thread::yield();
    waited_ = Clock::now() - start_;
    return waited_;
  }

 private:
  Clock::time_point start_ = Clock::now();
  Clock::duration waited_{0};
  int looks_ = 0;
};

struct Own {
  bool use = false;
  bool inside = false;
  std::unique_ptr<ThreadTeam> team;
};

Own& OwnOfThread() {
  static thread_local Own own;
  return own;
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  helpers_.reserve(static_cast<size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
}

ThreadTeam::~ThreadTeam() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::Run(int most, const void* f, Body body) noexcept {
  const uint64_t may_enter =
      static_cast<uint64_t>(std::clamp(most - 1, 0, static_cast<int>(helpers_.size())));
  bool& inside = OwnOfThread().inside;
  inside = true;
  if (may_enter > 0) {
    f_ = f;
    body_ = body;
    arrived_.store(0, std::memory_order_relaxed);
    const uint64_t call = state_.load(std::memory_order_relaxed) / kCall + 1;
    // Before reading asleep_: a helper that falls asleep sets asleep_ first and then reads state_.
    state_.store(call * kCall + kOpen + may_enter * kMayEnter);
    if (asleep_.load() && asleep_.exchange(false)) state_.notify_all();
  }
  body(f, 0);
  if (may_enter > 0) {
    uint64_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (Spin spin; state % kMayEnter != 0; spin.Once()) {
      state = state_.load(std::memory_order_acquire);
    }
  }
  inside = false;
}

void ThreadTeam::Help() {
  OwnOfThread().inside = true;
  uint64_t done = 0;  // calls
  for (;;) {
    uint64_t state = state_.load(std::memory_order_acquire);
    for (Spin spin; state / kCall == done || !MayEnter(state);
         state = state_.load(std::memory_order_acquire)) {
      if ((state & kStop) != 0) return;
      if (spin.Once() < kAwake) continue;
      asleep_.store(true);
      state = state_.load();
      if (state / kCall != done && MayEnter(state)) break;
      if ((state & kStop) == 0) state_.wait(state);
      spin = Spin();
    }
    while (MayEnter(state)) {
      if (!state_.compare_exchange_weak(state, state - kMayEnter + kInside,
                                        std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      done = state / kCall;
      body_(f_, 1 + arrived_.fetch_add(1, std::memory_order_relaxed));
      state_.fetch_sub(kInside, std::memory_order_release);
      break;
    }
  }
}

ThreadTeam* OwnTeam() {
  Own& own = OwnOfThread();
  return own.use ? own.team.get() : nullptr;
}

void UseOwnTeam(bool use) {
  Own& own = OwnOfThread();
  own.use = use;
  if (!use) return;
  const int threads = omp_get_max_threads();
  if (own.team != nullptr && own.team->threads() == threads) return;
  own.team.reset();
  own.team = std::make_unique<ThreadTeam>(threads);
}

bool InsideTeam() { return OwnOfThread().inside; }

}  // namespace espalier
