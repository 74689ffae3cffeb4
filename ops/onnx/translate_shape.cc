// Operators that move elements, and the integer arithmetic on shapes that exporters put before
// them.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

void ConstantNode(Translator& t);  // translator.cc

namespace {

// True, with the values bound, if the node computes integers that are known at import.
bool FoldGather(Translator& t) {
  if (!t.IsConstant(0) || !t.IsConstant(1) || t.Int("axis", 0) != 0) return false;
  const std::vector<int64_t> data = t.ConstantInts(0), indices = t.ConstantInts(1);
  if (!t.ok()) return true;
  std::vector<int64_t> out;
  const int64_t n = static_cast<int64_t>(data.size());
  for (int64_t index : indices) {
    if (index < -n || index >= n) {
      t.Fail(absl::StrCat("index ", index, " is not in ", -n, "..", n - 1));
      return true;
    }
    out.push_back(data[index < 0 ? index + n : index]);
  }
  const int64_t count = static_cast<int64_t>(out.size());
  t.ReturnInts(std::move(out), count == 1 ? Dims{} : Dims{count});
  return true;
}

void Gather(Translator& t) {
  if (FoldGather(t)) return;
  const ValueId x = t.Input(0), indices = t.Input(1);
  if (!t.ok()) return;
  const int64_t axis = t.Axis(t.Int("axis", 0), t.RankOf(x));
  // A lookup in a table of vectors is an embedding: it can split its table.
  if (axis == 0 && t.RankOf(x) == 2 && t.ok()) {
    t.Return(t.Emit("embedding", {indices, x}));
  } else {
    t.Return(t.Emit("gather", {x, indices}, {{"axis", axis}}));
  }
}

void Shape(Translator& t) {
  const ValueId x = t.Input(0);
  const Dims dims = t.DimsOf(x);
  const int64_t rank = static_cast<int64_t>(dims.size());
  const auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  const int64_t start = clamp(t.Int("start", 0));
  const int64_t end = std::max(start, clamp(t.Int("end", rank)));
  t.ReturnInts({dims.begin() + start, dims.begin() + end}, {end - start});
}

bool AllConstant(Translator& t) {
  for (int i = 0; i < t.node().input_size(); ++i) {
    if (!t.IsConstant(i)) return false;
  }
  return t.node().input_size() > 0;
}

void Concat(Translator& t) {
  if (AllConstant(t)) {
    std::vector<int64_t> all;
    for (int i = 0; i < t.node().input_size(); ++i) {
      for (int64_t v : t.ConstantInts(i)) all.push_back(v);
    }
    const int64_t n = static_cast<int64_t>(all.size());
    t.ReturnInts(std::move(all), {n});
    return;
  }
  std::vector<ValueId> parts;
  for (int i = 0; i < t.node().input_size(); ++i) parts.push_back(t.Input(i));
  if (!t.ok()) return;
  t.Return(t.Emit("concat", parts, {{"axis", t.Axis(t.Int("axis", 0), t.RankOf(parts[0]))}}));
}

// Sizes that hold the probe batch become "copy" or "infer", so that the graph fits any batch.
std::vector<int64_t> WithoutProbe(Translator& t, ValueId x, std::vector<int64_t> shape) {
  int inferred = static_cast<int>(std::count(shape.begin(), shape.end(), -1));
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < kProbeBatch || shape[i] % kProbeBatch != 0) continue;
    if (i < t.DimsOf(x).size() && t.DimsOf(x)[i] == shape[i]) {
      shape[i] = 0;
    } else {
      shape[i] = -1;
      ++inferred;
    }
  }
  if (inferred > 1) t.Refuse("more than one dimension of the new shape depends on the batch");
  return shape;
}

void Reshape(Translator& t) {
  const ValueId x = t.Input(0);
  std::vector<int64_t> shape = t.ConstantInts(1);
  if (!t.ok()) return;
  if (t.Int("allowzero", 0) != 0 && std::count(shape.begin(), shape.end(), 0) > 0) {
    t.Refuse("allowzero with a zero in the shape is not taken");
    return;
  }
  // Files exported at a fixed batch size say it in the shape, where -1 would do.
  t.Return(t.Emit("reshape", {x}, {{"shape", WithoutProbe(t, x, std::move(shape))}}));
}

// Reshape to dims, which may hold the probe batch.
void ReturnReshaped(Translator& t, ValueId x, const Dims& dims) {
  if (!t.ok()) return;
  t.Return(t.Emit("reshape", {x}, {{"shape", WithoutProbe(t, x, dims)}}));
}

