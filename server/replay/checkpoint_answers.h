// Answers probes of parameters and optimizer state from a job's checkpoints, without workers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "espalier/v1/replay.pb.h"
#include "ops/probe/expression.h"
#include "ops/tensor/view.h"
#include "server/replay/probe_set.h"
#include "server/replay/state_tensors.h"

namespace espalier {

// Whether all that the probe reads is in a checkpoint: param(...) and state(...).
bool AnsweredByCheckpoint(const ProbeExpression& probe);
// The name under which a checkpoint has a target of param(...) or state(...).
std::string TensorOf(const ProbeTarget& target);

// The answers for step n are those that a replay of step n gives, from the checkpoint of n steps:
// both are the values before that step. Immutable.
class CheckpointAnswers {
 public:
  // Finds the names in `tensors`, for instance of any of the job's checkpoints. The answers are
  // those of a replay with a plan for one worker, to the bit. InvalidArgument for a probe that is
  // not AnsweredByCheckpoint.
  static absl::StatusOr<CheckpointAnswers> Make(const StateTensors& tensors,
                                                const std::vector<ProbeExpression>& probes);
  // Those of `probes` that are AnsweredByCheckpoint, as `programs`, which they were found in,
  // answer them, to the bit: norm, mean and std depend in their last bits on how ranks split a
  // tensor. `lacking` stays empty.
  static CheckpointAnswers Make(const FoundProbes& probes,
                                const std::vector<v1::Program>& programs);

  // Probes for which there is no name, with the reason, as in FoundProbes.
  const std::vector<std::pair<std::string, absl::Status>>& lacking() const {
    return found_.lacking;
  }
  // Rows that Read returns.
  size_t size() const { return found_.probes.size(); }

  // Returns rows as StepAnswers does. Holds one tensor in memory at a time, and the answers. Errors
  // of `tensors`; InvalidArgument if these are of another model.
  absl::StatusOr<std::vector<v1::HistoryRow>> Read(StateTensors& tensors, int64_t steps_done) const;
  // The same of the checkpoint in `folder` of `store`. NotFound if there is none; DataLoss that
  // names the file if one is damaged.
  absl::StatusOr<std::vector<v1::HistoryRow>> Read(ObjectReader& store, const std::string& folder,
                                                   int64_t steps_done) const;

 private:
  // What is read of one tensor.
  struct Source {
    std::map<size_t, std::vector<TensorSpec>> parts;  // by rank
    std::map<int, Reduction> reductions;              // by number of the target in found_
  };

  FoundProbes found_;
  std::map<std::string, Source> sources_;  // by name of the tensor
};

}  // namespace espalier
