// Exports elementwise operators, reductions and selections.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/writer.h"

namespace espalier::onnx_export {
namespace {

// op(x, value)
void WithScalar(Writer& w, const std::string& op_type) {
  w.Finish(op_type, {w.In(0), w.Number(w.attributes().Float("value"), w.InType(0).dtype)});
}

void Clip(Writer& w) {
  std::vector<std::string> inputs = {w.In(0)};
  for (const char* bound : {"min", "max"}) {
    inputs.push_back(
        w.attributes().Has(bound) ? w.Number(w.attributes().Float(bound), w.InType(0).dtype) : "");
  }
  w.Finish("Clip", inputs);
}

void Silu(Writer& w) { w.Finish("Mul", {w.In(0), w.Emit("Sigmoid", {w.In(0)})}); }

void Swiglu(Writer& w) {
  w.Finish("Mul", {w.Emit("Mul", {w.In(0), w.Emit("Sigmoid", {w.In(0)})}), w.In(1)});
}

void Rsqrt(Writer& w) { w.Finish("Reciprocal", {w.Emit("Sqrt", {w.In(0)})}); }

void Gelu(Writer& w) {
  w.Finish("Gelu", {w.In(0)}, {{"approximate", w.attributes().String("approximate", "none")}});
}

void AddN(Writer& w) {
  std::vector<std::string> inputs;
  for (int i = 0; i < w.NumIn(); ++i) inputs.push_back(w.In(i));
  w.Finish("Sum", inputs);
}

int64_t TypeNumber(const std::string& name) { return onnx_import::ToOnnx(DTypeFromName(name)); }

void Cast(Writer& w) {
  w.Finish("Cast", {w.In(0)}, {{"to", TypeNumber(w.attributes().String("to"))}});
}

void Fill(Writer& w) {
  const DType dtype = w.OutType().dtype;
  w.Finish("Expand",
           {w.Number(w.attributes().Float("value"), dtype), w.Ints(w.attributes().Ints("dims"))});
}

void WithAxis(Writer& w, const std::string& op_type) {
  w.Finish(op_type, {w.In(0)}, {{"axis", w.attributes().Int("axis", -1)}});
}

void Reduce(Writer& w, const std::string& op_type) {
  const std::vector<int64_t> axes = w.attributes().Ints("axes");
  w.Finish(op_type, {w.In(0), axes.empty() ? "" : w.Ints(axes)},
           {{"keepdims", w.attributes().Bool("keepdims")}});
}

void CumSum(Writer& w) {
  w.Finish("CumSum", {w.In(0), w.Int(w.attributes().Int("axis"))},
           {{"exclusive", w.attributes().Bool("exclusive")},
            {"reverse", w.attributes().Bool("reverse")}});
}

Attributes TopKAttributes(Writer& w) {
  return {{"axis", w.attributes().Int("axis", -1)},
          {"largest", w.attributes().Bool("largest", true)},
          {"sorted", w.attributes().Bool("sorted", true)}};
}

void TopK(Writer& w) {
  w.Finish("TopK", {w.In(0), w.Ints({w.attributes().Int("k")})}, TopKAttributes(w));
}

void ArgTopK(Writer& w) {
  const std::string values = w.Out() + "/values", indices = w.Out() + "/indices";
  w.EmitTo({values, indices}, "TopK", {w.In(0), w.Ints({w.attributes().Int("k")})},
           TopKAttributes(w));
  w.Finish("Cast", {indices}, {{"to", int64_t{onnx_import::ToOnnx(DType::kI32)}}});
}

// Everything along an axis, whose length may be the batch's.
void WriteSort(Writer& w, const std::vector<std::string>& outputs) {
  const int64_t axis = w.attributes().Int("axis", -1);
  const int64_t from_start = axis < 0 ? axis + w.Rank(0) : axis;
  const std::string k =
      w.Emit("Gather", {w.Emit("Shape", {w.In(0)}), w.Ints({from_start})}, {{"axis", int64_t{0}}});
  w.EmitTo(outputs, "TopK", {w.In(0), k},
           {{"axis", axis}, {"largest", w.attributes().Bool("descending")}, {"sorted", true}});
}

void Sort(Writer& w) { WriteSort(w, {w.Out(0), w.Out(1)}); }

void ArgSort(Writer& w) { WriteSort(w, {w.Out() + "/values", w.Out()}); }

void OneHot(Writer& w) {
  const DType dtype = DTypeFromName(w.attributes().String("dtype", "f32"));
  const auto value = [&](const char* name, double fallback) {
    return w.Emit("Unsqueeze",
                  {w.Number(w.attributes().Float(name, fallback), dtype), w.Ints({0})});
  };
  const std::string values =
      w.Emit("Concat", {value("off", 0), value("on", 1)}, {{"axis", int64_t{0}}});
  w.Finish("OneHot", {w.In(0), w.Int(w.attributes().Int("depth")), values},
           {{"axis", w.attributes().Int("axis", -1)}});
}

void Triangle(Writer& w) {
  w.Finish("Trilu", {w.In(0), w.Int(w.attributes().Int("k"))},
           {{"upper", w.attributes().Bool("upper")}});
}

void Scatter(Writer& w, const std::string& op_type) {
  std::string reduction = w.attributes().String("reduction", "none");
  if (reduction == "multiply") reduction = "mul";
  if (reduction == "maximum") reduction = "max";
  if (reduction == "minimum") reduction = "min";
  Attributes attributes = {{"reduction", reduction}};
  if (op_type == "ScatterElements") attributes.Set("axis", w.attributes().Int("axis"));
  w.Finish(op_type, {w.In(0), w.In(1), w.In(2)}, attributes);
}

}  // namespace

void RegisterElementwiseWriters(WriterTable& table) {
  const auto add = [&](const std::string& op, void (*write)(Writer&, const std::string&),
                       const std::string& onnx) {
    table[op] = [write, onnx](Writer& w) { write(w, onnx); };
  };
  add("add_scalar", WithScalar, "Add");
  add("divide_scalar", WithScalar, "Div");
  add("multiply_scalar", WithScalar, "Mul");
  add("power_scalar", WithScalar, "Pow");
  add("subtract_scalar", WithScalar, "Sub");
  add("softmax", WithAxis, "Softmax");
  add("log_softmax", WithAxis, "LogSoftmax");
  add("reduce_l1", Reduce, "ReduceL1");
  add("reduce_l2", Reduce, "ReduceL2");
  add("reduce_log_sum", Reduce, "ReduceLogSum");
  add("reduce_log_sum_exp", Reduce, "ReduceLogSumExp");
  add("reduce_max", Reduce, "ReduceMax");
  add("reduce_mean", Reduce, "ReduceMean");
  add("reduce_min", Reduce, "ReduceMin");
  add("reduce_prod", Reduce, "ReduceProd");
  add("reduce_sum", Reduce, "ReduceSum");
  add("reduce_sum_square", Reduce, "ReduceSumSquare");
  add("scatter_elements", Scatter, "ScatterElements");
  add("scatter_nd", Scatter, "ScatterND");
  const auto variadic = [&](const std::string& op, const std::string& onnx) {
    table[op] = [onnx](Writer& w) { w.Finish(onnx, {w.In(0), w.In(1)}); };
  };
  variadic("maximum", "Max");
  variadic("minimum", "Min");
  table["add_n"] = AddN;
  table["arg_top_k"] = ArgTopK;
  table["argsort"] = ArgSort;
  table["cast"] = Cast;
  table["clip"] = Clip;
  table["cumsum"] = CumSum;
  table["fill"] = Fill;
  table["gelu"] = Gelu;
  table["identity"] = [](Writer& w) { w.Finish("Identity", {w.In(0)}); };
  table["not_equal"] = [](Writer& w) { w.Finish("Not", {w.Emit("Equal", {w.In(0), w.In(1)})}); };
  table["one_hot"] = OneHot;
  table["rsqrt"] = Rsqrt;
  table["silu"] = Silu;
  table["sort"] = Sort;
  table["stop_gradient"] = table["identity"];
  table["swiglu"] = Swiglu;
  table["top_k"] = TopK;
  table["triangle"] = Triangle;
}

}  // namespace espalier::onnx_export
