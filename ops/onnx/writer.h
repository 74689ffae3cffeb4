// The state of one export, as the writers of single operators see it. The first error sticks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_export {

class Writer;

// Operator of ours -> what writes it.
using WriterTable = std::map<std::string, std::function<void(Writer&)>>;

class Writer {
 public:
  // `graph` is bound: the batch is a number that nothing else has, see IsBatch.
  Writer(const OpRegistry& registry, const Graph& graph, onnx::GraphProto* out);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Refuse(const std::string& why);

  void Write(const WriterTable& table, NodeId node);
  static bool IsBatch(int64_t dim) { return dim >= kBatch && dim % kBatch == 0; }
  static constexpr int64_t kBatch = 1000003;

  // The node that is written.
  const Attributes& attributes() const { return node_->attributes; }
  bool HasIn(int i) const;
  std::string In(int i) const;  // "" for an absent one
  const TensorType& InType(int i) const;
  int Rank(int i) const { return static_cast<int>(InType(i).dims.size()); }
  int NumIn() const { return static_cast<int>(node_->inputs.size()); }
  int NumOut() const { return static_cast<int>(node_->outputs.size()); }
  std::string Out(int k = 0) const;
  const TensorType& OutType(int k = 0) const;

  // A node of ONNX with one output; its name.
  std::string Emit(const std::string& op_type, const std::vector<std::string>& inputs,
                   const Attributes& attributes = {});
  // One whose outputs are those of the node that is written.
  void Finish(const std::string& op_type, const std::vector<std::string>& inputs,
              const Attributes& attributes = {});
  void EmitTo(const std::vector<std::string>& outputs, const std::string& op_type,
              const std::vector<std::string>& inputs, const Attributes& attributes = {});
  // To the node of ONNX that was added last: Attributes hold no lists of strings.
  void AddStrings(const std::string& name, const std::vector<std::string>& strings);

  // Constants.
  std::string Ints(const std::vector<int64_t>& values);  // [n]
  std::string Int(int64_t value);                        // scalar
  std::string Number(double value, DType dtype);         // scalar
  std::string Floats(const std::vector<int64_t>& dims, const std::vector<float>& values);
  std::string Bools(const std::vector<int64_t>& dims, const std::vector<bool>& values);

  // Shorthands.
  std::string Reshape(const std::string& x, const std::vector<int64_t>& shape);  // 0 copies
  std::string Transpose(const std::string& x, const std::vector<int64_t>& perm);
  std::string Reduce(const std::string& op_type, const std::string& x,
                     const std::vector<int64_t>& axes, bool keepdims);
  std::string CastTo(const std::string& x, DType dtype);

 private:
  std::string Fresh();
  onnx::TensorProto* AddConstant(DType dtype, const std::vector<int64_t>& dims, std::string* name);
  void WriteDirect(const OpDef& def);

  const OpRegistry& registry_;
  const Graph& graph_;
  onnx::GraphProto* out_;
  const Node* node_ = nullptr;
  absl::Status status_;
  std::set<std::string> names_;
  int64_t counter_ = 0;
};

}  // namespace espalier::onnx_export
