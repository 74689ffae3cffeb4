#include "server/jobs/prediction_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>

#include "absl/strings/string_view.h"

namespace espalier {
namespace {

// A sum of probabilities that differs from 1 by rounding or by clipping.
constexpr double kSumTolerance = 1e-2;
constexpr double kRounding = 1e-6;
constexpr int kMaxDepth = 200;  // of operators between a softmax and the loss

int Normalized(int64_t axis, size_t rank) {
  return static_cast<int>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

int64_t Product(const Dims& dims, size_t count) {
  int64_t product = 1;
  for (size_t d = 0; d < count; ++d) product *= dims[d];
  return product;
}

// Returns the dimension of `to` that holds the same elements as dimension `axis` of `from` after a
// reshape; -1 if there is none.
int AxisAfterReshape(const Dims& from, int axis, const Dims& to) {
  const int64_t before = Product(from, static_cast<size_t>(axis));
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] == from[static_cast<size_t>(axis)] && Product(to, d) == before) {
      return static_cast<int>(d);
    }
  }
  return -1;
}

class FormFinder {
 public:
  explicit FormFinder(const Graph& graph) : graph_(graph) {}

  PredictionForm Of(ValueId v) {
    if (v == kNoValue) return {};
    if (const auto known = known_.find(v); known != known_.end()) return known->second;
    if (depth_ >= kMaxDepth) return {};
    ++depth_;
    PredictionForm form = Compute(v);
    --depth_;
    known_[v] = form;
    return form;
  }

 private:
  PredictionForm Compute(ValueId v) {
    const Value& value = graph_.value(v);
    if (value.kind == ValueKind::kConstant) return OfConstant(value);
    if (value.producer == kNoNode) return {};
    const NodeId n = value.producer;
    const Node& node = graph_.node(n);
    const std::string& op = node.op;
    if (op == "split") return Part(node);
    if (value.producer_output != 0) return {};
    if (op == "softmax" || op == "log_softmax") {
      const int axis = Normalized(node.attributes.Int("axis"), Rank(node.inputs[0]));
      return Function(PredictionForm::kSoftmax, node.inputs[0], axis, op == "log_softmax", n);
    }
    if (op == "sigmoid") return Function(PredictionForm::kSigmoid, node.inputs[0], -1, false, n);
    if (IsView(node)) return ThroughView(n);
    if (op == "log") return Logarithm(node);
    if (op == "exp") return Exponential(node);
    if (op == "relu" || op == "abs" || op == "softplus") return NotNegative(node);
    if (op == "hard_sigmoid") return Bounds(0, 1);
    if (op == "tanh" || op == "erf" || op == "softsign" || op == "sin" || op == "cos") {
      return Bounds(-1, 1);
    }
    if (op == "clip") return Clipped(node);
    if (op == "concat") return Concatenated(node);
    if (op == "add" || op == "add_n") return Sum(node);
    if (op == "multiply") return Product2(node);
    if (op == "multiply_scalar") return Scaled(Of(node.inputs[0]), node.attributes.Float("value"));
    if (op == "divide_scalar") {
      return Scaled(Of(node.inputs[0]), 1 / node.attributes.Float("value"));
    }
    if (op == "add_scalar") return Shifted(Of(node.inputs[0]), node.attributes.Float("value"));
    if (op == "subtract_scalar") {
      return Shifted(Of(node.inputs[0]), -node.attributes.Float("value"));
    }
    if (op == "neg") return Negative(Of(node.inputs[0]));
    if (op == "reciprocal") return Inverse(Of(node.inputs[0]));
    if (op == "divide") return Divided(n);
    if (op == "subtract") return Subtracted(n);
    if (op == "maximum" || op == "minimum") return OneOfTwo(node.inputs[0], node.inputs[1]);
    if (op == "where") return OneOfTwo(node.inputs[1], node.inputs[2]);
    if (op == "reduce_mean" || op == "reduce_max" || op == "reduce_min") return Reduced(node);
    if (op == "pool2d" || op == "adaptive_pool2d") return Pooled(node);
    if (op == "resize") return Resized(node);
    return {};
  }

