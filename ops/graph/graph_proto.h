// Graph to and from its wire form.
#pragma once

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "proto/graph.pb.h"

namespace espalier {

proto::Graph ToProto(const Graph& graph);

// Checks everything that does not need shapes: known operators, ids in range, topological order,
// unique names, sizes of constants. InvalidArgument names the node, value and field.
absl::StatusOr<Graph> FromProto(const OpRegistry& registry, const proto::Graph& message);

void AttributesToProto(const Attributes& attributes,
                       google::protobuf::Map<std::string, proto::Attribute>* out);
absl::StatusOr<Attributes> AttributesFromProto(
    const google::protobuf::Map<std::string, proto::Attribute>& map);

proto::Initializer ToProto(const Initializer& initializer);
// The kind must be valid.
Initializer FromProto(const proto::Initializer& message);

proto::DataType ToProto(DType dtype);
DType FromProto(proto::DataType dtype);

}  // namespace espalier
