// Trains a plan with one process per rank, connected by Gloo over loopback as workers are, and
// times the steps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/plan.pb.h"

namespace espalier {

struct RanksOptions {
  std::string workload;
  int warmup = 3;
  int steps = 15;
  int profiled_steps = 3;
  int threads = 1;
};

struct RanksResult {
  double median_seconds = 0;  // of a step; of the slowest rank
  double first_loss = 0, last_loss = 0;
  // By rank: seconds per step by operator ("linear_grad", "all_reduce"), from steps run for this
  // alone. Communication includes waiting for peers.
  std::vector<std::map<std::string, double>> profiles;
};

absl::StatusOr<RanksResult> RunRanks(const proto::Plan& plan, const RanksOptions& options);

// Latency and bandwidth between two such processes.
struct LinkMeasurement {
  proto::Link ping_pong;  // one direction at a time, as workers measure at the start of a job
  proto::Link sum;        // from sums over both of 64 bytes and 1 MiB
  proto::Link large_sum;  // from 64 bytes and 4 MiB
};
absl::StatusOr<LinkMeasurement> MeasureLinkBetweenRanks();

// What a process started by the above does instead of its own main. False if this is none of them.
bool IsRankProcess(int argc, char** argv);
int RankMain(int argc, char** argv);

}  // namespace espalier
