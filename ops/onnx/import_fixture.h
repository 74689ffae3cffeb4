// Builds small ONNX models, imports and runs them, for tests of the import.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::import_fixture {

using Names = std::vector<std::string>;
using Int64s = std::vector<int64_t>;
using Floats = std::vector<float>;

constexpr int64_t kBatch = -1;

inline const OpRegistry& Operators() {
  static const auto* const kRegistry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *kRegistry;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline onnx::TensorProto Tensor(const std::string& name, const Int64s& dims, const Floats& values) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor.add_dims(dim);
  tensor.set_raw_data(Bytes(values));
  return tensor;
}

inline onnx::TensorProto Tensor(const std::string& name, const Int64s& dims, const Int64s& values) {
  onnx::TensorProto tensor = Tensor(name, dims, Floats{});
  tensor.set_data_type(onnx::TensorProto::INT64);
  tensor.set_raw_data(Bytes(values));
  return tensor;
}

inline onnx::NodeProto Node(const std::string& op, const Names& inputs, const Names& outputs) {
  onnx::NodeProto node;
  const size_t dot = op.find('.');
  if (dot != std::string::npos) node.set_domain(op.substr(0, dot));
  node.set_op_type(dot == std::string::npos ? op : op.substr(dot + 1));
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return node;
}

inline onnx::AttributeProto* AddAttribute(onnx::NodeProto* node, const std::string& name) {
  node->add_attribute()->set_name(name);
  return node->mutable_attribute(node->attribute_size() - 1);
}

inline onnx::NodeProto Node(const std::string& op, const Names& inputs, const Names& outputs,
                            const std::string& attribute, int64_t value) {
  onnx::NodeProto node = Node(op, inputs, outputs);
  AddAttribute(&node, attribute)->set_i(value);
  return node;
}

inline void Declare(const std::string& name, int type, const Int64s& dims,
                    onnx::ValueInfoProto* value) {
  value->set_name(name);
  auto* tensor = value->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t dim : dims) {
    auto* added = tensor->mutable_shape()->add_dim();
    if (dim == kBatch) {
      added->set_dim_param("N");
    } else {
      added->set_dim_value(dim);
    }
  }
}

// A subgraph; values of any type.
inline onnx::GraphProto Body(const Names& inputs, const Names& outputs,
                             const std::vector<onnx::NodeProto>& nodes) {
  onnx::GraphProto graph;
  for (const std::string& input : inputs) graph.add_input()->set_name(input);
  for (const std::string& output : outputs) graph.add_output()->set_name(output);
  for (const onnx::NodeProto& node : nodes) *graph.add_node() = node;
  return graph;
}

inline onnx::NodeProto WithBody(onnx::NodeProto node, const std::string& name,
                                const onnx::GraphProto& body) {
  *AddAttribute(&node, name)->mutable_g() = body;
  return node;
}

// x[N, 2], unless other dimensions are given, to y.
struct Model {
  explicit Model(const std::vector<onnx::NodeProto>& nodes,
                 const std::vector<onnx::TensorProto>& initializers = {},
                 const Int64s& dims = {kBatch, 2}, int type = onnx::TensorProto::FLOAT) {
    proto.add_opset_import()->set_version(18);
    for (const onnx::NodeProto& node : nodes) *proto.mutable_graph()->add_node() = node;
    for (const onnx::TensorProto& tensor : initializers) {
      *proto.mutable_graph()->add_initializer() = tensor;
    }
    Declare("x", type, dims, proto.mutable_graph()->add_input());
    proto.mutable_graph()->add_output()->set_name("y");
  }

  Model& With(const onnx::FunctionProto& function) {
    *proto.add_functions() = function;
    return *this;
  }

  absl::StatusOr<Graph> Import(int64_t max_constant_bytes = 1 << 20) const {
    ImportOptions options;
    options.evaluator = CpuEvaluator();
    options.max_constant_bytes = max_constant_bytes;
    return ImportOnnx(Operators(), proto.SerializeAsString(), options);
  }

  std::string Error() const { return std::string(Import().status().message()); }

  onnx::ModelProto proto;
};

// The bytes of y for those of x.
inline absl::StatusOr<std::string> Run(Graph graph, int64_t batch, const std::string& x) {
  absl::Status status = BindAndInfer(Operators(), batch, &graph);
  if (!status.ok()) return status;
  std::vector<std::string> values;
  for (const Value& value : graph.values()) {
    values.push_back(value.kind == ValueKind::kInput ? x : value.constant);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    std::vector<const std::string*> inputs;
    for (ValueId v : graph.nodes()[n].inputs) {
      inputs.push_back(v == kNoValue ? nullptr : &values[v]);
    }
    absl::StatusOr<std::vector<std::string>> outputs =
        CpuEvaluator()(graph.nodes()[n].op, graph.TypesOf(static_cast<NodeId>(n)), inputs);
    if (!outputs.ok()) return outputs.status();
    for (size_t k = 0; k < outputs->size(); ++k) {
      values[graph.nodes()[n].outputs[k]] = (*outputs)[k];
    }
  }
  return values[graph.FindOutput("y")];
}

template <typename T>
Floats Result(const Model& model, int64_t batch, const std::vector<T>& x) {
  absl::StatusOr<Graph> graph = model.Import();
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  absl::StatusOr<std::string> bytes = Run(*std::move(graph), batch, Bytes(x));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  Floats y(bytes->size() / sizeof(float));
  std::memcpy(y.data(), bytes->data(), bytes->size());
  return y;
}

inline const onnx::NodeProto kRelu = Node("Relu", {"x"}, {"y"});

}  // namespace espalier::import_fixture
