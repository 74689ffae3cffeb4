// Answers probes of an evaluation: each batch's parts are put together as if one batch had all
// examples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/worker.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "ops/tensor/shape.h"
#include "server/replay/derived_values.h"
#include "server/replay/probe_set.h"
#include "server/replay/step_answers.h"

namespace espalier {

// Begins the names of an evaluation's answers, so that those of different examples are told apart:
// "evaluation.loss" for the examples that the job kept apart, "evaluation[book-0a1b].loss" for
// those of the artifact, "evaluation[s3://bucket/book.npz].loss" for those of another URI.
std::string EvaluationPrefix(const v1::ReplaySpec& replay);

struct EvaluatedBatches {
  int64_t count = 0;
  int64_t size = 0;                    // examples of each
  int64_t examples = 0;                // the rest of the last batch is padding
  std::string prefix = "evaluation.";  // of answers: EvaluationPrefix
};

// What the ranks read in each batch of an evaluation, and what is made of it.
struct EvaluationProbes {
  struct Target {
    std::string computed;          // its name if `derived` has it, or it is one of its sources
    TensorType batch;              // the tensor in each batch
    int64_t rows_per_example = 0;  // of dimension 0; 0: they do not belong to examples
    bool collected = false;        // all elements are asked for, and reduced once all are there
    bool whole = true;             // false: the last batch, which has padding, is left out
  };
  // by_rank: LoadProgramRequest.evaluation_probes, of which those from `first_source` on are
  // `sources`.
  FoundProbes found;
  std::vector<Target> targets;  // by number
  int first_source = 0;
  FoundProbes sources;    // of `derived`, in full, numbered from 0
  DerivedValues derived;  // computes in each batch, in full, what no program has
  EvaluatedBatches batches;
  std::vector<std::string> notes;  // what the answers leave out, a sentence each
};

// Finds the probes in the evaluation programs of all ranks, which were lowered from `graph`, and in
// `original_graph`, as FindProgramProbes. InvalidArgument for what is not in an evaluation, such as
// gradients, also for parameters (see CheckpointAnswers); and for answers that need more than 1 GiB
// of elements. Other errors as FindProgramProbes.
absl::StatusOr<EvaluationProbes> FindEvaluationProbes(
    const OpRegistry& registry, const Graph& graph, const std::vector<v1::Program>& programs,
    const std::vector<ProbeExpression>& probes, const EvaluatedBatches& batches,
    const std::function<absl::StatusOr<Graph>()>& original_graph);

// The answers of one evaluation. Tensors of all batches follow each other along dimension 0, in the
// order of the examples, without padding; scalars become one element per batch. Not thread-safe.
class EvaluationAnswers {
 public:
  // `probes` must outlive it.
  explicit EvaluationAnswers(const EvaluationProbes* probes);

  // Takes what a rank sends of a batch. Internal for what the rank was not asked for, or has sent
  // before. Other errors as DerivedValues::Complete.
  absl::Status Add(size_t rank, const v1::ProbeResults& results);

  // Returns the rows, with names that begin with the prefix, in the order of the probes.
  // Internal unless all ranks have sent all of it. Once, last.
  absl::StatusOr<std::vector<v1::HistoryRow>> Finish(int64_t steps_done);

 private:
  // Takes the values of a batch from which others are computed, and computes these.
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
  std::vector<bool> computed_;                     // by batch: nothing is left to compute
};

}  // namespace espalier
