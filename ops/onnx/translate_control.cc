// If, Loop and Scan with known conditions and lengths are inlined.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/onnx/embedding_bag_loop.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kMaxTurns = 4096;

const onnx::GraphProto* Subgraph(Translator& t, const std::string& name) {
  const onnx::AttributeProto* attribute = t.Attribute(name);
  if (attribute != nullptr && attribute->has_g()) return &attribute->g();
  t.Fail(absl::StrCat("attribute '", name, "' must be a graph"));
  return nullptr;
}

void If(Translator& t) {
  const ValueId condition = t.Required(0);
  const onnx::GraphProto *yes = Subgraph(t, "then_branch"), *no = Subgraph(t, "else_branch");
  if (!t.ok()) return;
  if (t.IsKnown(condition)) {
    if (t.DependsOnBatch(condition)) return t.Refuse("its condition depends on the batch size");
    const std::vector<int64_t> flag = t.KnownInts(condition, "input 0");
    if (flag.size() != 1) return t.Fail("input 0 (the condition) must be one value");
    return t.ReturnAll(t.Inline(flag[0] != 0 ? *yes : *no, {}));
  }
  // Both branches are computed, as they have no side effects.
  const std::vector<ValueId> a = t.Inline(*yes, {}), b = t.Inline(*no, {});
  if (!t.ok()) return;
  std::vector<ValueId> results;
  for (size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
    if (t.DimsOf(a[k]) != t.DimsOf(b[k])) {
      return t.Refuse(
          "its condition depends on the data, or on the batch size, and its branches give "
          "different "
          "shapes; for one batch size only, export the model with it fixed");
    }
    results.push_back(t.Emit("where", {t.Reshape(condition, {}), a[k], b[k]}));
  }
  t.ReturnAll(results);
}

ValueId Stack(Translator& t, const std::vector<ValueId>& parts, int64_t axis) {
  std::vector<ValueId> rows;
  for (ValueId part : parts) {
    Dims dims = t.DimsOf(part);
    if (axis < 0) axis += static_cast<int64_t>(dims.size()) + 1;
    if (axis < 0 || axis > static_cast<int64_t>(dims.size())) {
      t.Fail("an axis of its outputs is out of range");
      return kNoValue;
    }
    dims.insert(dims.begin() + axis, 1);
    rows.push_back(t.Reshape(part, dims));
  }
  if (rows.empty()) t.Refuse("takes no turn, so that the shape of its outputs is not known");
  return rows.size() == 1 ? rows[0] : t.Emit("concat", rows, {{"axis", axis}});
}

// Whether the loop starts whatever the data.
bool StartsTrue(Translator& t) {
  const ValueId condition = t.Input(1);
  if (condition == kNoValue) return true;
  if (!t.IsConstant(condition) || t.DependsOnBatch(condition)) return false;
  return t.KnownInts(condition, "input 1") == std::vector<int64_t>{1};
}

void Loop(Translator& t) {
  const onnx::GraphProto* body = Subgraph(t, "body");
  if (!t.ok()) return;
  const int carried = t.NumInputs() - 2;
  if (carried < 0) {
    return t.Fail(absl::StrCat("has ", t.NumInputs(), " inputs, expected M, cond and its state"));
  }
  if (body->output_size() < 1 + carried) return t.Fail("its body gives too few outputs");
  int64_t turns = kMaxTurns + 1;
  if (t.HasInput(0)) {
    const std::vector<int64_t> given = t.ConstantInts(0);
    if (t.ok() && given.size() != 1) t.Fail("input 0 (the number of turns) must be one integer");
    if (!t.ok()) return;
    turns = std::max<int64_t>(0, given[0]);
    if (turns > 0 && StartsTrue(t) && TranslateBagLoop(t, *body, turns)) return;
    if (t.DependsOnBatch(t.Input(0))) {
      return t.Refuse(
          "takes a turn per example of the batch, which a graph for any batch cannot say; write it "
          "with operations on the whole batch, or export the model with a fixed batch size");
    }
  }
  ValueId condition = t.Input(1);
  std::vector<ValueId> values;
  for (int i = 0; i < carried; ++i) values.push_back(t.Required(2 + i));
  if (!t.ok()) return;
  std::vector<std::vector<ValueId>> scanned(body->output_size() - 1 - carried);
  for (int64_t i = 0; i < turns && t.ok(); ++i) {
    if (condition != kNoValue) {
      if (t.DependsOnBatch(condition)) return t.Refuse("its condition depends on the batch size");
      const std::vector<int64_t> flag = t.KnownInts(condition, "the condition of the loop");
      if (flag.empty() || flag[0] == 0) break;
    }
    if (i == kMaxTurns) return t.Refuse(absl::StrCat("takes more than ", kMaxTurns, " turns"));
    std::vector<ValueId> inputs = {t.Integers({i}, {}), condition};
    if (condition == kNoValue) inputs[1] = t.Scalar(1, DType::kBool);
    inputs.insert(inputs.end(), values.begin(), values.end());
    const std::vector<ValueId> outputs = t.Inline(*body, inputs);
    if (!t.ok()) return;
    // Without a condition, a constant true in the body's outputs is not checked either.
    condition = outputs[0];
    std::copy(outputs.begin() + 1, outputs.begin() + 1 + carried, values.begin());
    for (size_t k = 0; k < scanned.size(); ++k) scanned[k].push_back(outputs[1 + carried + k]);
  }
  for (const std::vector<ValueId>& parts : scanned) {
    values.push_back(t.ok() ? Stack(t, parts, 0) : kNoValue);
  }
  t.ReturnAll(values);
}

