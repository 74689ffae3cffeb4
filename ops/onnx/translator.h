// The state of one import, as the translations of single ONNX operators see it. The first error
// sticks: afterwards every method does nothing and returns kNoValue or an empty value.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Stands for the batch while types are inferred during the import: a prime that no model uses, so
// that sizes computed from it (Shape, Gather, Concat in front of a Reshape) are recognised.
constexpr int64_t kProbeBatch = 1000003;

class Translator {
 public:
  Translator(const OpRegistry& registry, Graph* graph) : registry_(registry), graph_(graph) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // Errors are prefixed with the node that is being translated.
  void Fail(absl::string_view what);
  void Refuse(absl::string_view what);  // Unimplemented

  // Called by the driver.
  void AddInput(const std::string& name, DType dtype, const Dims& dims);
  void AddInitializer(const onnx::TensorProto& tensor);
  void Begin(const onnx::NodeProto& node, int opset);
  ValueId Find(const std::string& name);

  const onnx::NodeProto& node() const { return *node_; }
  int opset() const { return opset_; }

  // Inputs of the node. An absent optional input gives kNoValue.
  bool HasInput(int index) const;
  ValueId Input(int index);
  ValueId FrozenInput(int index);  // a parameter that is not to be trained
  const Dims& DimsOf(ValueId value) const;
  DType DTypeOf(ValueId value) const;
  int RankOf(ValueId value) const { return static_cast<int>(DimsOf(value).size()); }

  // A constant known at import: integers (shapes, axes) or one number.
  bool IsConstant(int index) const;
  std::vector<int64_t> ConstantInts(int index);
  double ConstantNumber(int index);

  // Attributes of the node; a wrong kind is an error.
  int64_t Int(const std::string& name, int64_t fallback);
  double Float(const std::string& name, double fallback);
  std::string String(const std::string& name, const std::string& fallback);
  std::vector<int64_t> Ints(const std::string& name, std::vector<int64_t> fallback);
  const onnx::AttributeProto* Attribute(const std::string& name) const;

  // Axis in -rank..rank-1 to 0..rank-1.
  int64_t Axis(int64_t axis, int rank);

  // Adds a node; the result of the last Emit before Return usually is the ONNX node's output.
  ValueId Emit(const std::string& op, const std::vector<ValueId>& inputs,
               Attributes attributes = {});
  std::vector<ValueId> EmitN(const std::string& op, int outputs, const std::vector<ValueId>& inputs,
                             Attributes attributes = {});
  ValueId Scalar(double value, DType dtype);

  // Binds output `index` of the ONNX node.
  void Return(ValueId value, int index = 0);
  // Binds it to integers that later nodes use as shapes or axes.
  void ReturnInts(std::vector<int64_t> values, Dims dims);

 private:
  struct Constant {
    TensorType type;
    std::string bytes;
    bool parameter = false;  // an initialiser, as against a Constant node
  };

  const Constant* FindConstant(int index) const;
  ValueId Materialise(const std::string& name, bool trainable);
  std::string Unique(std::string name);
  void SetStatus(absl::StatusCode code, absl::string_view what);

  const OpRegistry& registry_;
  Graph* graph_;
  absl::Status status_;
  const onnx::NodeProto* node_ = nullptr;
  int opset_ = 0;
  std::map<std::string, ValueId> values_;
  std::map<std::string, Constant> constants_;
  std::vector<TensorType> types_;  // of the graph's values, with kProbeBatch for the batch
  std::set<std::string> names_;

  friend void ConstantNode(Translator& t);
};

// ONNX operator name -> translation. Filled by the functions below, called from import.cc.
using TranslationTable = std::map<std::string, std::function<void(Translator&)>>;
void RegisterNeuralNetwork(TranslationTable* table);  // translate_nn.cc
void RegisterArithmetic(TranslationTable* table);     // translate_math.cc
void RegisterShape(TranslationTable* table);          // translate_shape.cc

}  // namespace espalier::onnx_import
