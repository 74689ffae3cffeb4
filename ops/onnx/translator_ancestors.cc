// What follows for a value from the nodes behind it.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

constexpr int kMaxFollowed = 64;  // nodes behind a progression or a filled tensor

// Operators whose elements are all elements of input 0.
constexpr const char* kRearrange[] = {"expand",  "flatten", "identity",  "reshape",  "slice",
                                      "squeeze", "tile",    "transpose", "unsqueeze"};

bool Rearranges(const std::string& op) {
  return std::find(std::begin(kRearrange), std::end(kRearrange), op) != std::end(kRearrange);
}

}  // namespace

bool Translator::IsFixed(ValueId value) {
  if (!IsKnown(value)) return false;
  std::set<ValueId> seen = {value};
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const Value& found = graph_->value(open.back());
    open.pop_back();
    if (found.kind == ValueKind::kInput) return false;
    if (found.kind == ValueKind::kParameter && found.trainable) return false;
    if (found.kind == ValueKind::kParameter || found.kind == ValueKind::kConstant) continue;
    for (ValueId v : graph_->node(found.producer).inputs) {
      if (v != kNoValue && seen.insert(v).second) open.push_back(v);
    }
  }
  return true;
}

std::optional<bool> Translator::FilledWithNonzero(ValueId value) {
  for (int depth = 0; ok() && value != kNoValue && depth < kMaxFollowed; ++depth) {
    const Value& found = graph_->value(value);
    if (found.kind == ValueKind::kConstant) {
      if (DTypeOf(value) == DType::kF16 || DTypeOf(value) == DType::kBF16) break;
      const std::vector<double> numbers = NumbersOf(types_[value], found.constant);
      const auto nonzero = [](double v) { return v != 0; };
      if (std::all_of(numbers.begin(), numbers.end(), nonzero)) return true;
      if (std::none_of(numbers.begin(), numbers.end(), nonzero)) return false;
      return std::nullopt;
    }
    if (found.kind == ValueKind::kInput || found.kind == ValueKind::kParameter) break;
    const Node& node = graph_->node(found.producer);
    if (Rearranges(node.op)) {
      value = node.inputs[0];
    } else if (node.op == "where" && node.inputs[1] == node.inputs[2]) {  // as Expand writes
      value = node.inputs[1];
    } else {
      break;
    }
  }
  return std::nullopt;
}

void Translator::SetProgression(ValueId value, const Progression& progression) {
  progressions_[value] = progression;
}

std::optional<Translator::Progression> Translator::ProgressionOf(ValueId value) {
  return ok() && value != kNoValue ? ProgressionAt(value, 0) : std::nullopt;
}

std::optional<Translator::Progression> Translator::ProgressionAt(ValueId value, int depth) {
  if (auto it = progressions_.find(value); it != progressions_.end()) return it->second;
  const DType dtype = DTypeOf(value);
  if (depth > kMaxFollowed || RankOf(value) != 1) return std::nullopt;
  if (dtype != DType::kI64 && dtype != DType::kI32) return std::nullopt;
  const Value& found = graph_->value(value);
  if (found.kind == ValueKind::kConstant) {
    const std::vector<int64_t> v = IntegersOf(types_[value], found.constant);
    if (v.size() < 2) return std::nullopt;
    for (size_t i = 2; i < v.size(); ++i) {
      if (v[i] - v[i - 1] != v[1] - v[0]) return std::nullopt;
    }
    return Progression{v[0], v[1] - v[0]};
  }
  if (found.kind == ValueKind::kInput || found.kind == ValueKind::kParameter) return std::nullopt;
  const Node node = graph_->node(found.producer);
  const DType of = DTypeOf(node.inputs.empty() ? kNoValue : node.inputs[0]);
  if (node.op == "identity" || (node.op == "cast" && (of == DType::kI64 || of == DType::kI32))) {
    return ProgressionAt(node.inputs[0], depth + 1);
  }
  if (node.op == "slice") {
    const std::vector<int64_t> starts = node.attributes.Ints("starts"),
                               steps = node.attributes.Ints("steps");
    const bool forward = starts.size() == 1 && starts[0] >= 0 && starts[0] < DimsOf(value)[0] &&
                         (steps.empty() || (steps.size() == 1 && steps[0] == 1));
    std::optional<Progression> whole =
        forward ? ProgressionAt(node.inputs[0], depth + 1) : std::nullopt;
    if (whole.has_value()) whole->start += starts[0] * whole->step;
    return whole;
  }
  if (node.op != "concat") return std::nullopt;
  std::optional<Progression> all;
  int64_t length = 0;
  for (ValueId part : node.inputs) {
    const int64_t size = DimsOf(part)[0];
    if (size == 0) continue;
    const bool one = size == 1 && IsConstant(part);
    std::optional<Progression> next = one ? std::nullopt : ProgressionAt(part, depth + 1);
    if (one)
      next = {IntegersOf(types_[part], graph_->value(part).constant)[0], all ? all->step : 0};
    if (!next.has_value()) return std::nullopt;
    if (!all.has_value()) {
      if (one) return std::nullopt;  // its step is not known
      all = next;
    }
    if (next->start != all->start + length * all->step || next->step != all->step) {
      return std::nullopt;
    }
    length += size;
  }
  return all;
}

}  // namespace espalier::onnx_import
