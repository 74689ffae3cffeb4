// Conversion between Graph and its protobuf message.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/graph.pb.h"
#include "ops/graph/graph.h"

namespace espalier {

v1::Graph ToProto(const Graph& graph);

// Checks everything that needs no shapes: known operators, ids in range, topological order, unique
// names, sizes of constants. Returns InvalidArgument that names the node, value and field.
absl::StatusOr<Graph> FromProto(const OpRegistry& registry, const v1::Graph& message);

void AttributesToProto(const Attributes& attributes,
                       google::protobuf::Map<std::string, v1::Attribute>* out);
absl::StatusOr<Attributes> AttributesFromProto(
    const google::protobuf::Map<std::string, v1::Attribute>& map);

v1::Initializer ToProto(const Initializer& initializer);
// REQUIRES: the kind is valid.
Initializer FromProto(const v1::Initializer& message);

v1::DataType ToProto(DType dtype);
DType FromProto(v1::DataType dtype);

}  // namespace espalier
