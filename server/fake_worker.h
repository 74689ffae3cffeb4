// A worker over real gRPC that computes nothing, for tests of the coordinator. It joins, keeps its
// lease, accepts programs, checks that the examples of a STREAM are there, "runs" steps of fixed
// length whose loss depends on the step only, and reads and writes real checkpoints. As a real
// worker, it runs one job at a time, and joins again, once idle, after its lease has expired.
#pragma once

#include <cstdint>
#include <functional>
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
  std::string advertise;                // the address that it joins with; empty: its own
  int unheard_checkpoint_requests = 0;  // so many calls of CheckpointAt fail first
  double checkpoint_seconds = 0;        // that each shard says it has cost
  // Run fails with `failure` at this step; -1: never.
  int64_t fail_at = -1;
  absl::Status failure;
  // The merged loss of an evaluation after so many steps; null: 1.
  std::function<double(int64_t steps_done)> evaluation;
  double evaluation_seconds = 0;  // that it says to have taken
};

class FakeWorker {
 public:
  static std::unique_ptr<FakeWorker> Start(const FakeWorkerOptions& options);
  virtual ~FakeWorker() = default;

  // As if killed: connections break and heartbeats stop.
  virtual void Kill() = 0;
  // As if stopped (SIGSTOP): connections stay open but nothing moves.
  virtual void Freeze() = 0;
  // Makes the current step last until Unstall: the lease is kept, but Stop has no effect.
  virtual void Stall() = 0;
  virtual void Unstall() = 0;
  // Makes the checkpoint store block: shards are written once it is released, and steps go on
  // meanwhile, as with a real worker.
  virtual void HoldShards() = 0;
  virtual void ReleaseShards() = 0;
  virtual int64_t first_step_of_last_run() const = 0;
  virtual int runs() const = 0;
  // Why the coordinator did not let it join the last time; empty: it did, or was not asked.
  virtual std::string refusal() const = 0;

  // The merged loss of all ranks for a step.
  static double LossOf(int64_t step) { return 4.0 / (1.0 + 0.1 * static_cast<double>(step)); }
};

}  // namespace espalier
