#include "planner/machine/collectives.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status CheckBytes(double bytes) {
  if (bytes >= 0 && std::isfinite(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("collective: bytes is ", bytes, "; it must be 0 or more and finite"));
}

absl::Status CheckHas(const CollectiveModel& model, CollectiveAlgorithm algorithm) {
  if (model.Has(algorithm)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "collective: ", Name(algorithm), " cannot run on these ", model.num_ranks(), " ranks; ",
      algorithm == CollectiveAlgorithm::kHalvingDoubling
          ? "it needs a power of two"
          : "it needs a level of the topology that cuts them into 2 or more equal groups of 2 or "
            "more"));
}

}  // namespace

const char* Name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kTree:
      return "tree";
    case CollectiveAlgorithm::kHalvingDoubling:
      return "halving_doubling";
    case CollectiveAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "unknown";
}

double CollectiveModel::Slowest(const Phase& phase, double bytes, const CollectiveFit& fit,
                                Line* line) const {
  double slowest = -1;
  for (int i = phase.first_line; i < phase.end_line; ++i) {
    // Same order of operations as rates.h, for equal results.
    const double seconds = fit.latency_factor * lines_[i].latency +
                           fit.bandwidth_factor * (bytes / phase.divisor / lines_[i].bandwidth);
    if (seconds <= slowest) continue;
    slowest = seconds;
    *line = lines_[i];
  }
  return slowest;
}

double CollectiveModel::Seconds(CollectiveAlgorithm algorithm, double bytes,
                                const CollectiveFit& fit) const {
  double seconds = 0;
  Line line;
  for (const Phase& phase : phases_[static_cast<int>(algorithm)]) {
    seconds += phase.rounds * Slowest(phase, bytes, fit, &line);
  }
  return seconds;
}

CollectiveModel::Parts CollectiveModel::Split(CollectiveAlgorithm algorithm, double bytes,
                                              const CollectiveFit& fit) const {
  Parts parts;
  Line line;
  for (const Phase& phase : phases_[static_cast<int>(algorithm)]) {
    Slowest(phase, bytes, fit, &line);
    parts.latency += phase.rounds * line.latency;
    parts.transfer += phase.rounds * (bytes / phase.divisor / line.bandwidth);
  }
  return parts;
}

CollectiveTime CollectiveModel::Best(double bytes, const CollectiveFits& fits) const {
  CollectiveTime best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (int a = 0; a < kNumCollectiveAlgorithms; ++a) {
    if (!has_[a]) continue;
    const auto algorithm = static_cast<CollectiveAlgorithm>(a);
    if (!fits[a].available && algorithm != CollectiveAlgorithm::kRing) continue;
    const double seconds = Seconds(algorithm, bytes, fits[a]);
    if (seconds < best.seconds) best = {seconds, algorithm};
  }
  return best;
}

absl::StatusOr<CollectiveTime> BestCollective(const Topology& topology, CollectiveModel::Kind kind,
                                              const std::vector<int>& ranks, double bytes,
                                              const CollectiveFits& fits) {
  if (absl::Status s = CheckBytes(bytes); !s.ok()) return s;
  const absl::StatusOr<CollectiveModel> model = CollectiveModel::Create(topology, kind, ranks);
  if (!model.ok()) return model.status();
  return model->Best(bytes, fits);
}

absl::StatusOr<double> CollectiveSeconds(const Topology& topology, CollectiveModel::Kind kind,
                                         const std::vector<int>& ranks,
                                         CollectiveAlgorithm algorithm, double bytes,
                                         const CollectiveFit& fit) {
  if (absl::Status s = CheckBytes(bytes); !s.ok()) return s;
  const absl::StatusOr<CollectiveModel> model = CollectiveModel::Create(topology, kind, ranks);
  if (!model.ok()) return model.status();
  if (absl::Status s = CheckHas(*model, algorithm); !s.ok()) return s;
  return model->Seconds(algorithm, bytes, fit);
}

absl::StatusOr<CollectiveFit> FitCollective(const CollectiveModel& model,
                                            CollectiveAlgorithm algorithm,
                                            const std::vector<CollectiveSample>& samples) {
  if (absl::Status s = CheckHas(model, algorithm); !s.ok()) return s;
  if (model.num_ranks() < 2) {
    return absl::InvalidArgumentError("collective: one rank alone sends nothing to fit");
  }
  if (samples.empty()) {
    return absl::InvalidArgumentError("collective: no samples; there must be 1 or more");
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (absl::Status s = CheckBytes(samples[i].bytes); !s.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("samples[", i, "]: ", s.message()));
    }
    if (!(samples[i].seconds > 0) || !std::isfinite(samples[i].seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("samples[", i, "]: collective: seconds is ",
                                                     samples[i].seconds,
                                                     "; it must be greater than 0 and finite"));
    }
  }
  CollectiveFit fit;
  // The flow that a step waits for depends on the factors: solve and re-select until they are
  // stable.
  constexpr int kMaxRounds = 50;
  for (int round = 0; round < kMaxRounds; ++round) {
    double ll = 0, lt = 0, tt = 0, l1 = 0, t1 = 0;
    for (const CollectiveSample& sample : samples) {
      const CollectiveModel::Parts parts = model.Split(algorithm, sample.bytes, fit);
      const double l = parts.latency / sample.seconds, t = parts.transfer / sample.seconds;
      ll += l * l;
      lt += l * t;
      tt += t * t;
      l1 += l;
      t1 += t;
    }
    const CollectiveFit old = fit;
    const double determinant = ll * tt - lt * lt;
    if (ll == 0 || tt == 0) {
      if (ll > 0) fit.latency_factor = l1 / ll;
      if (tt > 0) fit.bandwidth_factor = t1 / tt;
    } else if (determinant <= 1e-12 * ll * tt) {
      fit.latency_factor = fit.bandwidth_factor = (l1 + t1) / (ll + 2 * lt + tt);
    } else {
      fit.latency_factor = (l1 * tt - t1 * lt) / determinant;
      fit.bandwidth_factor = (t1 * ll - l1 * lt) / determinant;
      // A factor would be negative: set it to 0 and solve for the other.
      if (fit.latency_factor < 0) fit = {0, t1 / tt};
      if (fit.bandwidth_factor < 0) fit = {l1 / ll, 0};
    }
    const double change = std::abs(fit.latency_factor - old.latency_factor) +
                          std::abs(fit.bandwidth_factor - old.bandwidth_factor);
    if (!std::isfinite(change)) {
      return absl::InvalidArgumentError(
          "collective: the samples are too far from the model to compute with; check that bytes "
          "are bytes and seconds are seconds");
    }
    if (change <= 1e-12 * (fit.latency_factor + fit.bandwidth_factor)) break;
  }
  return fit;
}

}  // namespace espalier
