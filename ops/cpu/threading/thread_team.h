// A team of threads for the short loops of serving programs: a step of a millisecond has hundreds
// of them, so OpenMP's fork and join cost too much, and a descheduled thread must not be waited
// for. The caller is a member of the team; the others help if they arrive in time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace espalier {

// Used by one thread, its owner.
class ThreadTeam {
 public:
  // A team of `threads` threads including the owner; at least 1.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(0) in this thread and body(1), body(2), ... up to body(most - 1) in others; a thread
  // takes the next number when it arrives. Does not wait for threads that have not arrived when
  // body(0) returns: bodies must take their work from a shared pool (WorkStealingRanges). All
  // writes by bodies are visible on return. Must not be called from within a body.
  template <typename F>
  void Run(int most, const F& body) {
    Run(most, &body, [](const void* f, int number) { (*static_cast<const F*>(f))(number); });
  }

 private:
  using Body = void (*)(const void* f, int number);

  void Run(int most, const void* f, Body body) noexcept;
  void Help();

  // Packed, from the top: number of the call, whether it is open, helpers that may still enter,
  // helpers inside.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<bool> asleep_{false};  // whether a helper may be asleep
  alignas(64) const void* f_ = nullptr;
  Body body_ = nullptr;
  std::atomic<int> arrived_{0};
  std::vector<std::thread> helpers_;
};

// Returns the calling thread's team, of as many threads as omp_set_num_threads says. Returns null
// if the thread did not ask for one; its loops then use OpenMP.
ThreadTeam* OwnTeam();

// Makes the calling thread use a team, or OpenMP again. Cheap if nothing changes. While a team is
// in use, kernels must not call libraries that use OpenMP: both kinds of threads would spin on the
// same cores.
void UseOwnTeam(bool use);

// Whether the calling thread is inside a body of a team. Loops there run serially.
bool InsideTeam();

}  // namespace espalier
