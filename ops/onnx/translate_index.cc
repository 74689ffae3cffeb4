// Gather, scatter and selection operators, and constants made of indices.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kMaxCount = 1 << 24;  // elements of a constant that a node creates

void Constant(Translator& t) {
  if (const onnx::AttributeProto* value = t.Attribute("value")) {
    absl::StatusOr<HostTensor> read = ReadTensor(value->t(), t.folder());
    if (!read.ok()) return t.SetStatus(read.status());
    t.Return(t.Constant(value->t(), read->type, std::move(read->bytes)));
  } else if (t.Attribute("value_int") != nullptr) {
    t.Return(t.Integers({t.Int("value_int", 0)}, {}));
  } else if (t.Attribute("value_ints") != nullptr) {
    const std::vector<int64_t> values = t.Ints("value_ints", {});
    t.Return(t.Integers(values, {static_cast<int64_t>(values.size())}));
  } else if (t.Attribute("value_float") != nullptr) {
    t.Return(t.Scalar(t.Float("value_float", 0), DType::kF32));
  } else if (t.Attribute("value_floats") != nullptr) {
    const std::vector<double> values = t.Floats("value_floats");
    t.Return(t.Numbers(DType::kF32, {static_cast<int64_t>(values.size())}, values));
  } else {
    t.Refuse("has none of the attributes value, value_int, value_ints, value_float, value_floats");
  }
}

void ConstantOfShape(Translator& t) {
  const Dims dims = t.ConstantInts(0);
  DType dtype = DType::kF32;
  double number = 0;
  if (const onnx::AttributeProto* value = t.Attribute("value")) {
    absl::StatusOr<HostTensor> read = ReadTensor(value->t(), t.folder());
    if (!read.ok()) return t.SetStatus(read.status());
    if (read->type.num_elements() != 1) return t.Fail("attribute 'value' must be one number");
    dtype = read->type.dtype;
    if (dtype == DType::kF16 || dtype == DType::kBF16) {
      return t.Return(t.Expand(t.Constant({dtype, {}}, read->bytes), dims));
    }
    number = NumbersOf(read->type, read->bytes)[0];
  }
  // Only dimension 0 can be the batch: a batch elsewhere (in an LSTM's initial state) is moved to
  // the front and back.
  Dims moved = dims;
  std::vector<int64_t> back(dims.size());
  std::iota(back.begin(), back.end(), 0);
  const auto batch =
      std::find_if(moved.begin(), moved.end(), [&](int64_t d) { return t.IsSymbolicBatch(d); });
  const bool moves = batch != moved.begin() && batch != moved.end();
  if (moves) {
    std::rotate(back.begin(), back.begin() + 1, back.begin() + (batch - moved.begin()) + 1);
    std::rotate(moved.begin(), batch, batch + 1);
  }
  Dims fixed = moved;
  for (int64_t& dim : fixed) dim = t.IsSymbolicBatch(dim) ? 1 : dim;
  const ValueId fill =
      t.Emit("fill", {}, {{"dims", fixed}, {"value", number}, {"dtype", std::string(Name(dtype))}});
  const ValueId filled = t.Expand(fill, moved);
  t.Return(moves ? t.Transpose(filled, back) : filled);
}

// start, start + step, ...: `count` numbers, a multiple of the batch.
ValueId RangeOfBatch(Translator& t, int64_t count, int64_t start, int64_t step, DType dtype) {
  const int64_t per_example = t.PerExample(count);
  ValueId ones = t.Expand(t.Integers({1}, {1}),
                          per_example == 1 ? Dims{count} : Dims{count / per_example, per_example});
  ones = t.Reshape(ones, {count});
  const Attributes before = {{"axis", int64_t{0}}, {"exclusive", true}};
  ValueId range = t.Cast(t.Emit("cumsum", {ones}, before), dtype);
  if (step != 1) range = t.Binary("multiply", range, static_cast<double>(step));
  if (start != 0) range = t.Binary("add", range, static_cast<double>(start));
  if (t.ok()) t.SetProgression(range, {start, step});
  return range;
}

double CountOf(double start, double limit, double step) {
  return step == 0 ? kMaxCount + 1.0 : std::max(0.0, std::ceil((limit - start) / step));
}