  size_t Rank(ValueId v) const { return graph_.value(v).type.dims.size(); }
  const Dims& DimsOf(ValueId v) const { return graph_.value(v).type.dims; }

  static PredictionForm Bounds(double low, double high) {
    PredictionForm form;
    form.low = low;
    form.high = high;
    return form;
  }

  static PredictionForm Function(PredictionForm::Function function, ValueId logits, int axis,
                                 bool logarithm, NodeId by) {
    PredictionForm form = Bounds(0, 1);
    form.logarithm = logarithm;
    form.axis = axis;
    form.sum = 1;
    form.function = function;
    form.logits = logits;
    form.by = by;
    return form;
  }

  PredictionForm OfConstant(const Value& value) const {
    constexpr size_t kMaxElements = 1 << 16;
    const size_t count = value.constant.size() / sizeof(float);
    if (value.type.dtype != DType::kF32 || count == 0 || count > kMaxElements) return {};
    PredictionForm form =
        Bounds(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < count; ++i) {
      float element;
      std::memcpy(&element, value.constant.data() + i * sizeof(element), sizeof(element));
      form.low = std::min<double>(form.low, element);
      form.high = std::max<double>(form.high, element);
    }
    return form;
  }

  static bool IsView(const Node& node) {
    constexpr absl::string_view kViews[] = {"identity", "stop_gradient", "cast",      "reshape",
                                            "flatten",  "squeeze",       "unsqueeze", "transpose",
                                            "slice",    "gather"};
    return std::find(std::begin(kViews), std::end(kViews), node.op) != std::end(kViews);
  }

  // Returns the place of dimension `axis` of the input in the output; -1 if it was cut or merged.
  int AxisThrough(const Node& node, int axis) const {
    const Dims &from = DimsOf(node.inputs[0]), &to = DimsOf(node.outputs[0]);
    if (node.op == "transpose") {
      const std::vector<int64_t> perm = node.attributes.Ints("perm");
      const auto at = std::find(perm.begin(), perm.end(), axis);
      return at == perm.end() ? -1 : static_cast<int>(at - perm.begin());
    }
    if (node.op == "slice") {
      for (int64_t sliced : node.attributes.Ints("axes")) {
        if (Normalized(sliced, from.size()) == axis) return -1;
      }
      return axis;
    }
    if (node.op == "gather") {
      const int gathered = Normalized(node.attributes.Int("axis"), from.size());
      if (gathered == axis) return -1;
      const int added = static_cast<int>(Rank(node.inputs[1])) - 1;
      return axis < gathered ? axis : axis + added;
    }
    return AxisAfterReshape(from, axis, to);
  }

  PredictionForm ThroughView(NodeId n) {
    const Node& node = graph_.node(n);
    if (!IsFloat(graph_.value(node.outputs[0]).type.dtype)) return {};
    PredictionForm form = Of(node.inputs[0]);
    if (form.axis >= 0) {
      form.axis = AxisThrough(node, form.axis);
      if (form.axis < 0) form.function = PredictionForm::kNone;
    }
    if (form.function == PredictionForm::kNone) {
      form.logits = kNoValue;
    } else {
      form.views.push_back(n);
    }
    return form;
  }

  PredictionForm Logarithm(const Node& node) {
    PredictionForm form = Of(node.inputs[0]);
    if (form.logarithm || !form.IsProbability()) return {};
    form.logarithm = true;
    return form;
  }

  PredictionForm Exponential(const Node& node) {
    PredictionForm form = Of(node.inputs[0]);
    if (!form.logarithm) return Bounds(0, std::exp(std::min(form.high, 700.0)));
    form.logarithm = false;
    return form;
  }

  PredictionForm NotNegative(const Node& node) {
    const PredictionForm form = Of(node.inputs[0]);
    if (form.logarithm || node.op != "relu") {
      return Bounds(0, std::numeric_limits<double>::infinity());
    }
    return Bounds(std::max(form.low, 0.0), std::max(form.high, 0.0));
  }

