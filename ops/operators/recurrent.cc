#include "ops/operators/recurrent.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

using recurrent::Cell;

constexpr int kX = 0, kW = 1, kR = 2, kB = 3, kLengths = 4, kH0 = 5, kC0 = 6, kP = 7;

int64_t DirectionsOf(const Attributes& attributes) {
  return attributes.String("direction") == "bidirectional" ? 2 : 1;
}

absl::Status CheckAttributes(const std::string& name, Cell cell, const Attributes& a) {
  const std::string direction = a.String("direction");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return AttributeError(name, "direction", absl::StrCat("'", direction, "'"),
                          "'forward', 'reverse' or 'bidirectional'");
  }
  if (!(a.Float("clip") >= 0)) {
    return AttributeError(name, "clip", absl::StrCat(a.Float("clip")),
                          "a positive number, or 0 for none");
  }
  const size_t count = static_cast<size_t>(DirectionsOf(a)) * recurrent::Activations(cell);
  const std::vector<std::string> names = recurrent::SplitNames(a.String("activations"));
  std::string known;
  for (const recurrent::FunctionInfo& f : recurrent::kFunctions) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", f.name);
  }
  for (const std::string& function : names) {
    bool found = false;
    for (const recurrent::FunctionInfo& f : recurrent::kFunctions) found |= function == f.name;
    if (!found) {
      return AttributeError(name, "activations", absl::StrCat("'", function, "'"), known);
    }
  }
  if (!names.empty() && names.size() != count) {
    return AttributeError(name, "activations", absl::StrCat("'", a.String("activations"), "'"),
                          absl::StrCat(count, " names, or none for the defaults"));
  }
  for (const char* attribute : {"alpha", "beta"}) {
    const size_t given = a.Floats(attribute).size();
    if (given != 0 && (given != count || names.empty())) {
      return AttributeError(name, attribute, absl::StrCat(given, " numbers"),
                            "one for each of 'activations', or none for the defaults");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> InferRecurrent(const std::string& name, Cell cell,
                                                       const std::vector<Arity>& arity,
                                                       const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(CheckAttributes(name, cell, types.attributes));
  const auto input = [&](int i) { return InputRef{name, arity[i].name, types.inputs[i]}; };
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(input(kX)));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(input(kX), 3));
  for (int i : {kW, kR}) {
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input(i), input(kX)));
    ESPALIER_RETURN_IF_ERROR(ExpectRank(input(i), 3));
  }
  const TensorType& x = types.inputs[kX];
  const int64_t steps = x.dims[0], samples = x.dims[1], in = x.dims[2];
  const int64_t directions = DirectionsOf(types.attributes), gates = recurrent::Gates(cell);
  const int64_t hidden = types.inputs[kR].dims[2];
  const int64_t asked = types.attributes.Int("hidden");
  if (hidden < 1 || asked < 0 || (asked > 0 && asked != hidden)) {
    return AttributeError(name, "hidden", absl::StrCat(asked),
                          absl::StrCat("the last dimension of 'r', ", hidden,
                                       ", which must be positive; 0 stands for it"));
  }
  int64_t columns;
  if (__builtin_mul_overflow(hidden, 2 * gates, &columns)) {
    return OpError(name, absl::StrCat("'r' ends in ", hidden, ", which is too large"));
  }
  const std::string because = absl::StrCat(directions, " directions, ", gates, " gates of ", hidden,
                                           ", 'x' is ", ToString(x.dims));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(input(kW), {directions, gates * hidden, in}, because));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(input(kR), {directions, gates * hidden, hidden}, because));
  if (types.has_input(kLengths)) {
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(kLengths), {DType::kI32}));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input(kLengths), {samples}, because));
  }
  const std::pair<int, std::vector<ExpectedDim>> others[] = {{kB, {directions, 2 * gates * hidden}},
                                                             {kH0, {directions, samples, hidden}},
                                                             {kC0, {directions, samples, hidden}},
                                                             {kP, {directions, 3 * hidden}}};
  for (const auto& [i, shape] : others) {
    if (!types.has_input(i)) continue;
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input(i), input(kX)));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input(i), shape, because));
  }
  std::vector<TensorType> outputs = {{x.dtype, {steps, directions, samples, hidden}},
                                     {x.dtype, {directions, samples, hidden}}};
  if (cell == Cell::kLstm) outputs.push_back(outputs[1]);
  return outputs;
}

