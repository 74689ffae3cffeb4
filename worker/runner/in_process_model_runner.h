// ModelRunner whose ranks are threads of one process. For tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collective/communicator.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {

class InProcessModelRunner : public ModelRunner {
 public:
  // Arguments are those of ProgramModelRunner::CreateRank, for each of `programs`. A rank fails if
  // a peer is silent for ten seconds.
  static absl::StatusOr<std::unique_ptr<InProcessModelRunner>> Create(
      const std::vector<v1::Program>& programs, const std::string& folder,
      const RunnerLimits& limits, int max_output_rows, const WeightMap& weights);

  RunnerLimits limits() const override { return limits_; }
  // Returns the error of the lowest rank that failed.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;

  ProgramModelRunner& rank(size_t r) { return *ranks_[r]; }
  size_t ranks() const { return ranks_.size(); }

 private:
  InProcessModelRunner() = default;

  RunnerLimits limits_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<ProgramModelRunner>> ranks_;
};

}  // namespace espalier
