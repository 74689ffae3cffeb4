// The state of one import, as seen by the translation of a single ONNX operator. The first error
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
#include "ops/onnx/initializer_roles.h"
#include "ops/onnx/missing_values.h"
#include "ops/onnx/model_file.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

class Translator;

// From an ONNX operator to its translation: "ReduceMean", or "ai.onnx.preview.training.Adam"
// outside of the default domain.
using TranslationTable = std::map<std::string, std::function<void(Translator&)>>;

class Translator {
 public:
  // During the import the batch size is `symbolic_batch`, a number that no model uses. Sizes
  // computed from it (Shape, Gather, Concat in front of a Reshape) are therefore recognizable.
  // Large parameters get no elements in the graph, see deferred().
  Translator(const OpRegistry& registry, const TranslationTable& table,
             const ImportOptions& options, const ModelFile& file, const InitializerRoles& roles,
             int64_t symbolic_batch, Graph* graph);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // Fails with a message that starts with the current node.
  void Fail(absl::string_view what);
  void Refuse(absl::string_view what);  // Unimplemented
  void SetStatus(const absl::Status& status);

  // Called by the import.
  void AddInput(const std::string& name, DType dtype, const Dims& dims);
  // An input that is a parameter without a value in the file.
  void AddParameter(const std::string& name, const MissingValue& parameter);
  void AddInitializers(const onnx::GraphProto& graph);
  void AddFunctions(const onnx::ModelProto& model);
  void TranslateNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, int opset);
  ValueId Find(const std::string& name);
  // Parameters of more than kMaxElementsInMemory; their tensors were checked (CheckTensor).
  const std::map<ValueId, const onnx::TensorProto*>& deferred() const { return deferred_; }
  // Pairs (name of the copy, name of the parameter), made by NonTrainableInput.
  const std::vector<std::pair<std::string, std::string>>& copies() const { return copies_; }

  const onnx::NodeProto& node() const { return *node_; }
  int opset() const { return opset_; }
  const std::string& folder() const { return options_.folder; }
  bool IsSymbolicBatch(int64_t size) const {
    return size >= symbolic_batch_ && size % symbolic_batch_ == 0;
  }
  // The elements of such a size that belong to one example.
  int64_t PerExample(int64_t size) const { return size / symbolic_batch_; }

  // Inputs of the node. Return kNoValue for an absent optional input.
  int NumInputs() const { return node_->input_size(); }
  bool HasInput(int index) const;
  bool WantsOutput(int index) const;
  ValueId Input(int index);     // error if the name is unknown
  ValueId Required(int index);  // error if absent or unknown
  // Like Required, but returns a non-trainable copy of a parameter, so that updating it (running
  // statistics) does not change what other nodes read. Nodes with the same `layer` share one copy
  // if its values are distinct and none is a constant: they are one layer, applied several times.
  // Otherwise each node gets its own, because exporters merge equal initializers and new layers all
  // start equal.
  ValueId NonTrainableInput(int index, const std::vector<ValueId>& layer);
  const Dims& DimsOf(ValueId value) const;
  DType DTypeOf(ValueId value) const;
  int RankOf(ValueId value) const { return static_cast<int>(DimsOf(value).size()); }

  // Returns the value if it is known at import: constants, initializers, options.constants and what
  // is computed from them. Null if it depends on the model's inputs. The pointer is valid until the
  // next value is added.
  const std::string* Known(ValueId value);
  bool IsKnown(ValueId value) { return Known(value) != nullptr; }
  // Stricter than IsKnown: false if the value depends on options.constants.
  bool IsConstant(ValueId value) const { return IsKind(value, ValueKind::kConstant); }
  bool IsParameter(ValueId value) const { return IsKind(value, ValueKind::kParameter); }
  // Known, and the same in every step: made of constants and parameters that are not trained.
  bool IsFixed(ValueId value);
  // Whether all elements, known or not, are nonzero, or zero; nullopt if they may differ.
  std::optional<bool> FilledWithNonzero(ValueId value);
  // A known value that would differ for a batch of 1.
  bool DependsOnBatch(ValueId value) { return IsKnown(value) && at_one_.count(value) > 0; }
  // Its elements for a batch of 1; `known` if they do not differ.
  std::vector<int64_t> IntsAtBatchOne(ValueId value, std::vector<int64_t> known) const;
  // Elements of a known value. Refuses the model, with `what`, if the value is not known.
  std::vector<int64_t> KnownInts(ValueId value, absl::string_view what);
  std::vector<double> KnownNumbers(ValueId value, absl::string_view what);
  std::vector<int64_t> ConstantInts(int index);
  std::vector<double> ConstantNumbers(int index);
  double ConstantNumber(int index);  // exactly one

  // Attributes of the node; fail if the kind is wrong.
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

  // Converts an axis from -rank..rank-1 to 0..rank-1.
  int64_t Axis(int64_t axis, int rank);
  std::vector<int64_t> Axes(std::vector<int64_t> axes, int rank);  // without duplicates

  // A vector of integers start, start + step, ... whose values need not be known: its length may
  // depend on the batch.
  struct Progression {
    int64_t start = 0, step = 0;
  };
  void SetProgression(ValueId value, const Progression& progression);
  // Follows casts, slices and concatenations back to such a vector, or to a constant.
  std::optional<Progression> ProgressionOf(ValueId value);

  // Adds a node of the graph, or computes its outputs now if all inputs are constants.
  ValueId Emit(const std::string& op, const std::vector<ValueId>& inputs,
               Attributes attributes = {});
  std::vector<ValueId> EmitN(const std::string& op, int outputs, const std::vector<ValueId>& inputs,
                             Attributes attributes = {});

  // Refuses the model if all constants together exceed ImportOptions::max_constant_bytes. Call
  // CheckConstantBytes before computing the elements of a large constant.
  ValueId Constant(TensorType type, std::string bytes);
  // A constant that the file holds as `tensor`; it counts from the second time on.
  ValueId Constant(const onnx::TensorProto& tensor, TensorType type, std::string bytes);
  bool CheckConstantBytes(DType type, int64_t elements);
  ValueId Numbers(DType dtype, const Dims& dims, const std::vector<double>& values);
  ValueId Integers(const std::vector<int64_t>& values, const Dims& dims);  // i64
  // i64, with its elements for a batch of 1; for sizes that may contain the symbolic batch.
  ValueId Integers(const std::vector<int64_t>& values, const std::vector<int64_t>& at_one,
                   const Dims& dims);
  ValueId Sizes(const std::vector<int64_t>& sizes, const Dims& dims);
  ValueId Scalar(double value, DType dtype) { return Numbers(dtype, {}, {value}); }

  // Shorthands.
  ValueId Cast(ValueId x, DType dtype);
  ValueId Reshape(ValueId x, const Dims& dims);  // dims may contain the symbolic batch
  ValueId Transpose(ValueId x, const std::vector<int64_t>& perm);
  // broadcasts both, as in ONNX; dims may contain the symbolic batch
  ValueId Expand(ValueId x, const Dims& dims);
  ValueId Binary(const std::string& op, ValueId a, ValueId b) { return Emit(op, {a, b}); }
  ValueId Binary(const std::string& op, ValueId a, double b) {
    return Emit(op, {a, Scalar(b, DTypeOf(a))});
  }
  ValueId Reduce(const std::string& op, ValueId x, std::vector<int64_t> axes, bool keepdims);

  // Binds output `index` of the ONNX node.
  void Return(ValueId value, int index = 0);
  void ReturnAll(const std::vector<ValueId>& values);

  // Translates a subgraph with its inputs bound to `inputs` and the enclosing names in scope.
  // Returns its outputs. Used for branches and for each iteration of a loop.
  std::vector<ValueId> Inline(const onnx::GraphProto& graph, const std::vector<ValueId>& inputs);

 private:
  // The names of one graph or function body.
  struct Scope {
    Scope* parent = nullptr;  // the enclosing scope; null in functions
    std::map<std::string, ValueId> values;
    std::map<std::string, const onnx::TensorProto*> initializers;
    std::map<std::string, const onnx::AttributeProto*> attributes;  // arguments of a function call
  };

  void SetStatus(absl::StatusCode code, absl::string_view what);
  bool IsKind(ValueId value, ValueKind kind) const {
    return value != kNoValue && graph_->value(value).kind == kind;
  }
  ValueId Lookup(const std::string& name);
  void TranslateNode();
  void TranslateBody(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  void Direct(const OpDef& def);                            // translates by def.onnx
  using FunctionKey = std::pair<std::string, std::string>;  // key of an operator, overload
  FunctionKey CalledFunction() const;
  void CallFunction(const onnx::FunctionProto& function);
  bool CheckConstantBytes(int64_t bytes);
  bool Reserve(int64_t bytes);
  ValueId AddConstant(TensorType type, std::string bytes);  // without a size check
  ValueId MaterializeConstant(Scope* scope, const std::string& name,
                              const onnx::TensorProto& tensor);
  const std::string* KnownAt(ValueId value, int depth);
  std::optional<Progression> ProgressionAt(ValueId value, int depth);
  bool Fold(const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
            std::vector<ValueId>* results);
  // Returns by output what `def` computes for a batch of 1, empty where it equals `results`.
  // Returns nullopt if a selection or rounding depends on the batch, so that `results` are valid
  // for this batch size alone.
  std::optional<std::vector<std::string>> FoldAtBatchOne(
      const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
      const std::vector<const std::string*>& operands, const std::vector<std::string>& results);
  // Returns whether the smaller operand differs for a batch of 1; with `strict`, also whether
  // equality does.
  bool OrderDependsOnBatch(const NodeTypes& types,
                           const std::vector<const std::string*>& symbolic_batch,
                           const std::vector<const std::string*>& one, bool strict);
  ValueId BatchCondition(int rank, int dim);
  std::string Unique(std::string name);

  const OpRegistry& registry_;
  const TranslationTable& table_;
  const ImportOptions& options_;
  const ModelFile& file_;
  const InitializerRoles& roles_;
  const int64_t symbolic_batch_;
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
  int64_t bytes_made_ = 0;                   // of constants that translations create
  std::vector<TensorType> types_;            // of the graph's values, with the symbolic batch
  std::map<ValueId, std::string> computed_;  // known values of nodes that stay in the graph
  std::set<ValueId> unknown_;                // values that are not known
  std::map<ValueId, const onnx::TensorProto*> deferred_;
  std::map<ValueId, std::string> at_one_;    // known values that differ for a batch of 1
  std::set<const onnx::TensorProto*> read_;  // tensors that became constants
  std::map<ValueId, Progression> progressions_;
  std::map<std::pair<std::vector<ValueId>, int>, ValueId> frozen_;  // by layer and input, if shared
  std::vector<std::pair<std::string, std::string>> copies_;
  std::set<std::string> names_;
  std::map<std::string, int64_t> suffixes_;  // the last suffix of each name
};

}  // namespace espalier::onnx_import