std::vector<int64_t> AxesOf(Translator& t, int rank) {
  std::vector<int64_t> axes = t.HasInput(1) ? t.ConstantInts(1) : t.Ints("axes", {});
  for (int64_t& axis : axes) axis = t.Axis(axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

void Unsqueeze(Translator& t) {
  if (t.IsConstant(0)) {
    std::vector<int64_t> values = t.ConstantInts(0);
    const int64_t n = static_cast<int64_t>(values.size());
    t.ReturnInts(std::move(values), {n});
    return;
  }
  const ValueId x = t.Input(0);
  const size_t added = t.HasInput(1) ? t.ConstantInts(1).size() : t.Ints("axes", {}).size();
  if (!t.ok()) return;
  Dims dims = t.DimsOf(x);
  for (int64_t axis : AxesOf(t, t.RankOf(x) + static_cast<int>(added))) {
    if (axis > static_cast<int64_t>(dims.size())) {
      t.Fail("attribute or input 'axes' names an axis twice");
      return;
    }
    dims.insert(dims.begin() + axis, 1);
  }
  ReturnReshaped(t, x, dims);
}

void Squeeze(Translator& t) {
  const ValueId x = t.Input(0);
  if (!t.ok()) return;
  std::vector<int64_t> axes = AxesOf(t, t.RankOf(x));
  Dims dims;
  for (size_t d = 0; d < t.DimsOf(x).size(); ++d) {
    const bool named = std::count(axes.begin(), axes.end(), static_cast<int64_t>(d)) > 0;
    if (named && t.DimsOf(x)[d] != 1) {
      t.Fail(absl::StrCat("dimension ", d, " of ", ToString(t.DimsOf(x)), " is not 1"));
      return;
    }
    if (!(named || (axes.empty() && t.DimsOf(x)[d] == 1))) dims.push_back(t.DimsOf(x)[d]);
  }
  ReturnReshaped(t, x, dims);
}

// PyTorch writes one before every AveragePool, mostly of zeros.
void Pad(Translator& t) {
  const ValueId x = t.Input(0);
  const std::vector<int64_t> pads = t.ConstantInts(1);
  if (!t.ok()) return;
  if (std::any_of(pads.begin(), pads.end(), [](int64_t p) { return p != 0; })) {
    t.Refuse(
        "pads by something other than zero rows and columns; put the padding into the convolution "
        "or the pool");
    return;
  }
  t.Return(x);
}

void Transpose(Translator& t) {
  const ValueId x = t.Input(0);
  std::vector<int64_t> reversed;
  for (int d = t.RankOf(x) - 1; d >= 0; --d) reversed.push_back(d);
  t.Return(t.Emit("transpose", {x}, {{"perm", t.Ints("perm", reversed)}}));
}

void Flatten(Translator& t) {
  const ValueId x = t.Input(0);
  int64_t axis = t.Int("axis", 1);
  if (axis < 0) axis += t.RankOf(x);
  t.Return(t.Emit("flatten", {x}, {{"axis", axis}}));
}

void Split(Translator& t) {
  const ValueId x = t.Input(0);
  if (!t.ok()) return;
  const int64_t axis = t.Axis(t.Int("axis", 0), t.RankOf(x));
  if (!t.ok()) return;
  const int64_t extent = t.DimsOf(x)[axis];
  const int64_t parts = t.node().output_size();
  std::vector<int64_t> sizes;
  if (t.HasInput(1)) {
    sizes = t.ConstantInts(1);
  } else {
    const int64_t piece = (extent + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::max<int64_t>(0, std::min(piece, extent - i * piece)));
    }
  }
  const std::vector<ValueId> results =
      t.EmitN("split", static_cast<int>(parts), {x}, {{"axis", axis}, {"sizes", sizes}});
  for (int i = 0; i < parts; ++i) t.Return(results[i], i);
}

bool FoldSlice(Translator& t) {
  if (!t.IsConstant(0)) return false;
  const std::vector<int64_t> data = t.ConstantInts(0), starts = t.ConstantInts(1),
                             ends = t.ConstantInts(2);
  if (!t.ok()) return true;
  const int64_t n = static_cast<int64_t>(data.size());
  const int64_t step = t.HasInput(4) ? t.ConstantInts(4)[0] : 1;
  if (starts.size() != 1 || ends.size() != 1 || step <= 0) {
    t.Refuse("this slice of a shape is not taken");
    return true;
  }
  const auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
  std::vector<int64_t> out;
  for (int64_t i = clamp(starts[0]); i < clamp(ends[0]); i += step) out.push_back(data[i]);
  const int64_t count = static_cast<int64_t>(out.size());
  t.ReturnInts(std::move(out), {count});
  return true;
}

void Slice(Translator& t) {
  if (FoldSlice(t)) return;
  const ValueId x = t.Input(0);
  const std::vector<int64_t> starts = t.ConstantInts(1), ends = t.ConstantInts(2);
  std::vector<int64_t> axes, steps;
  if (t.HasInput(3)) {
    axes = t.ConstantInts(3);
  } else {
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  steps = t.HasInput(4) ? t.ConstantInts(4) : std::vector<int64_t>(starts.size(), 1);
  if (!t.ok()) return;
  for (int64_t& axis : axes) axis = t.Axis(axis, t.RankOf(x));
  if (starts.size() != axes.size() || ends.size() != axes.size() || steps.size() != axes.size()) {
    t.Fail("starts, ends, axes and steps differ in length");
    return;
  }
  t.Return(
      t.Emit("slice", {x}, {{"axes", axes}, {"starts", starts}, {"ends", ends}, {"steps", steps}}));
}

}  // namespace

void RegisterShape(TranslationTable* table) {
  (*table)["Concat"] = Concat;
  (*table)["Constant"] = ConstantNode;
  (*table)["Flatten"] = Flatten;
  (*table)["Gather"] = Gather;
  (*table)["Identity"] = [](Translator& t) { t.Return(t.Input(0)); };
  (*table)["Pad"] = Pad;
  (*table)["Reshape"] = Reshape;
  (*table)["Shape"] = Shape;
  (*table)["Slice"] = Slice;
  (*table)["Split"] = Split;
  (*table)["Squeeze"] = Squeeze;
  (*table)["Transpose"] = Transpose;
  (*table)["Unsqueeze"] = Unsqueeze;
}

}  // namespace espalier::onnx_import
