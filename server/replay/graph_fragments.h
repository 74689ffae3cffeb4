// Questions that are graphs: small graphs whose inputs are what probes read, evaluated by the
// coordinator.
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
#include "google/protobuf/repeated_ptr_field.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "ops/tensor/shape.h"

namespace espalier {

// A graph of a replay, before it is known what its inputs are in a run.
struct GraphFragment {
  struct Input {
    std::string name;
    ProbeExpression source;    // of one tensor, in full
    DType dtype;               // as declared
    std::optional<Dims> dims;  // as declared; -1: any; nullopt: not even the rank is
  };

  std::string name;
  std::vector<Input> inputs;
  // If not empty: that of all inputs with a wildcard. The graph is meant for each name that
  // matches.
  std::string pattern;
  std::optional<Graph> graph;
  std::string onnx;  // without `graph`: ONNX is translated for certain shapes

  // The same for a name that the pattern matches: it is named "cosine(NAME)".
  GraphFragment For(const std::string& matching) const;
};

// Those of all fragments, each once.
std::vector<ProbeExpression> SourcesOf(const std::vector<GraphFragment>& fragments);

// Checks what can be checked before it is known what the graphs read: sizes, names, operators.
// InvalidArgument that names the graph, and what is accepted.
absl::StatusOr<std::vector<GraphFragment>> ParseFragments(
    const OpRegistry& registry, const google::protobuf::RepeatedPtrField<v1::ReplayGraph>& graphs);

// The graphs of a replay for one run. Immutable.
class GraphFragments {
 public:
  // What a run has under a fragment's source.
  using TypeOf = std::function<absl::StatusOr<TensorType>(const ProbeExpression& source)>;

  GraphFragments() = default;
  // Infers the types of all values. InvalidArgument or Unimplemented that names graph, node and
  // what is accepted; errors of `type_of`, with the name of the graph.
  static absl::StatusOr<GraphFragments> Make(const OpRegistry& registry,
                                             const std::vector<GraphFragment>& fragments,
                                             const TypeOf& type_of);

  // FindProbes is given the replay's probes, then these: each once.
  const std::vector<ProbeExpression>& sources() const { return sources_; }
  // Names and types of the answers: an output's name if it is not the only one follows the graph's.
  std::vector<std::pair<std::string, TensorType>> answers() const;

  // Returns the answers, of what sources() are, by HistoryRow.name. Internal if one is missing or
  // of another type; other errors of an operator name the graph.
  absl::StatusOr<std::vector<std::pair<std::string, v1::TensorValue>>> Evaluate(
      const std::map<std::string, v1::TensorValue>& given) const;

  // Takes the rows of a step, of the replay's probes and sources(), in this order. Returns them
  // without those of sources(), and with a row for each answer: a tensor. Errors as of Evaluate.
  absl::StatusOr<std::vector<v1::HistoryRow>> Complete(std::vector<v1::HistoryRow> rows,
                                                       int64_t step) const;

 private:
  struct Bound {
    std::string name;
    Graph graph;
    std::vector<std::pair<ValueId, std::string>> inputs;  // with HistoryRow.name of the source
    std::vector<std::pair<std::string, ValueId>> answers;
  };

  static absl::StatusOr<Bound> Bind(const OpRegistry& registry, const GraphFragment& fragment,
                                    const TypeOf& type_of);

  std::vector<Bound> bound_;
  std::vector<ProbeExpression> sources_;
};

}  // namespace espalier
