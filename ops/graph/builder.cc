#include "ops/graph/builder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

GraphBuilder::GraphBuilder(const OpRegistry& registry, std::string graph_name)
    : registry_(registry) {
  graph_.name = std::move(graph_name);
}

ValueId GraphBuilder::Add(Value value) {
  if (!status_.ok()) return kNoValue;
  if (value.name.empty() || !names_.insert(value.name).second) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("graph '", graph_.name, "': tensor name '", value.name,
                     value.name.empty() ? "' is empty" : "' is used twice"));
    return kNoValue;
  }
  return graph_.AddValue(std::move(value));
}

ValueId GraphBuilder::Input(const std::string& name, DType dtype, Dims dims) {
  return Add({.name = name, .type = {dtype, std::move(dims)}, .kind = ValueKind::kInput});
}

ValueId GraphBuilder::Parameter(const std::string& name, DType dtype, Dims dims, Initializer init,
                                bool trainable) {
  return Add({.name = name,
              .type = {dtype, std::move(dims)},
              .kind = ValueKind::kParameter,
              .trainable = trainable,
              .initializer = init});
}

ValueId GraphBuilder::State(const std::string& name, DType dtype, Dims dims) {
  return Add({.name = name, .type = {dtype, std::move(dims)}, .kind = ValueKind::kState});
}

ValueId GraphBuilder::Constant(const std::string& name, DType dtype, Dims dims, std::string bytes) {
  return Add({.name = name,
              .type = {dtype, std::move(dims)},
              .kind = ValueKind::kConstant,
              .constant = std::move(bytes)});
}

ValueId GraphBuilder::Op(const std::string& op, const std::vector<ValueId>& inputs,
                         Attributes attributes, const std::string& name) {
  return OpN(op, 1, inputs, std::move(attributes), name)[0];
}

std::vector<ValueId> GraphBuilder::OpN(const std::string& op, int num_outputs,
                                       const std::vector<ValueId>& inputs, Attributes attributes,
                                       const std::string& name) {
  std::vector<ValueId> outputs(num_outputs, kNoValue);
  if (!status_.ok()) return outputs;
  const std::string node_name = name.empty() ? absl::StrCat(op, "_", ++counter_) : name;
  if (registry_.Find(op) == nullptr) {
    status_ = absl::InvalidArgumentError(absl::StrCat("graph '", graph_.name, "', node '",
                                                      node_name, "': unknown operator '", op, "'"));
    return outputs;
  }
  for (int k = 0; k < num_outputs; ++k) {
    outputs[k] = Add({.name = k == 0 ? node_name : absl::StrCat(node_name, ":", k)});
  }
  if (!status_.ok()) return outputs;
  graph_.AddNode({.name = node_name,
                  .op = op,
                  .attributes = std::move(attributes),
                  .inputs = inputs,
                  .outputs = outputs});
  return outputs;
}

void GraphBuilder::Output(const std::string& name, ValueId value) {
  graph_.outputs.emplace_back(name, value);
}

void GraphBuilder::Metadata(const std::string& key, const std::string& value) {
  graph_.metadata[key] = value;
}

absl::StatusOr<Graph> GraphBuilder::Build() {
  if (!status_.ok()) return status_;
  return std::move(graph_);
}

}  // namespace espalier
