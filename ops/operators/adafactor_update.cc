// Adafactor (Shazeer and Stern, 2018). A parameter of two dimensions or more is treated as a matrix
// of its first dimension by the others; of its second moments only row and column sums are kept.
// Two sums over the whole parameter precede the update, each as an operator, so that a parameter
// can be split.
#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

// Inputs after parameter, gradient, scale and hyper.
constexpr size_t kRows = 4, kColumns = 5, kSquares = 6, kSums = 7, kNorm = 8;

bool Factored(const Dims& dims) { return dims.size() >= 2; }
int64_t Columns(const Dims& dims) {
  int64_t columns = 1;
  for (size_t d = 1; d < dims.size(); ++d) columns *= dims[d];
  return columns;
}
// Output of adafactor_sums: the sum of squares of the parameter, then those of the gradient by row
// and by column.
int64_t SumsSize(const Dims& dims) { return Factored(dims) ? 1 + dims[0] + Columns(dims) : 1; }

std::vector<AttributeSpec> Settings() {
  return {{.name = "beta2_decay",
           .kind = AttributeKind::kFloat,
           .default_value = -0.8,
           .doc = "below 0: the second moments decay by 1 - t^beta2_decay"},
          {.name = "eps1",
           .kind = AttributeKind::kFloat,
           .default_value = 1e-30,
           .doc = "added to squares of the gradient"},
          {.name = "eps2",
           .kind = AttributeKind::kFloat,
           .default_value = 1e-3,
           .doc = "least root mean square of the parameter that scales the step"},
          {.name = "d",
           .kind = AttributeKind::kFloat,
           .default_value = 1.0,
           .doc = "largest root mean square of the update before it is scaled"},
          {.name = "weight_decay",
           .kind = AttributeKind::kFloat,
           .default_value = 0.0,
           .doc = "decoupled"}};
}

absl::Status CheckSettings(const std::string& op, const Attributes& attributes) {
  ESPALIER_RETURN_IF_ERROR(ExpectInRange(op, attributes, "beta2_decay", -1e6, 0));
  for (const char* name : {"eps1", "eps2", "weight_decay"}) {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange(op, attributes, name, 0, 1e6));
  }
  return ExpectInRange(op, attributes, "d", 1e-6, 1e6);
}

// The inputs of one of the three operators.
absl::Status CheckInputs(const OpDef& def, const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(CheckSettings(def.name, types.attributes));
  const auto input = [&](size_t i) {
    return InputRef{def.name, def.inputs[i].name, types.inputs[i]};
  };
  const Dims& dims = types.inputs[0].dims;
  ESPALIER_RETURN_IF_ERROR(ExpectDType(input(0), {DType::kF32}));
  ESPALIER_RETURN_IF_ERROR(ExpectSameType(input(1), input(0)));
  for (size_t i = 2; i < types.inputs.size(); ++i) {
    if (!types.has_input(i)) {
      const bool needed = Factored(dims) ? i == kRows || i == kColumns : i == kSquares;
      if (needed) {
        return OpError(def.name,
                       absl::StrCat("input '", def.inputs[i].name,
                                    "' is missing for a parameter of shape ", ToString(dims)));
      }
      continue;
    }
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(i), {DType::kF32}));
    std::vector<ExpectedDim> expected;
    if (i == 3) expected = {int64_t{2}};
    if (i == kRows) expected = {dims.empty() ? 1 : dims[0]};
    if (i == kColumns) expected = {Columns(dims)};
    if (i == kSquares) expected.assign(dims.begin(), dims.end());
    if (i == kSums) expected = {SumsSize(dims)};
    if (i == kNorm) expected = {int64_t{1}};
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input(i), expected, "of the parameter's shape"));
  }
  return absl::OkStatus();
}

// Splits the parameter's dimensions; every shard has all of the tensors of other shapes.
SplitRule SplitAdafactorUpdate(const NodeTypes& types, bool sum) {
  SplitRule rule;
  const Dims& dims = types.inputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(dims, dims.size(), &rule);
  for (Axis& axis : rule.axes) axis.kind = sum ? AxisKind::kReduction : AxisKind::kParameter;
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    const bool alike = i <= 1 || (i == kSquares && types.has_input(i));
    rule.inputs.push_back(alike ? axes : std::vector<int>(types.inputs[i].dims.size(), kNotSplit));
  }
  rule.outputs = {sum ? std::vector<int>{kNotSplit} : axes};
  return rule;
}

// Takes the first `inputs` of the nine inputs. The result is f32[outputs(parameter)], or the
// parameter.
OpDef MakeAdafactorUpdate(const std::string& name, const std::string& doc, size_t inputs,
                          std::function<int64_t(const Dims&)> outputs) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"parameter"},     {"gradient"},      {"scale", true}, {"hyper"}, {"rows", true},
                {"columns", true}, {"squares", true}, {"sums"},        {"norm"}};
  def.inputs.resize(inputs);
  def.attributes = Settings();
  OpDef shape;  // what CheckInputs reads
  shape.name = name;
  shape.inputs = def.inputs;
  def.infer = [shape, outputs](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(CheckInputs(shape, types));
    if (!outputs) return std::vector<TensorType>{types.inputs[0]};
    return std::vector<TensorType>{{DType::kF32, {outputs(types.inputs[0].dims)}}};
  };
  def.split = [sum = outputs != nullptr](const NodeTypes& types) {
    return SplitAdafactorUpdate(types, sum);
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{12.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  return def;
}

}  // namespace

void RegisterAdafactorUpdate(OpRegistry& registry) {
  registry.Add(MakeAdafactorUpdate(
      "adafactor_sums",
      "sum of p^2; for matrices then the sums of g^2 + eps1 over each row and over "
      "each column, with g = scale * gradient",
      kSums, SumsSize));
  registry.Add(MakeAdafactorUpdate("adafactor_norm", "sum of u^2; see adafactor_update", kNorm,
                                   [](const Dims&) { return int64_t{1}; }));
  OpDef def = MakeAdafactorUpdate(
      "adafactor_update",
      "b = 1 - t^beta2_decay; rows = b rows + (1 - b) sum_j(g^2 + eps1), columns alike, v_ij = "
      "rows_i columns_j / sum(rows) (vectors: squares = b squares + (1 - b)(g^2 + eps1) = v); u = "
      "g "
      "/ sqrt(v); p = (1 - lr weight_decay) p - min(lr, 1 / sqrt(t)) max(eps2, rms(p)) u / max(1, "
      "rms(u) / d)",
      kNorm + 1, nullptr);
  def.update = Update{.variants = {{"adafactor", "Adafactor (Shazeer and Stern, 2018)", 0.01, {}}},
                      .states =
                          [](const Attributes&, const Dims& parameter) {
                            std::vector<Update::State> states(3);
                            if (Factored(parameter)) {
                              states[0] = {"adafactor_rows", Dims{parameter[0]}};
                              states[1] = {"adafactor_columns", Dims{Columns(parameter)}};
                            } else {
                              states[2] = {"adafactor_squares", std::nullopt};
                            }
                            return states;
                          },
                      .sums = {"adafactor_sums", "adafactor_norm"}};
  registry.Add(std::move(def));
}

}  // namespace espalier