// A range of integers whose limit depends on the batch, as PyTorch writes arange(batch).
void RangeByBatch(Translator& t, DType dtype) {
  const ValueId first = t.Input(0), last = t.Input(1);
  const std::vector<int64_t> start = t.ConstantInts(0), limit = t.ConstantInts(1),
                             step = t.ConstantInts(2);
  if (t.ok() && (start.size() != 1 || limit.size() != 1 || step.size() != 1)) {
    t.Fail("its inputs must be single numbers");
  }
  if (!t.ok()) return;
  const auto count_of = [&](int64_t from, int64_t to) {
    return static_cast<int64_t>(
        CountOf(static_cast<double>(from), static_cast<double>(to), static_cast<double>(step[0])));
  };
  const std::vector<int64_t> first_at_one = t.IntsAtBatchOne(first, start),
                             last_at_one = t.IntsAtBatchOne(last, limit);
  const int64_t count = count_of(start[0], limit[0]),
                at_one = count_of(first_at_one[0], last_at_one[0]);
  if (t.IsSymbolicBatch(count) && t.PerExample(count) == at_one) {
    return t.Return(RangeOfBatch(t, count, start[0], step[0], dtype));
  }
  if (count != at_one || dtype != DType::kI64 || count > kMaxCount) {
    return t.Refuse(
        "how many numbers it makes depends on the batch size in a way that a graph for "
        "any batch cannot say; export the model with a fixed batch size");
  }
  std::vector<int64_t> values, ones;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(start[0] + i * step[0]);
    ones.push_back(first_at_one[0] + i * step[0]);
  }
  t.Return(t.Integers(values, ones, {count}));
}

void Range(Translator& t) {
  const ValueId first = t.Required(0), last = t.Required(1);
  if (!t.ok()) return;
  const DType dtype = t.DTypeOf(first);
  std::vector<double> values;
  const double start = t.ConstantNumber(0), limit = t.ConstantNumber(1),
               delta = t.ConstantNumber(2);
  if (!t.ok()) return;
  if (t.DependsOnBatch(t.Input(2))) return t.Refuse("its step depends on the batch size");
  const double count = CountOf(start, limit, delta);
  if (!(count <= kMaxCount)) {
    return t.Refuse(absl::StrCat("makes more than ", kMaxCount, " numbers, or has a step of 0"));
  }
  if (t.DependsOnBatch(first) || t.DependsOnBatch(last)) return RangeByBatch(t, dtype);
  const int64_t n = static_cast<int64_t>(count);
  if (!t.CheckConstantBytes(dtype, n)) return;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(start + static_cast<double>(i) * delta);
  }
  t.Return(t.Numbers(dtype, {static_cast<int64_t>(values.size())}, values));
}

void EyeLike(Translator& t) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const Dims dims = t.DimsOf(x);
  const DType dtype = t.Attribute("dtype") == nullptr
                          ? t.DTypeOf(x)
                          : FromOnnx(static_cast<int>(t.Int("dtype", 0)));
  if (dtype == DType::kInvalid) return t.Refuse("attribute 'dtype' names a type that is not taken");
  if (dims.size() != 2) return t.Fail("takes a matrix");
  if (t.IsSymbolicBatch(dims[0]) || t.IsSymbolicBatch(dims[1]) ||
      dims[0] > kMaxCount / std::max<int64_t>(1, dims[1])) {
    return t.Refuse(absl::StrCat("makes a matrix of shape ", ToString(dims)));
  }
  const int64_t k = t.Int("k", 0);
  if (!t.CheckConstantBytes(dtype, NumElements(dims))) return;
  std::vector<double> values;
  for (int64_t i = 0; i < dims[0]; ++i) {
    for (int64_t j = 0; j < dims[1]; ++j) values.push_back(j - i == k ? 1 : 0);
  }
  t.Return(t.Numbers(dtype, dims, values));
}

// a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n)
void Window(Translator& t, double a0, double a1, double a2) {
  const double size = t.ConstantNumber(0);
  const DType dtype = FromOnnx(static_cast<int>(t.Int("output_datatype", 1)));
  if (!t.ok()) return;
  if (!(size >= 0 && size <= kMaxCount) || !IsFloat(dtype)) {
    return t.Refuse(absl::StrCat("makes ", size,
                                 " numbers, or numbers of another type than "
                                 "floating-point ones"));
  }
  const int64_t n = static_cast<int64_t>(size);
  if (!t.CheckConstantBytes(dtype, n)) return;
  const double period = t.Bool("periodic", true) ? n : n - 1;
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const double phase = 2 * std::numbers::pi * static_cast<double>(i) / period;
    values.push_back(a0 - a1 * std::cos(phase) + a2 * std::cos(2 * phase));
  }
  t.Return(t.Numbers(dtype, {n}, values));
}

// If any index into `size` elements is known to be negative, returns non-negative ones.
ValueId FromTheFront(Translator& t, ValueId indices, int64_t size) {
  if (!t.IsKnown(indices)) return indices;
  const std::vector<int64_t> known = t.KnownInts(indices, "input 1");
  if (std::none_of(known.begin(), known.end(), [](int64_t i) { return i < 0; })) return indices;
  const ValueId negative = t.Binary("less", indices, 0.0);
  return t.Emit("where", {negative, t.Binary("add", indices, static_cast<double>(size)), indices});
}

