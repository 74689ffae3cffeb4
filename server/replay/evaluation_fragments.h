// Graphs as questions of an evaluation: evaluated for each batch, without its padding, and reduced
// over the batches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "ops/tensor/shape.h"
#include "server/replay/batch_layouts.h"
#include "server/replay/graph_fragments.h"

namespace espalier {

struct EvaluatedBatches {
  int64_t count = 0;
  int64_t size = 0;                    // examples of each
  int64_t examples = 0;                // the rest of the last batch is padding
  std::string prefix = "evaluation.";  // of answers: EvaluationPrefix

  bool has_padding() const { return examples < count * size; }
};

// What a graph reads of each batch.
struct EvaluationInput {
  TensorType batch;
  BatchLayout layout = BatchLayout::kNone;
  std::optional<Dims> twice;  // in a batch of twice the size; nullopt: not known
};

// Immutable. Of an output, its answer is
//  - the rows of all examples, if its first dimension follows that of the batch;
//  - otherwise, of floating-point numbers, their mean over the batches, weighted by the examples of
//    each, as Keras averages;
//  - otherwise, of integers and truth values, which count something, their sum, as I64.
class EvaluationFragments {
 public:
  using InputOf = std::function<absl::StatusOr<EvaluationInput>(const ProbeExpression& source)>;

  EvaluationFragments() = default;
  // InvalidArgument for an output that depends on the size of a batch in another way, or of which
  // that is not known as its graph fixes this size; and for one whose rows need more than 1 GiB.
  // Other errors as of GraphFragments::Make.
  static absl::StatusOr<EvaluationFragments> Make(const OpRegistry& registry,
                                                  const std::vector<GraphFragment>& fragments,
                                                  const InputOf& input_of,
                                                  const EvaluatedBatches& batches);

  // Probes of tensors, in full: each once.
  const std::vector<ProbeExpression>& sources() const { return whole_.sources(); }
  // Names, without the prefix of evaluations, and types of the answers.
  std::vector<std::pair<std::string, TensorType>> answers() const;
  // Names of the answers that leave the last batch out, as their graphs cannot be evaluated without
  // its padding.
  const std::vector<std::string>& without_last() const { return without_last_; }

 private:
  friend class EvaluatedFragments;

  enum class Over { kRows, kMean, kSum };
  struct Answer {
    Over over = Over::kMean;
    TensorType type;
    int64_t rows_per_example = 0;  // of kRows
  };

  EvaluatedBatches batches_;
  GraphFragments whole_;  // for batches without padding
  GraphFragments last_;   // for the examples of the last batch, if that has padding
  std::map<std::string, int64_t> rows_per_example_;  // by HistoryRow.name of the source
  std::vector<std::pair<std::string, Answer>> answers_;
  std::vector<std::string> without_last_;
};

// The answers of one evaluation. Not thread-safe.
class EvaluatedFragments {
 public:
  // `fragments` must outlive it.
  explicit EvaluatedFragments(const EvaluationFragments* fragments);

  // Takes what sources() are in a batch, by HistoryRow.name. Batches come in order. Errors as of
  // GraphFragments::Evaluate.
  absl::Status Add(int64_t batch, std::map<std::string, v1::TensorValue> given);
  // In the order of the graphs. Once, after the last batch.
  std::vector<std::pair<std::string, v1::TensorValue>> Finish();

 private:
  struct Sum {
    std::vector<double> weighted;  // of a mean
    std::vector<int64_t> counted;  // of a sum
    double weight = 0;
    std::string rows;
  };

  const EvaluationFragments& fragments_;
  std::map<std::string, Sum> sums_;  // by name of the answer
  int64_t next_ = 0;                 // batch
};

}  // namespace espalier
