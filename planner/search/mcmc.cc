#include "planner/search/mcmc.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier {
namespace {

// Annealing temperatures at the start and the end: the relative slowdown that is accepted with
// probability 1/e.
constexpr double kHot = 0.1;
constexpr double kCold = 0.001;
constexpr int kReturns = 10;        // to the best placement
constexpr int64_t kAskEvery = 256;  // proposals between polls of `stop`

// Draws the acceptance threshold in advance, so that simulation can stop as soon as rejection is
// certain: u < exp(-worse / scale) is worse < -ln(u) * scale.
Picoseconds AcceptBelow(Picoseconds current, double scale, double u) {
  const double worse = -std::log(u) * scale;
  if (!(worse < 1e18)) return Simulator::kNoLimit;
  return current + static_cast<Picoseconds>(std::ceil(worse));
}

}  // namespace

absl::Status GoTo(const Placement& placement, Simulator* simulator) {
  std::vector<Simulator::Change> changes;
  for (size_t n = 0; n < placement.size(); ++n) {
    if (simulator->placement()[n] == placement[n]) continue;
    changes.emplace_back(static_cast<NodeId>(n), placement[n]);
  }
  if (changes.empty()) return absl::OkStatus();
  absl::StatusOr<Picoseconds> cost = simulator->Propose(changes);
  if (!cost.ok()) return cost.status();
  simulator->Accept();
  return absl::OkStatus();
}

absl::StatusOr<McmcResult> RunMcmc(Moves& moves, Simulator* simulator, const McmcOptions& options) {
  Random random(options.seed);
  McmcResult result;
  result.best = simulator->placement();
  result.cost = simulator->cost();
  const int64_t back_every = options.alpha.has_value()
                                 ? std::clamp<int64_t>(options.budget / 100, 1, 1000)
                                 : options.budget / kReturns + 1;
  Picoseconds current = result.cost;
  std::vector<Simulator::Change> changes;
  for (int64_t step = 0; step < options.budget && !moves.space().nodes().empty(); ++step) {
    if (options.stop && step % kAskEvery == 0 && options.stop()) break;
    moves.Draw(simulator->placement(), &random, &changes);
    ++result.proposals;
    if (!changes.empty()) {
      const double done = static_cast<double>(step) / static_cast<double>(options.budget);
      const double scale = options.alpha.has_value()
                               ? 1e9 / *options.alpha
                               : static_cast<double>(current) * kHot * std::pow(kCold / kHot, done);
      const Picoseconds limit = AcceptBelow(current, scale, random.Real());
      absl::StatusOr<Picoseconds> cost = simulator->Propose(changes, limit);
      if (!cost.ok()) return cost.status();
      if (*cost < limit) {
        simulator->Accept();
        current = *cost;
        if (options.top_placements != nullptr) {
          options.top_placements->Offer(current, simulator->time(), simulator->placement());
        }
        ++result.accepted;
        if (current < result.cost) {
          result.cost = current;
          result.best = simulator->placement();
        }
      } else {
        simulator->Reject();
      }
    }
    if ((step + 1) % back_every == 0) {
      if (absl::Status status = GoTo(result.best, simulator); !status.ok()) return status;
      current = result.cost;
      if (options.progress) {
        options.progress(static_cast<double>(step + 1) / static_cast<double>(options.budget));
      }
    }
  }
  if (absl::Status status = GoTo(result.best, simulator); !status.ok()) return status;
  return result;
}

}  // namespace espalier