void Gather(Translator& t) {
  const ValueId x = t.Required(0), indices = t.Required(1);
  if (!t.ok()) return;
  const int64_t axis = t.Axis(t.Int("axis", 0), t.RankOf(x));
  // A lookup in a trained table becomes an embedding, which can split its table. ONNX counts
  // negative ids from the end, embedding does not: such ids, if they are an input, fail the step.
  if (axis == 0 && t.RankOf(x) == 2 && t.IsParameter(x) && t.ok()) {
    t.Return(t.Emit("embedding", {FromTheFront(t, indices, t.DimsOf(x)[0]), x}));
  } else {
    t.Return(t.Emit("gather", {x, indices}, {{"axis", axis}}));
  }
}

void GatherElements(Translator& t) {
  const ValueId x = t.Required(0), indices = t.Required(1);
  t.Return(
      t.Emit("gather_elements", {x, indices}, {{"axis", t.Axis(t.Int("axis", 0), t.RankOf(x))}}));
}

void GatherND(Translator& t) {
  t.Return(t.Emit("gather_nd", {t.Required(0), t.Required(1)},
                  {{"batch_dims", t.Int("batch_dims", 0)}}));
}

std::string Reduction(Translator& t) {
  const std::string reduction = t.String("reduction", "none");
  if (reduction == "mul") return "multiply";
  if (reduction == "max") return "maximum";
  if (reduction == "min") return "minimum";
  return reduction;
}

void ScatterElements(Translator& t) {
  const ValueId x = t.Required(0), indices = t.Required(1), updates = t.Required(2);
  t.Return(t.Emit("scatter_elements", {x, indices, updates},
                  {{"axis", t.Axis(t.Int("axis", 0), t.RankOf(x))}, {"reduction", Reduction(t)}}));
}

void ScatterND(Translator& t) {
  t.Return(t.Emit("scatter_nd", {t.Required(0), t.Required(1), t.Required(2)},
                  {{"reduction", Reduction(t)}}));
}

void TopK(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> k =
      t.opset() < 10 ? std::vector<int64_t>{t.Int("k", 0)} : t.ConstantInts(1);
  if (t.ok() && k.size() != 1) t.Fail("input 1 (k) must be one integer");
  if (!t.ok()) return;
  t.ReturnAll(t.EmitN("top_k", 2, {x},
                      {{"k", k[0]},
                       {"axis", t.Axis(t.Int("axis", -1), t.RankOf(x))},
                       {"largest", t.Bool("largest", true)},
                       {"sorted", t.Bool("sorted", true)}}));
}

// Valid indices are -depth to depth - 1; others leave their row off.
void OneHot(Translator& t) {
  ValueId indices = t.Required(0);
  const ValueId values = t.Required(2);
  const std::vector<double> depth = t.ConstantNumbers(1);
  if (t.ok() && depth.size() != 1) t.Fail("input 1 (depth) must be one number");
  if (!t.ok()) return;
  indices = t.Cast(indices, DType::kI64);
  const int64_t axis = t.Axis(t.Int("axis", -1), t.RankOf(indices) + 1);
  const auto one_hot = [&](double on, double off, DType dtype) {
    return t.Emit("one_hot", {indices},
                  {{"depth", static_cast<int64_t>(depth[0])},
                   {"axis", axis},
                   {"on", on},
                   {"off", off},
                   {"dtype", std::string(Name(dtype))}});
  };
  if (t.IsKnown(values)) {
    const std::vector<double> off_on = t.KnownNumbers(values, "input 2");
    if (off_on.size() != 2) return t.Fail("input 2 (values) must be two numbers");
    return t.Return(one_hot(off_on[1], off_on[0], t.DTypeOf(values)));
  }
  const auto value = [&](int64_t i) {
    return t.Emit("gather", {values, t.Integers({i}, {})}, {{"axis", int64_t{0}}});
  };
  t.Return(t.Emit("where", {one_hot(1, 0, DType::kBool), value(1), value(0)}));
}

void Trilu(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> k = t.HasInput(1) ? t.ConstantInts(1) : std::vector<int64_t>{0};
  if (t.ok() && k.size() != 1) t.Fail("input 1 (k) must be one integer");
  if (!t.ok()) return;
  t.Return(t.Emit("triangle", {x}, {{"upper", t.Bool("upper", true)}, {"k", k[0]}}));
}

void ReverseSequence(Translator& t) {
  t.Return(t.Emit("reverse_sequence", {t.Required(0), t.Required(1)},
                  {{"batch_axis", t.Int("batch_axis", 1)}, {"time_axis", t.Int("time_axis", 0)}}));
}

