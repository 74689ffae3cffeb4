// Tracks values that are known for one batch size only. A value computed from sizes is known for
// the symbolic batch; if it would differ for a batch of 1, that value is computed as well. Shape
// arithmetic follows the batch, so the imports with two symbolic batches differ where a graph
// cannot follow it. Comparisons do not: N == 1 is false for both symbolic batches. Their results
// are treated as unknown.
#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// Operators whose results follow the batch if their operands do.
constexpr const char* kFollow[] = {"add",
                                   "add_n",
                                   "add_scalar",
                                   "cast",
                                   "ceil",
                                   "concat",
                                   "cumsum",
                                   "divide",
                                   "divide_scalar",
                                   "expand",
                                   "flatten",
                                   "floor",
                                   "gather",
                                   "gather_nd",
                                   "gather_elements",
                                   "identity",
                                   "maximum",
                                   "minimum",
                                   "multiply",
                                   "multiply_scalar",
                                   "neg",
                                   "pad",
                                   "reciprocal",
                                   "reduce_mean",
                                   "reduce_prod",
                                   "reduce_sum",
                                   "reshape",
                                   "reverse",
                                   "round",
                                   "scatter_elements",
                                   "scatter_nd",
                                   "slice",
                                   "split",
                                   "sqrt",
                                   "squeeze",
                                   "subtract",
                                   "subtract_scalar",
                                   "tile",
                                   "transpose",
                                   "triangle",
                                   "unsqueeze",
                                   "where"};

bool Follows(const OpDef& def, const TensorType& result, bool by_batch) {
  if (std::find(std::begin(kFollow), std::end(kFollow), def.name) == std::end(kFollow)) {
    return false;
  }
  // Wide enough for the symbolic batch; 10 / N would be 0 for every large batch.
  const DType type = result.dtype;
  return (type == DType::kI64 || type == DType::kI32 || type == DType::kF32) && !by_batch;
}

}  // namespace

ValueId Translator::Integers(const std::vector<int64_t>& values, const std::vector<int64_t>& at_one,
                             const Dims& dims) {
  const ValueId value = Integers(values, dims);
  if (value != kNoValue && at_one != values) {
    at_one_[value].assign(reinterpret_cast<const char*>(at_one.data()), at_one.size() * 8);
  }
  return value;
}

ValueId Translator::Sizes(const std::vector<int64_t>& sizes, const Dims& dims) {
  std::vector<int64_t> one = sizes;
  for (int64_t& size : one) size = IsSymbolicBatch(size) ? size / symbolic_batch_ : size;
  return Integers(sizes, one, dims);
}

std::vector<int64_t> Translator::IntsAtBatchOne(ValueId value, std::vector<int64_t> known) const {
  const auto it = at_one_.find(value);
  return it == at_one_.end() ? std::move(known) : IntegersOf(types_[value], it->second);
}

bool Translator::OrderDependsOnBatch(const NodeTypes& types,
                                     const std::vector<const std::string*>& symbolic_batch,
                                     const std::vector<const std::string*>& one, bool strict) {
  const OpDef* less = registry_.Find("less");
  if (less == nullptr || types.inputs.size() != 2) return true;
  NodeTypes forth, back;
  forth.inputs = types.inputs;
  back.inputs = {types.inputs[1], types.inputs[0]};
  if (!InferNode(*less, &forth).ok() || !InferNode(*less, &back).ok()) return true;
  const auto smaller = [&](const std::vector<const std::string*>& operands, bool swapped) {
    absl::StatusOr<std::vector<std::string>> flags =
        swapped ? options_.evaluator("less", back, {operands[1], operands[0]})
                : options_.evaluator("less", forth, operands);
    return flags.ok() ? (*flags)[0] : std::string();
  };
  const std::string a = smaller(symbolic_batch, false), b = smaller(symbolic_batch, true),
                    a1 = smaller(one, false), b1 = smaller(one, true);
  if (a.size() != b.size() || a.size() != a1.size() || a.size() != b1.size()) return true;
  if (strict) return a != a1 || b != b1;
  for (size_t i = 0; i < a.size(); ++i) {
    if ((a[i] && b1[i]) || (b[i] && a1[i])) return true;
  }
  return false;
}

std::optional<std::vector<std::string>> Translator::FoldAtBatchOne(
    const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
    const std::vector<const std::string*>& operands, const std::vector<std::string>& results) {
  std::vector<std::string> one(results.size());
  std::vector<const std::string*> ones = operands;
  std::vector<bool> others(inputs.size(), false);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto it = at_one_.find(inputs[i]);
    if (it == at_one_.end()) continue;
    ones[i] = &it->second;
    others[i] = true;
  }
  if (std::find(others.begin(), others.end(), true) == others.end()) return one;
  if (def.name == "modulo") return std::nullopt;  // differs for every batch
  const bool equality = def.name == "equal" || def.name == "not_equal";
  if ((equality || def.name == "maximum" || def.name == "minimum") &&
      OrderDependsOnBatch(types, operands, ones, equality)) {
    return std::nullopt;
  }
  absl::StatusOr<std::vector<std::string>> computed = options_.evaluator(def.name, types, ones);
  if (!computed.ok() || computed->size() != results.size()) return std::nullopt;
  const bool by_batch =
      def.name == "reciprocal" || (def.name == "divide" && others.size() == 2 && others[1]);
  for (size_t k = 0; k < results.size(); ++k) {
    if ((*computed)[k] == results[k]) continue;
    if (!Follows(def, types.outputs[k], by_batch)) return std::nullopt;
    one[k] = std::move((*computed)[k]);
  }
  return one;
}

}  // namespace espalier::onnx_import
