// The columns of examples that a client gives, instead of a dataset: of a job whose dataset is a
// STREAM, and of a session.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "google/protobuf/map.h"
#include "ops/graph/graph.h"
#include "ops/tensor/shape.h"
#include "server/jobs/index_ranges.h"
#include "storage/dataset.h"

namespace espalier {

// Checks the fields of a spec that have to do with its stream, each on its own. InvalidArgument
// names the field and what is accepted.
absl::Status CheckStreamFields(const v1::TrainingSpec& spec);

// A batch of zeros with the columns of the spec's graph inputs, if it has a graph, and of
// `columns`, the types of one example of each. InvalidArgument if there are none, or a batch is too
// large to hold.
absl::StatusOr<std::shared_ptr<const Dataset>> OutlineOfColumns(
    const OpRegistry& registry, const v1::TrainingSpec& spec,
    const google::protobuf::Map<std::string, v1::TensorType>& columns);

// Fills in the types of all columns of a stream that the graph reads, and the integers that it
// accepts in them, whatever was there. `columns` maps its inputs to columns.
void SetStreamColumns(const OpRegistry& registry, const Graph& graph,
                      const std::map<std::string, std::string>& columns, v1::ExampleStream* stream);

// What a column of a stream must hold.
struct StreamColumn {
  TensorType example;              // the type of one example
  std::vector<InputRange> ranges;  // integers must be within all of them
};

// By name, as SetStreamColumns has filled it in. A stream of an earlier release has no ranges.
std::map<std::string, StreamColumn> StreamColumnsOf(const v1::ExampleStream& stream);

}  // namespace espalier