SplitRule SplitRecurrent(const NodeTypes& types) {
  SplitRule rule;
  constexpr int kSample = 0, kDirection = 1;
  rule.axes = {{"sample", AxisKind::kSample, types.inputs[kX].dims[1]},
               {"direction", AxisKind::kParameter, types.inputs[kW].dims[0]}};
  const std::vector<int> state = {kDirection, kSample, kNotSplit};
  const std::vector<int> weights = {kDirection, kNotSplit, kNotSplit};
  const std::vector<int> vectors = {kDirection, kNotSplit};
  const std::vector<std::vector<int>> all = {
      {kNotSplit, kSample, kNotSplit}, weights, weights, vectors, {kSample}, state, state, vectors};
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    rule.inputs.push_back(types.has_input(i) ? all[i] : std::vector<int>{});
  }
  rule.outputs.assign(types.outputs.size(), state);
  rule.outputs[0].insert(rule.outputs[0].begin(), kNotSplit);
  return rule;
}

}  // namespace

OpDef MakeRecurrent(Cell cell, const std::string& name, const std::string& onnx,
                    const std::string& doc) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"},
                {.name = "w", .wide = true},
                {.name = "r", .wide = true},
                {.name = "b", .optional = true, .wide = true},
                {"lengths", true},
                {"h0", true}};
  def.precision = Precision::kNarrow;
  def.num_outputs = 2;
  def.gradient = Gradient{.needs_inputs = {kX, kW, kR, kB, kLengths, kH0},
                          .needs_outputs = {0},
                          .differentiable = {kX, kW, kR, kB, kH0}};
  if (cell == Cell::kLstm) {
    def.inputs.push_back({"c0", true});
    def.inputs.push_back({"p", true});
    def.num_outputs = 3;
    for (int i : {kC0, kP}) {
      def.gradient->needs_inputs.push_back(i);
      def.gradient->differentiable.push_back(i);
    }
  }
  def.attributes = {{"hidden", AttributeKind::kInt, int64_t{0}, false, "H; 0: as 'r' says"},
                    {"direction", AttributeKind::kString, std::string("forward"), false,
                     "'forward', 'reverse' or 'bidirectional' (D = 2: forward, reverse)"},
                    {"activations", AttributeKind::kString, std::string(), false,
                     "names joined by ',', for each direction those of f, g, h that the cell has; "
                     "empty: sigmoid for "
                     "the gates, tanh for the others"},
                    {"alpha", AttributeKind::kFloats, std::vector<double>{}, false,
                     "of the activations; empty: their defaults"},
                    {"beta", AttributeKind::kFloats, std::vector<double>{}, false,
                     "of the activations; empty: their defaults"},
                    {"clip", AttributeKind::kFloat, 0.0, false,
                     "arguments of activations are clipped to [-clip, clip]; 0: not"}};
  def.onnx =
      OnnxForm{onnx, {{"hidden", "hidden_size"}, {"direction", "direction"}, {"clip", "clip"}}};
  if (cell == Cell::kGru) {
    def.attributes.push_back(
        {"linear_before_reset", AttributeKind::kBool, false, false, "r gates h R^T + Rb, not h"});
    def.onnx->attributes["linear_before_reset"] = "linear_before_reset";
  }
  def.infer = [=, inputs = def.inputs](const NodeTypes& types) {
    return InferRecurrent(name, cell, inputs, types);
  };
  def.split = SplitRecurrent;
  def.cost = [](const NodeTypes& types) {
    const Dims& x = types.inputs[kX].dims;
    const double products = static_cast<double>(types.inputs[kW].num_elements()) +
                            static_cast<double>(types.inputs[kR].num_elements());
    return Cost{2.0 * static_cast<double>(x[0]) * static_cast<double>(x[1]) * products,
                OperandBytes(types)};
  };
  // The backward pass recomputes the arguments of the gates.
  def.gradient->cost = [cost = def.cost](const NodeTypes& types) {
    const Cost forward = cost(types);
    return Cost{3 * forward.flops, 3 * forward.bytes};
  };
  return def;
}

}  // namespace espalier
