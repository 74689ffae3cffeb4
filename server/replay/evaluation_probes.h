// What a replay asks of an evaluation, and where its programs have it.
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
#include "ops/graph/graph.h"
#include "ops/tensor/shape.h"
#include "server/replay/derived_values.h"
#include "server/replay/evaluation_fragments.h"
#include "server/replay/probe_set.h"
#include "server/replay/program_questions.h"

namespace espalier {

// Begins the names of an evaluation's answers, so that those of different examples are told apart:
// "evaluation.loss" for the examples that the job kept apart, "evaluation[book-0a1b].loss" for
// those of the artifact, "evaluation[s3://bucket/book.npz].loss" for those of another URI.
std::string EvaluationPrefix(const v1::ReplaySpec& replay);

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
  FoundProbes sources;    // of `derived` and `fragments`, in full, numbered from 0
  DerivedValues derived;  // computes in each batch, in full, what no program has
  EvaluationFragments fragments;
  LackingFragments lacking_fragments;
  EvaluatedBatches batches;
  std::vector<std::string> notes;  // what the answers leave out, a sentence each
};

// Finds what is asked in the evaluation programs of all ranks, which were lowered from `graph`, and
// in `original_graph`, as FindProgramProbes. InvalidArgument for probes of what is not in an
// evaluation, such as gradients, also for parameters (see CheckpointAnswers), which graphs may
// read; and for answers that need more than 1 GiB of elements. Other errors as FindProgramProbes.
absl::StatusOr<EvaluationProbes> FindEvaluationProbes(
    const OpRegistry& registry, const Graph& graph, const std::vector<v1::Program>& programs,
    const ReplayQuestions& asked, const EvaluatedBatches& batches,
    const std::function<absl::StatusOr<Graph>()>& original_graph);

}  // namespace espalier
