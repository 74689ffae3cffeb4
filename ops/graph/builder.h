// Builds graphs in code. The first error sticks: later calls do nothing and Build returns it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

class GraphBuilder {
 public:
  // `registry` must outlive the builder. Dimension 0 of an input may be -1 (the batch); types of
  // computed values are left to BindAndInfer.
  GraphBuilder(const OpRegistry& registry, std::string graph_name);

  ValueId Input(const std::string& name, DType dtype, Dims dims);
  ValueId Parameter(const std::string& name, DType dtype, Dims dims, Initializer init,
                    bool trainable = true);
  ValueId State(const std::string& name, DType dtype, Dims dims);
  ValueId Constant(const std::string& name, DType dtype, Dims dims, std::string bytes);

  // Adds a node with one output (or the first of several). `name` empty: "<op>_<n>".
  ValueId Op(const std::string& op, const std::vector<ValueId>& inputs, Attributes attributes = {},
             const std::string& name = "");
  std::vector<ValueId> OpN(const std::string& op, int num_outputs,
                           const std::vector<ValueId>& inputs, Attributes attributes = {},
                           const std::string& name = "");

  void Output(const std::string& name, ValueId value);
  void Metadata(const std::string& key, const std::string& value);

  // Leaves the builder empty.
  absl::StatusOr<Graph> Build();

 private:
  ValueId Add(Value value);

  const OpRegistry& registry_;
  Graph graph_;
  absl::Status status_;
  std::set<std::string> names_;
  int counter_ = 0;
};

}  // namespace espalier