  PredictionForm Clipped(const Node& node) {
    PredictionForm form = Of(node.inputs[0]);
    if (form.logarithm) return {};
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double low = node.attributes.Float("min", -kInfinity);
    const double high = node.attributes.Float("max", kInfinity);
    PredictionForm clipped = Bounds(std::max(low, form.low), std::min(high, form.high));
    // Frameworks keep logarithms finite in this way.
    if (low <= kSumTolerance && high >= 1 - kSumTolerance) {
      clipped.axis = form.axis;
      clipped.sum = form.sum;
    }
    return clipped;
  }

  PredictionForm Concatenated(const Node& node) {
    PredictionForm all = Of(node.inputs[0]);
    const bool logarithm = all.logarithm;
    const int along = Normalized(node.attributes.Int("axis"), Rank(node.inputs[0]));
    for (ValueId v : node.inputs) {
      const PredictionForm form = Of(v);
      if (form.logarithm != logarithm) return {};
      all.low = std::min(all.low, form.low);
      all.high = std::max(all.high, form.high);
      if (form.axis != all.axis || form.sum != all.sum || form.axis == along) all.axis = -1;
    }
    return Plain(all);
  }

  // Without the way to the logits.
  static PredictionForm Plain(PredictionForm form) {
    form.function = PredictionForm::kNone;
    form.logits = kNoValue;
    form.views.clear();
    return form;
  }

