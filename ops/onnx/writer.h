// The state of one export, as seen by the writer of a single operator. The first error sticks.
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

// From an Espalier operator to its writer.
using WriterTable = std::map<std::string, std::function<void(Writer&)>>;

class Writer {
 public:
  // REQUIRES: `graph` is bound to the batch size kBatch, see IsBatch.
  Writer(const OpRegistry& registry, const Graph& graph, onnx::GraphProto* out);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Refuse(const std::string& why);

  void Write(const WriterTable& table, NodeId node);
  static bool IsBatch(int64_t dim) { return dim >= kBatch && dim % kBatch == 0; }
  static constexpr int64_t kBatch = 1000003;

  // The current node.
  const Attributes& attributes() const { return node_->attributes; }
  bool HasIn(int i) const;
  std::string In(int i) const;  // "" for an absent one
  const TensorType& InType(int i) const;
  int Rank(int i) const { return static_cast<int>(InType(i).dims.size()); }
  int NumIn() const { return static_cast<int>(node_->inputs.size()); }
  int NumOut() const { return static_cast<int>(node_->outputs.size()); }
  std::string Out(int k = 0) const;
  const TensorType& OutType(int k = 0) const;

  // Adds an ONNX node with one output and returns its name.
  std::string Emit(const std::string& op_type, const std::vector<std::string>& inputs,
                   const Attributes& attributes = {});
  // Adds an ONNX node whose outputs are those of the current node.
  void Finish(const std::string& op_type, const std::vector<std::string>& inputs,
              const Attributes& attributes = {});
  void EmitTo(const std::vector<std::string>& outputs, const std::string& op_type,
              const std::vector<std::string>& inputs, const Attributes& attributes = {});
  // Adds a list of strings, which Attributes cannot hold, to the last ONNX node.
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
