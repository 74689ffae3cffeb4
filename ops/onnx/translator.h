// The state of one import, as the translations of single ONNX operators see it. The first error
// sticks: afterwards every method does nothing and returns kNoValue or an empty value.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"
#include "ops/onnx/import.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

class Translator;

// "ReduceMean", or "ai.onnx.preview.training.Adam" outside of the default domain -> translation.
using TranslationTable = std::map<std::string, std::function<void(Translator&)>>;

class Translator {
 public:
  // While types are inferred, the batch is `symbolic_batch`: a number that no model uses, so that sizes
  // computed from it (Shape, Gather, Concat in front of a Reshape) are recognised.
  // `skip_large_weights`: large weights are left empty, for a translation that only looks at the structure.
  Translator(const OpRegistry& registry, const TranslationTable& table,
             const ImportOptions& options, int64_t symbolic_batch, bool skip_large_weights, Graph* graph);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // Errors are prefixed with the node that is being translated.
  void Fail(absl::string_view what);
  void Refuse(absl::string_view what);  // Unimplemented
  void SetStatus(const absl::Status& status);

  // Called by the driver.
  void AddInput(const std::string& name, DType dtype, const Dims& dims);
  void AddInitializers(const onnx::GraphProto& graph);
  void AddFunctions(const onnx::ModelProto& model);
  void TranslateNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, int opset);
  ValueId Find(const std::string& name);
  // Of NonTrainableInput: (name of the copy, name of the parameter).
  const std::vector<std::pair<std::string, std::string>>& copies() const { return copies_; }

  const onnx::NodeProto& node() const { return *node_; }
  int opset() const { return opset_; }
  const std::string& folder() const { return options_.folder; }
  bool IsSymbolicBatch(int64_t size) const { return size >= symbolic_batch_ && size % symbolic_batch_ == 0; }

  // Inputs of the node. An absent optional input gives kNoValue.
  int NumInputs() const { return node_->input_size(); }
  bool HasInput(int index) const;
  bool WantsOutput(int index) const;
  ValueId Input(int index);     // error if the name is unknown
  ValueId Required(int index);  // error if absent, too
  // As Required. Of a parameter a copy that is not to be trained: what moves it must not move what
  // others read. Nodes that ask with the same `layer` get the same one, if its values all differ
  // and none is a constant: they are one layer, applied several times. Else each node gets its own:
  // exporters merge what is equal, and new layers all begin alike.
  ValueId NonTrainableInput(int index, const std::vector<ValueId>& layer);
  const Dims& DimsOf(ValueId value) const;
  DType DTypeOf(ValueId value) const;
  int RankOf(ValueId value) const { return static_cast<int>(DimsOf(value).size()); }

  // What is known at import: constants, initialisers, options.constants and what is computed from
  // them. The pointer holds until the next value is added; null: it depends on the model's inputs.
  const std::string* Known(ValueId value);
  bool IsKnown(ValueId value) { return Known(value) != nullptr; }
  // Stricter: no value of options.constants behind it.
  bool IsConstant(ValueId value) const { return IsKind(value, ValueKind::kConstant); }
  bool IsParameter(ValueId value) const { return IsKind(value, ValueKind::kParameter); }
  // A known value that is another one for a batch of 1.
  bool DependsOnBatch(ValueId value) { return IsKnown(value) && at_one_.count(value) > 0; }
  // Its elements then; `known` where it is the same.
  std::vector<int64_t> IntsAtBatchOne(ValueId value, std::vector<int64_t> known) const;
  // Elements of a known value; Refuse that names `what` if it is not known.
  std::vector<int64_t> KnownInts(ValueId value, absl::string_view what);
  std::vector<double> KnownNumbers(ValueId value, absl::string_view what);
  std::vector<int64_t> ConstantInts(int index);
  std::vector<double> ConstantNumbers(int index);
  double ConstantNumber(int index);  // exactly one

  // Attributes of the node; a wrong kind is an error.
  int64_t Int(const std::string& name, int64_t fallback);
  bool Bool(const std::string& name, bool fallback = false) { return Int(name, fallback) != 0; }
  double Float(const std::string& name, double fallback);
  std::string String(const std::string& name, const std::string& fallback);
  std::vector<int64_t> Ints(const std::string& name, std::vector<int64_t> fallback);
  std::vector<double> Floats(const std::string& name);
  std::vector<std::string> Strings(const std::string& name);
  const onnx::AttributeProto* Attribute(const std::string& name) const;

  // Integers that are an attribute in old opsets and input `index` in new ones.
  std::vector<int64_t> IntsOf(const std::string& attribute, int index);

  // Axis in -rank..rank-1 to 0..rank-1.
  int64_t Axis(int64_t axis, int rank);
  std::vector<int64_t> Axes(std::vector<int64_t> axes, int rank);  // each once

  // Adds a node of ours, or computes its outputs now if all inputs are constants.
  ValueId Emit(const std::string& op, const std::vector<ValueId>& inputs,
               Attributes attributes = {});
  std::vector<ValueId> EmitN(const std::string& op, int outputs, const std::vector<ValueId>& inputs,
                             Attributes attributes = {});

  // Refuse beyond ImportOptions::max_constant_bytes in all. To be asked before the elements of a
  // large one are computed: whether that many more fit.
  ValueId Constant(TensorType type, std::string bytes);
  // The same of what the file holds as `tensor`, which counts from the second time on.
  ValueId Constant(const onnx::TensorProto& tensor, TensorType type, std::string bytes);
  bool CheckConstantBytes(DType type, int64_t elements);
  ValueId Numbers(DType dtype, const Dims& dims, const std::vector<double>& values);
  ValueId Integers(const std::vector<int64_t>& values, const Dims& dims);  // i64
  // i64, what it is for a batch of 1 told with it; of sizes that may hold the symbolic_batch.
  ValueId Integers(const std::vector<int64_t>& values, const std::vector<int64_t>& at_one,
                   const Dims& dims);
  ValueId Sizes(const std::vector<int64_t>& sizes, const Dims& dims);
  ValueId Scalar(double value, DType dtype) { return Numbers(dtype, {}, {value}); }

  // Shorthands.
  ValueId Cast(ValueId x, DType dtype);
  ValueId Reshape(ValueId x, const Dims& dims);  // dims may hold the symbolic_batch
  ValueId Transpose(ValueId x, const std::vector<int64_t>& perm);
  ValueId Expand(ValueId x, const Dims& dims);  // likewise; broadcast of both, as ONNX has it
  ValueId Binary(const std::string& op, ValueId a, ValueId b) { return Emit(op, {a, b}); }
  ValueId Binary(const std::string& op, ValueId a, double b) {
    return Emit(op, {a, Scalar(b, DTypeOf(a))});
  }
  ValueId Reduce(const std::string& op, ValueId x, std::vector<int64_t> axes, bool keepdims);

  // Binds output `index` of the ONNX node.
  void Return(ValueId value, int index = 0);
  void ReturnAll(const std::vector<ValueId>& values);

  // Translates a subgraph, which sees the names around it, with its inputs bound to `inputs`; its
  // outputs. Used for branches and for each turn of a loop.
  std::vector<ValueId> Inline(const onnx::GraphProto& graph, const std::vector<ValueId>& inputs);

 private:
  // The names of one graph or function body.
  struct Scope {
    Scope* parent = nullptr;  // whose names are seen; null in functions
    std::map<std::string, ValueId> values;
    std::map<std::string, const onnx::TensorProto*> initializers;
    std::map<std::string, const onnx::AttributeProto*> attributes;  // of a function's call
  };

  void SetStatus(absl::StatusCode code, absl::string_view what);
  bool IsKind(ValueId value, ValueKind kind) const {
    return value != kNoValue && graph_->value(value).kind == kind;
  }
  ValueId Lookup(const std::string& name);
  void TranslateNode();
  void TranslateBody(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  void Direct(const OpDef& def);                            // by def.onnx
  using FunctionKey = std::pair<std::string, std::string>;  // key of an operator, overload
  FunctionKey CalledFunction() const;
  void CallFunction(const onnx::FunctionProto& function);
  bool CheckConstantBytes(int64_t bytes);
  bool Reserve(int64_t bytes);
  ValueId AddConstant(TensorType type, std::string bytes);  // whatever its size
  ValueId MaterializeConstant(Scope* scope, const std::string& name, const onnx::TensorProto& tensor);
  const std::string* KnownAt(ValueId value, int depth);
  bool Fold(const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
            std::vector<ValueId>* results);
  // What `def` gives for a batch of 1, by output, empty where that is `results`. None: what it
  // chooses, or rounds off, hangs on the batch, so that `results` say nothing about others.
  std::optional<std::vector<std::string>> FoldAtBatchOne(
      const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
      const std::vector<const std::string*>& operands, const std::vector<std::string>& results);
  // Whether another operand is the smaller one for a batch of 1; in `strict`, or the same.
  bool OrderDependsOnBatch(const NodeTypes& types, const std::vector<const std::string*>& symbolic_batch,
                         const std::vector<const std::string*>& one, bool strict);
  ValueId BatchCondition(int rank, int dim);
  std::string Unique(std::string name);

  const OpRegistry& registry_;
  const TranslationTable& table_;
  const ImportOptions& options_;
  const int64_t symbolic_batch_;
  const bool skip_large_weights_;
  Graph* graph_;
  absl::Status status_;
  std::map<std::string, const OpDef*> direct_;
  std::map<FunctionKey, const onnx::FunctionProto*> functions_;

  const onnx::NodeProto* node_ = nullptr;
  int opset_ = 0;
  Scope root_;
  Scope* scope_ = &root_;
  int depth_ = 0;
  int64_t nodes_seen_ = 0;
  int64_t bytes_folded_ = 0;
  int64_t bytes_made_ = 0;                   // of constants that translations make
  std::vector<TensorType> types_;            // of the graph's values, with the symbolic_batch for the batch
  std::map<ValueId, std::string> computed_;  // known values of nodes that stay in the graph
  std::set<ValueId> unknown_;                // values that are not known
  std::map<ValueId, const onnx::TensorProto*> skipped_weights_;
  std::map<ValueId, std::string> at_one_;    // known values for a batch of 1, where they are others
  std::set<const onnx::TensorProto*> read_;  // that have become constants
  std::map<std::pair<std::vector<ValueId>, int>, ValueId> frozen_;  // by layer and input, if shared
  std::vector<std::pair<std::string, std::string>> copies_;
  std::set<std::string> names_;
  std::map<std::string, int64_t> suffixes_;  // the last one of each name
};

}  // namespace espalier::onnx_import
