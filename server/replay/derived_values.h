// Values of a model that its programs do not have, as rewrites joined their operators with others,
// and gradients of such values: the coordinator computes them again, by the original operators and
// their gradients (ops/graph/autodiff.h), from values and gradients that it reads. The programs
// stay as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "planner/lowering/probe_points.h"

namespace espalier {

// Returns the bound graph of a job before rewrites: `model` and `planned` are PreparedJob's model
// and graph.
absl::StatusOr<Graph> GraphBeforeRewrites(const OpRegistry& registry, const Graph& model,
                                          const Graph& planned, int64_t batch_size);

// Immutable. Values are those of the plan's programs within rounding.
class DerivedValues {
 public:
  // Whether the programs have what the target names, so that a replay can read it.
  using Readable = std::function<bool(const ProbeTarget& target)>;

  // Derives those of a replay's `probes` that have no wildcard and name a value of `original` (see
  // GraphBeforeRewrites), or the gradient of a computed one, that is not readable. InvalidArgument
  // if their sources have more than 256 MiB in a step.
  static absl::StatusOr<DerivedValues> Make(const OpRegistry& registry, Graph original,
                                            const Readable& readable,
                                            const std::vector<ProbeExpression>& probes);
  // The same where a replay reads what `points` has.
  static absl::StatusOr<DerivedValues> Make(const OpRegistry& registry, Graph original,
                                            const ProbePoints& points,
                                            const std::vector<ProbeExpression>& probes);

  // Those of the probes that are derived. FindProbes is given the others, then sources().
  std::vector<ProbeExpression> probes() const;
  // Of the others that name a value that is not readable, with the reason; as FoundProbes.lacking.
  const std::vector<std::pair<std::string, absl::Status>>& lacking() const { return lacking_; }
  // Probes of tensors, in full, from which Complete computes.
  const std::vector<ProbeExpression>& sources() const { return sources_; }
  // What probes() read and the programs do not have: "bn", "grad(bn)".
  const std::set<std::string>& values() const { return values_; }
  // Of what one of probes() reads; nullopt if that is not a value of the graph.
  std::optional<TensorType> TypeOf(const ProbeExpression& probe) const;

  // Takes the rows of a step, of the other probes and sources(), in this order. Returns them
  // without those of sources(), and with the answers to probes(). `training`: the step is one of
  // training, not of an evaluation. Internal if a source is missing or of another shape.
  absl::StatusOr<std::vector<v1::HistoryRow>> Complete(std::vector<v1::HistoryRow> rows,
                                                       int64_t step, bool training) const;

 private:
  struct Derived {
    ProbeExpression probe;
    std::vector<NodeId> nodes;  // to evaluate, in this order
  };
  // What a value is computed from.
  struct Needs {
    std::map<std::string, ProbeTarget> sources;  // by ToString
    std::vector<NodeId> nodes;                   // operands first
  };

  // Adds the gradients to graph_.
  absl::Status Differentiate(const OpRegistry& registry);
  // What a value or gradient is in graph_; kNoValue if it is not there, or of another kind.
  ValueId Find(const ProbeTarget& target) const;
  // How probes call it; nullopt for a gradient with respect to one of several readers.
  std::optional<ProbeTarget> TargetOf(ValueId value) const;
  // Whether it is to be derived; of a gradient that the loss does not have, too.
  bool IsRemoved(const ProbeTarget& target, const Readable& readable) const;
  absl::Status AddNeeds(const OpRegistry& registry, ValueId value, const Readable& readable,
                        Needs* needs) const;
  // "; nearest to it there is 'act'", or nothing.
  std::string NearestReadable(const ProbeTarget& target, const Readable& readable) const;

  Graph graph_;                    // of the model; behind that, its gradients
  size_t model_values_ = 0;        // of graph_, without gradients
  std::vector<ValueId> gradient_;  // by value of the model, once they are there
  std::vector<ValueId> gradient_of_;
  std::vector<Derived> derived_;
  std::map<ValueId, std::string> source_of_;  // value -> HistoryRow.name
  std::vector<ProbeExpression> sources_;
  std::vector<std::pair<std::string, absl::Status>> lacking_;
  std::set<std::string> values_;
};

}  // namespace espalier
