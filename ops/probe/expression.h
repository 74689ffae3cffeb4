// Probes as users write them: "norm(grad(layers.*.q_proj.weight))", "histogram(relu_1, 64)".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct ProbeTarget {
  enum Kind {
    kValue,   // of the graph: activations, the loss
    kParam,   // before the step
    kGrad,    // of the loss with respect to a parameter or value
    kUpdate,  // a parameter after the step minus before
    kState,   // of the optimizer
    kBatch,   // a column of the batch
  };
  Kind kind = kValue;
  std::string name;  // "*" stands for any characters (ops/graph/name_pattern.h)
  std::string slot;  // of kState: "adam_m"; as `name`

  bool has_wildcard() const;
  bool operator==(const ProbeTarget&) const = default;
};

// "relu_1", "grad(dense/kernel)", "state(dense/kernel, adam_m)": HistoryRow.name. Names with other
// characters than bare ones may have are quoted.
std::string ToString(const ProbeTarget& target);

struct Reduction {
  enum Kind {
    kFull,
    kNorm,
    kMean,
    kStd,
    kMin,
    kMax,
    kCountNan,
    kHistogram,
    kQuantiles,
    kSample,
    kTopK,
    kConfusion,
  };
  Kind kind = kFull;
  int64_t count = 0;  // ranges of kHistogram, elements of kSample and kTopK
  std::optional<std::pair<double, double>> bounds;  // of kHistogram
  std::vector<double> quantiles;                    // of kQuantiles

  // Whether the result is one number.
  bool is_scalar() const;
  bool operator==(const Reduction&) const = default;
};

// "norm", "histogram(64)", "quantiles(0.1, 0.5)": HistoryRow.reduction and RankProbe.reduction.
std::string ToString(const Reduction& reduction);

// The inverse of ToString; arguments with defaults may be missing.
absl::StatusOr<Reduction> ParseReduction(absl::string_view text);

struct ProbeExpression {
  std::vector<ProbeTarget> targets;  // kConfusion: logits and labels; otherwise one
  Reduction reduction;

  bool operator==(const ProbeExpression&) const = default;
};

// "histogram(grad(dense/kernel), 64)", with all defaults; the reduction `full` is left out.
std::string ToString(const ProbeExpression& probe);

// Targets as in HistoryRow.name: "grad(x)", or "logits, batch(labels)".
std::string TargetsToString(const ProbeExpression& probe);

// Parses REDUCTION(TARGET[, ARGUMENT...]) or TARGET. An INVALID_ARGUMENT error says what is
// accepted at which place, with the text and a mark below it.
absl::StatusOr<ProbeExpression> ParseProbe(absl::string_view text);

}  // namespace espalier
