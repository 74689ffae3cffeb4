// Values of a model that its programs do not have, as rewrites joined their operators with others:
// the coordinator computes them again, by the original operators, from values that it reads. The
// programs stay as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"

namespace espalier {

// Immutable. Values are those of the plan's programs within rounding.
class DerivedValues {
 public:
  // Whether the programs have what the target names, so that a replay can read it.
  using Readable = std::function<bool(const ProbeTarget& target)>;

  // `original`: the bound model before rewrites (of PreparedJob.model), by whose names the probes
  // ask for values. Takes the probes that name a value of it which is not readable; their other
  // targets are, and none has a wildcard. What cannot be derived is in lacking(). InvalidArgument
  // if sources() have more than 256 MiB in a step. `original` is copied.
  static absl::StatusOr<DerivedValues> Make(const OpRegistry& registry, const Graph& original,
                                            const Readable& readable,
                                            const std::vector<ProbeExpression>& probes);

  // Probes to add to the replay's: tensors, in full, from which Answer computes.
  const std::vector<ProbeExpression>& sources() const { return sources_; }
  // As FoundProbes.lacking.
  const std::vector<std::pair<std::string, absl::Status>>& lacking() const { return lacking_; }
  // What is computed again from what, a sentence for each probe.
  const std::vector<std::string>& notes() const { return notes_; }
  // Rows that Answer returns.
  size_t size() const { return probes_.size(); }

  // Returns the answers for a step from the rows of sources(), which are among `rows`. `training`:
  // the step is one of training, not of an evaluation. Internal if a source is missing or of
  // another shape.
  absl::StatusOr<std::vector<v1::HistoryRow>> Answer(int64_t step,
                                                     const std::vector<v1::HistoryRow>& rows,
                                                     bool training) const;

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

  absl::Status AddNeeds(const OpRegistry& registry, ValueId value, const Readable& readable,
                        Needs* needs) const;

  Graph graph_;
  std::vector<Derived> probes_;
  std::map<ValueId, std::string> source_of_;  // value -> HistoryRow.name
  std::vector<ProbeExpression> sources_;
  std::vector<std::pair<std::string, absl::Status>> lacking_;
  std::vector<std::string> notes_;
};

}  // namespace espalier
