// Answers probes of an evaluation: each batch's parts are put together as if one batch had all
// examples.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/worker.pb.h"
#include "server/replay/evaluation_fragments.h"
#include "server/replay/evaluation_probes.h"
#include "server/replay/step_answers.h"

namespace espalier {

// The answers of one evaluation. Tensors of all batches follow each other along dimension 0, in the
// order of the examples, without padding; scalars become one element per batch. Not thread-safe.
class EvaluationAnswers {
 public:
  // `probes` must outlive it.
  explicit EvaluationAnswers(const EvaluationProbes* probes);

  // Takes what a rank sends of a batch. Internal for what the rank was not asked for, or has sent
  // before. Other errors as DerivedValues::Complete.
  absl::Status Add(size_t rank, const v1::ProbeResults& results);

  // Returns the rows, with names that begin with the prefix, in the order of the probes, then of
  // the graphs. Internal unless all ranks have sent all of it. Once, last.
  absl::StatusOr<std::vector<v1::HistoryRow>> Finish(int64_t steps_done);

 private:
  // Takes the values of a batch from which others are computed, and computes these and the graphs.
  absl::Status AddSources(size_t rank, const v1::ProbeResults& results);
  absl::StatusOr<v1::ProbeValue> ValueOf(const NamedProbe& probe);
  // All elements of a target, without padding.
  absl::StatusOr<v1::TensorValue> Collect(const NamedProbe& probe, size_t target);
  // Labels as I64, with -1, which is no class, in rows of padding.
  absl::StatusOr<v1::ProbePart> LabelsOf(const NamedProbe& probe);

  const EvaluationProbes& probes_;
  // By rank, number and batch.
  std::vector<std::vector<std::vector<bool>>> expected_;
  int64_t missing_ = 0;
  std::vector<std::vector<v1::ProbePart>> parts_;  // by number
  StepAnswers sources_;                            // by batch
  EvaluatedFragments fragments_;
  std::vector<bool> computed_;  // by batch: nothing is left to compute
};

}  // namespace espalier
