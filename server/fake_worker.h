// A worker over real gRPC that computes nothing: it joins, keeps its lease, accepts programs,
// "runs" steps of a fixed length whose loss is a function of the step alone, and writes and opens
// real checkpoints. As real ones do, it takes no job while it runs another, and joins anew, after
// its lease is gone, once it is free. For tests of the coordinator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier {

struct FakeWorkerOptions {
  std::string coordinator;
  std::string name;
  absl::Duration step = absl::Milliseconds(5);
  int64_t memory_bytes = int64_t{1} << 30;
  // Run fails with this at this step.
  int64_t fail_at = -1;
  absl::Status failure;
};

class FakeWorker {
 public:
  static std::unique_ptr<FakeWorker> Start(const FakeWorkerOptions& options);
  virtual ~FakeWorker() = default;

  // As if the process had been killed: connections break, no heartbeat any more.
  virtual void Kill() = 0;
  // As if the process had been stopped: connections stand, but nothing moves.
  virtual void Freeze() = 0;
  // As if a step took very long, until LetGo: it keeps its lease, but what runs does not stop.
  virtual void Hold() = 0;
  virtual void LetGo() = 0;
  virtual int64_t first_step_of_last_run() const = 0;
  virtual int runs() const = 0;

  // The loss that all ranks together report for a step.
  static double LossOf(int64_t step) { return 4.0 / (1.0 + 0.1 * static_cast<double>(step)); }
};

}  // namespace espalier