void Scan(Translator& t) {
  const onnx::GraphProto* body = Subgraph(t, "body");
  const int64_t inputs = t.Int("num_scan_inputs", 0);
  if (!t.ok()) return;
  if (inputs < 1 || inputs > t.NumInputs() || body->output_size() < t.NumInputs() - inputs) {
    return t.Fail("attribute 'num_scan_inputs' does not fit its inputs");
  }
  const int states = t.NumInputs() - static_cast<int>(inputs);
  const std::vector<int64_t> in_axes = t.Ints("scan_input_axes", std::vector<int64_t>(inputs, 0)),
                             in_back =
                                 t.Ints("scan_input_directions", std::vector<int64_t>(inputs, 0));
  const size_t outputs = body->output_size() - states;
  const std::vector<int64_t> out_axes =
                                 t.Ints("scan_output_axes", std::vector<int64_t>(outputs, 0)),
                             out_back =
                                 t.Ints("scan_output_directions", std::vector<int64_t>(outputs, 0));
  if (in_axes.size() != static_cast<size_t>(inputs) || in_back.size() != in_axes.size() ||
      out_axes.size() != outputs || out_back.size() != outputs) {
    return t.Fail("its axes or directions do not fit its inputs and outputs");
  }
  std::vector<ValueId> values, sequences;
  for (int i = 0; i < states; ++i) values.push_back(t.Required(i));
  for (int i = 0; i < inputs; ++i) sequences.push_back(t.Required(states + i));
  if (!t.ok()) return;
  std::vector<int64_t> axes;
  for (int i = 0; i < inputs; ++i) axes.push_back(t.Axis(in_axes[i], t.RankOf(sequences[i])));
  if (!t.ok()) return;
  const int64_t turns = t.DimsOf(sequences[0])[axes[0]];
  if (turns > kMaxTurns) return t.Refuse(absl::StrCat("takes ", turns, " turns"));
  std::vector<std::vector<ValueId>> scanned(outputs);
  for (int64_t turn = 0; turn < turns && t.ok(); ++turn) {
    std::vector<ValueId> feed = values;
    for (int i = 0; i < inputs; ++i) {
      const int64_t at = in_back[i] != 0 ? turns - 1 - turn : turn;
      feed.push_back(t.Emit("gather", {sequences[i], t.Integers({at}, {})}, {{"axis", axes[i]}}));
    }
    const std::vector<ValueId> results = t.Inline(*body, feed);
    if (!t.ok()) return;
    std::copy(results.begin(), results.begin() + states, values.begin());
    for (size_t k = 0; k < outputs; ++k) scanned[k].push_back(results[states + k]);
  }
  for (size_t k = 0; k < outputs && t.ok(); ++k) {
    if (out_back[k] != 0) std::reverse(scanned[k].begin(), scanned[k].end());
    values.push_back(Stack(t, scanned[k], out_axes[k]));
  }
  t.ReturnAll(values);
}

// Outside of sequences an optional value is a tensor that may be absent.
void OptionalHasElement(Translator& t) { t.Return(t.Scalar(t.HasInput(0) ? 1 : 0, DType::kBool)); }

}  // namespace

void RegisterControlTranslations(TranslationTable& table) {
  table["If"] = If;
  table["Loop"] = Loop;
  table["OptionalGetElement"] = [](Translator& t) { t.Return(t.Required(0)); };
  table["OptionalHasElement"] = OptionalHasElement;
  table["Scan"] = Scan;
}

}  // namespace espalier::onnx_import
