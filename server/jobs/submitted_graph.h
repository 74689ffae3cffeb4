// Reads the graph of a job: its losses, and which of its outputs and parameters take part.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/graph.pb.h"
#include "ops/graph/graph.h"
#include "ops/graph/initial_value.h"

namespace espalier {

// A graph with its loss, and what was decided about it (DryRunReply.notes).
struct TrainableGraph {
  Graph graph;
  std::vector<std::string> notes;
  int64_t batch = 0;  // of an ONNX file that was exported for one batch size only; 0: any
  // Of parameters of an ONNX file; others are in the graph.
  std::vector<InitialValue> initial_values = {};
};

// Metadata of a submitted graph: names of outputs, with commas between them, that are results of
// the model on purpose. No note says of them that training does not compute them.
inline constexpr char kModelOutputsMetadata[] = "model_outputs";

// How the note on an output ends that training does not compute. A session does.
inline constexpr char kNotComputed[] = ", is a result of the model; training does not compute it";

// Reads a submitted graph and matches its losses to its predictions (MatchPredictions). Every
// scalar output becomes one that is reported; notes name the outputs that training does not
// compute, but for those of kModelOutputsMetadata. InvalidArgument names the node or output that is
// wrong.
absl::StatusOr<TrainableGraph> ReadSubmittedGraph(const OpRegistry& registry,
                                                  const v1::Graph& graph, int64_t batch);

// Adds a note on the trainable parameters that get no gradient from output "loss", if there are
// any: it does not depend on them, or only through operators that stop gradients.
void NoteUnreached(const OpRegistry& registry, const Graph& graph, std::vector<std::string>* notes);

}  // namespace espalier
