// Trains a plan with one process per rank, connected as workers are, and times the steps; times
// messages between such processes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// How the processes talk: as ranks of one host, or as ranks of hosts that loopback connects.
enum class RankNetwork { kSharedMemory, kEncrypted, kPlain };

struct RankProcessOptions {
  std::string workload;
  int64_t batch = 0;  // 0: the workload's default
  int warmup = 3;
  int steps = 15;
  int profiled_steps = 3;
  int threads = 1;
  RankNetwork network = RankNetwork::kSharedMemory;
};

struct RankProcessResult {
  double median_seconds = 0;  // of a step; of the slowest rank
  double first_loss = 0, last_loss = 0;
  // By rank: seconds per step by operator ("linear_grad", "all_reduce"), from separate profiled
  // steps. Communication includes waiting for peers.
  std::vector<std::map<std::string, double>> profiles;
};

absl::StatusOr<RankProcessResult> TrainInRankProcesses(const v1::Plan& plan,
                                                       const RankProcessOptions& options);

// Measures messages and collectives between `world` processes.
absl::StatusOr<v1::CommunicationProfile> MeasureCommunicationBetweenRanks(int world);

struct TransportTimes {
  // Seconds by bytes, one for each round: of a message, as half of a ping-pong, and of an f32
  // all-reduce.
  std::map<int64_t, std::vector<double>> message, all_reduce;
};
// Times two processes that are connected in each of these ways. They take turns, `rounds` times for
// each size.
absl::StatusOr<std::vector<TransportTimes>> MeasureTransports(
    const std::vector<RankNetwork>& networks, const std::vector<int64_t>& bytes, int rounds);

// A process started by the functions above runs RankMain instead of its own main. IsRankProcess
// returns whether this is one.
bool IsRankProcess(int argc, char** argv);
int RankMain(int argc, char** argv);

}  // namespace espalier
