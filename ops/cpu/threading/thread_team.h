// Threads for the short loops of serving programs: hundreds in a step of a millisecond, where
// OpenMP's fork and join take a large share, and where a thread that the system has put aside must
// not be waited for. The caller is one of the team; the others help if they come in time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace espalier {

// Used by one thread, its owner.
class ThreadTeam {
 public:
  // So many threads, the owner among them; at least 1.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(0) here and meanwhile body(1), body(2), ... in other threads, of which each takes
  // the next number when it comes, below `most`. Those that do not come before body(0) has ended
  // are not waited for: bodies take their work from what is shared (WorkStealingRanges). What they wrote
  // is seen when this returns. Not from within a body.
  template <typename F>
  void Run(int most, const F& body) {
    Run(most, &body, [](const void* f, int number) { (*static_cast<const F*>(f))(number); });
  }

 private:
  using Body = void (*)(const void* f, int number);

  void Run(int most, const void* f, Body body) noexcept;
  void Help();

  // The number of the call above a flag that it is open, how many may still enter, and how many
  // are inside.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<bool> asleep_{false};  // somebody may be
  alignas(64) const void* f_ = nullptr;
  Body body_ = nullptr;
  std::atomic<int> arrived_{0};
  std::vector<std::thread> helpers_;
};

// The calling thread's team of as many threads as it has for kernels (omp_set_num_threads), if it
// asked for one; otherwise null, and its loops are OpenMP's.
ThreadTeam* OwnTeam();

// Asks for one, or no longer. Cheap if nothing changes. Kernels that run then must not call
// libraries that use OpenMP: both kinds of threads would wait for work on the same cores.
void UseOwnTeam(bool use);

// Whether the calling thread is inside a body of a team: loops there are run by it alone.
bool InsideTeam();

}  // namespace espalier