  PredictionForm Sum(const Node& node) {
    PredictionForm all = Plain(Of(node.inputs[0]));
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const PredictionForm form = Of(node.inputs[i]);
      if (form.logarithm || all.logarithm) return {};
      const bool same = DimsOf(node.inputs[0]) == DimsOf(node.inputs[i]);
      all.low += form.low;
      all.high += form.high;
      all.sum += form.sum;
      if (form.axis != all.axis || !same) all.axis = -1;
    }
    return all;
  }

  static PredictionForm Scaled(PredictionForm form, double factor) {
    if (form.logarithm || !(factor > 0) || !std::isfinite(factor)) return {};
    form.low *= factor;
    form.high *= factor;
    form.sum *= factor;
    return Plain(form);
  }

  PredictionForm Product2(const Node& node) {
    const PredictionForm a = Of(node.inputs[0]), b = Of(node.inputs[1]);
    if (a.logarithm || b.logarithm) return {};
    if (a.low == a.high) return Scaled(b, a.low);
    if (b.low == b.high) return Scaled(a, b.low);
    if (a.low < 0 || b.low < 0) return {};
    return Bounds(a.low * b.low, a.high * b.high);
  }

  static PredictionForm Shifted(const PredictionForm& form, double by) {
    return form.logarithm ? PredictionForm() : Bounds(form.low + by, form.high + by);
  }

  static PredictionForm Negative(const PredictionForm& form) {
    return form.logarithm ? PredictionForm() : Bounds(-form.high, -form.low);
  }

  static PredictionForm Inverse(const PredictionForm& form) {
    if (form.logarithm || !(form.low > 0)) return {};
    return Bounds(1 / form.high, 1 / form.low);
  }

  // Each element is one of either.
  PredictionForm OneOfTwo(ValueId a, ValueId b) {
    const PredictionForm one = Of(a), other = Of(b);
    if (one.logarithm || other.logarithm) return {};
    return Bounds(std::min(one.low, other.low), std::max(one.high, other.high));
  }

  // One of the results of a split.
  PredictionForm Part(const Node& node) {
    PredictionForm form = Plain(Of(node.inputs[0]));
    if (Normalized(node.attributes.Int("axis"), Rank(node.inputs[0])) == form.axis) form.axis = -1;
    return form;
  }

  // A mean over dimensions other than the classes' is a mean of distributions.
  PredictionForm Reduced(const Node& node) {
    PredictionForm form = Plain(Of(node.inputs[0]));
    if (form.logarithm) return {};
    const size_t rank = Rank(node.inputs[0]);
    std::vector<bool> reduced(rank, node.attributes.Ints("axes").empty());
    for (int64_t axis : node.attributes.Ints("axes")) reduced[Normalized(axis, rank)] = true;
    const bool keeps_sum = node.op == "reduce_mean" && form.axis >= 0 && !reduced[form.axis];
    if (!keeps_sum) return Bounds(form.low, form.high);
    if (!node.attributes.Bool("keepdims")) {
      form.axis -= static_cast<int>(std::count(reduced.begin(), reduced.begin() + form.axis, true));
    }
    return form;
  }

  // Images [batch, channel, ...], of which no window reaches over several channels.
  PredictionForm Pooled(const Node& node) {
    PredictionForm form = Plain(Of(node.inputs[0]));
    const std::string kind = node.attributes.String("kind");
    if (form.logarithm || (kind != "average" && kind != "max")) return {};
    const bool zeros = kind == "average" && node.attributes.Bool("count_include_pad", false);
    if (kind == "max" || form.axis != 1 || zeros) form.axis = -1;
    return zeros ? Bounds(std::min(form.low, 0.0), std::max(form.high, 0.0)) : form;
  }

  // Interpolation takes means of neighbours.
  PredictionForm Resized(const Node& node) {
    PredictionForm form = Plain(Of(node.inputs[0]));
    if (form.logarithm || node.attributes.String("mode") == "cubic" ||
        !node.attributes.Floats("roi").empty()) {
      return {};
    }
    const Dims &from = DimsOf(node.inputs[0]), &to = DimsOf(node.outputs[0]);
    if (form.axis >= 0 && from[form.axis] != to[form.axis]) form.axis = -1;
    return form;
  }

  // The node that computes `op` of `of` along one dimension, which it keeps, and the dimension.
  std::optional<int> ReducedAlong(ValueId v, const std::string& op, ValueId of) const {
    const NodeId n = graph_.value(v).producer;
    if (n == kNoNode || graph_.node(n).op != op || graph_.node(n).inputs[0] != of) return {};
    const Attributes& attributes = graph_.node(n).attributes;
    const std::vector<int64_t> axes = attributes.Ints("axes");
    if (axes.size() != 1 || !attributes.Bool("keepdims")) return {};
    return Normalized(axes[0], Rank(of));
  }

  // x / sum(x), with x = exp(logits) or other numbers that are not negative.
  PredictionForm Divided(NodeId n) {
    const Node& node = graph_.node(n);
    const ValueId x = node.inputs[0];
    const PredictionForm top = Of(x), bottom = Of(node.inputs[1]);
    if (!bottom.logarithm && bottom.low == bottom.high) return Scaled(top, 1 / bottom.low);
    const std::optional<int> axis = ReducedAlong(node.inputs[1], "reduce_sum", x);
    if (top.logarithm || top.low < 0) return {};
    if (!axis.has_value()) {
      return bottom.logarithm || !(bottom.low > 0)
                 ? PredictionForm()
                 : Bounds(top.low / bottom.high, top.high / bottom.low);
    }
    PredictionForm form = Function(PredictionForm::kNone, kNoValue, *axis, false, n);
    const NodeId producer = graph_.value(x).producer;
    if (producer != kNoNode && graph_.node(producer).op == "exp") {
      form.function = PredictionForm::kSoftmax;
      form.logits = graph_.node(producer).inputs[0];
    }
    return form;
  }

  // x - log(sum(exp(x))), or a difference such as 1 - p.
  PredictionForm Subtracted(NodeId n) {
    const Node& node = graph_.node(n);
    const std::optional<int> axis =
        ReducedAlong(node.inputs[1], "reduce_log_sum_exp", node.inputs[0]);
    if (!axis.has_value()) {
      const PredictionForm a = Of(node.inputs[0]), b = Of(node.inputs[1]);
      if (a.logarithm || b.logarithm) return {};
      return Bounds(a.low - b.high, a.high - b.low);
    }
    return Function(PredictionForm::kSoftmax, node.inputs[0], *axis, true, n);
  }

  const Graph& graph_;
  std::map<ValueId, PredictionForm> known_;
  int depth_ = 0;
};

}  // namespace

bool PredictionForm::IsProbability() const { return low >= 0 && high <= 1 + kRounding; }

bool PredictionForm::IsDistribution() const {
  return low >= 0 && axis >= 0 && std::abs(sum - 1) <= kSumTolerance;
}

PredictionForm FormOf(const Graph& bound, ValueId value) { return FormFinder(bound).Of(value); }

}  // namespace espalier