// The indices of all elements of a tensor of these sizes, [rank, elements].
ValueId AllIndices(Translator& t, const Dims& dims) {
  const int64_t count = NumElements(dims);
  std::vector<ValueId> rows;
  for (size_t d = 0; d < dims.size() && t.ok(); ++d) {
    ValueId range;
    if (t.IsSymbolicBatch(dims[d])) {
      range = RangeOfBatch(t, dims[d], 0, 1, DType::kI64);
    } else if (dims[d] > kMaxCount) {
      t.Refuse(absl::StrCat("makes more than ", kMaxCount, " numbers"));
      return kNoValue;
    } else {
      std::vector<int64_t> values(dims[d]);
      std::iota(values.begin(), values.end(), 0);
      range = t.Integers(values, {dims[d]});
    }
    Dims apart(dims.size(), 1);
    apart[d] = dims[d];
    rows.push_back(t.Reshape(t.Expand(t.Reshape(range, apart), dims), {1, count}));
  }
  return rows.size() == 1 ? rows[0] : t.Emit("concat", rows, {{"axis", int64_t{0}}});
}

// The number of results depends on the data, so the data must be known at import; or all elements
// must be alike, as in arange(n) of opsets below 11.
void NonZero(Translator& t) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const Dims dims = t.DimsOf(x);
  const int64_t rank = static_cast<int64_t>(dims.size());
  if (!t.IsFixed(x)) {
    const std::optional<bool> filled = t.FilledWithNonzero(x);
    if (filled.has_value()) {
      return t.Return(*filled && rank > 0 ? AllIndices(t, dims) : t.Integers({}, {rank, 0}));
    }
    return t.Refuse(
        "the shape of its result depends on the data; a mask keeps the shape: torch.where(m, x, 0) "
        "or x.masked_fill(~m, 0) instead of x[m], (loss * m).sum() / m.sum() instead of "
        "loss[m].mean()");
  }
  if (t.DependsOnBatch(x)) return t.Refuse("the shape of its result depends on the batch size");
  const std::vector<double> values = t.KnownNumbers(x, "input 0");
  const int64_t nonzero =
      std::count_if(values.begin(), values.end(), [](double v) { return v != 0; });
  if (nonzero * std::max<int64_t>(1, rank) > kMaxCount) {
    return t.Refuse(absl::StrCat("makes more than ", kMaxCount, " numbers"));
  }
  std::vector<std::vector<int64_t>> found(dims.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) continue;
    int64_t rest = static_cast<int64_t>(i);
    for (size_t d = dims.size(); d-- > 0;) {
      found[d].push_back(rest % dims[d]);
      rest /= dims[d];
    }
  }
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& row : found) all.insert(all.end(), row.begin(), row.end());
  t.Return(t.Integers(all, {rank, rank == 0 ? 0 : static_cast<int64_t>(all.size()) / rank}));
}

void Compress(Translator& t) {
  ValueId x = t.Required(0);
  const ValueId condition = t.Required(1);
  if (!t.ok()) return;
  if (!t.IsFixed(condition)) return t.Refuse("the shape of its result depends on the data");
  int64_t axis = 0;
  if (t.Attribute("axis") == nullptr) {
    x = t.Reshape(x, {NumElements(t.DimsOf(x))});
  } else {
    axis = t.Axis(t.Int("axis", 0), t.RankOf(x));
  }
  std::vector<int64_t> chosen;
  const std::vector<int64_t> flags = t.KnownInts(condition, "input 1");
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0) chosen.push_back(static_cast<int64_t>(i));
  }
  const ValueId indices = t.Integers(chosen, {static_cast<int64_t>(chosen.size())});
  t.Return(t.Emit("gather", {x, indices}, {{"axis", axis}}));
}

}  // namespace

void RegisterIndexTranslations(TranslationTable& table) {
  table["BlackmanWindow"] = [](Translator& t) { Window(t, 0.42, 0.5, 0.08); };
  table["Compress"] = Compress;
  table["Constant"] = Constant;
  table["ConstantOfShape"] = ConstantOfShape;
  table["EyeLike"] = EyeLike;
  table["Gather"] = Gather;
  table["GatherElements"] = GatherElements;
  table["GatherND"] = GatherND;
  table["HammingWindow"] = [](Translator& t) { Window(t, 25.0 / 46.0, 21.0 / 46.0, 0); };
  table["HannWindow"] = [](Translator& t) { Window(t, 0.5, 0.5, 0); };
  table["NonZero"] = NonZero;
  table["OneHot"] = OneHot;
  table["Range"] = Range;
  table["ReverseSequence"] = ReverseSequence;
  table["Scatter"] = ScatterElements;
  table["ScatterElements"] = ScatterElements;
  table["ScatterND"] = ScatterND;
  table["TopK"] = TopK;
  table["Trilu"] = Trilu;
}

}  // namespace espalier::onnx_import
