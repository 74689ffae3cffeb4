// Operators on shapes: reshape, transpose, concat, pad, ...
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

void Identity(Translator& t) { t.Return(t.Required(0)); }

void Shape(Translator& t) {
  const Dims dims = t.DimsOf(t.Required(0));
  const int64_t rank = static_cast<int64_t>(dims.size());
  const auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  const int64_t start = clamp(t.Int("start", 0));
  const int64_t end = std::max(start, clamp(t.Int("end", rank)));
  t.Return(t.Sizes({dims.begin() + start, dims.begin() + end}, {end - start}));
}

void Size(Translator& t) { t.Return(t.Sizes({NumElements(t.DimsOf(t.Required(0)))}, {})); }

void Concat(Translator& t) {
  std::vector<ValueId> parts;
  for (int i = 0; i < t.NumInputs(); ++i) parts.push_back(t.Required(i));
  if (!t.ok() || parts.empty()) return t.Fail("has no input");
  const int64_t axis = t.Axis(t.Int("axis", 0), t.RankOf(parts[0]));
  t.Return(parts.size() == 1 ? parts[0] : t.Emit("concat", parts, {{"axis", axis}}));
}

void Reshape(Translator& t) {
  const ValueId x = t.Required(0);
  Dims shape = t.ConstantInts(1);
  if (!t.ok()) return;
  const Dims dims = t.DimsOf(x);
  const bool zeros = t.Bool("allowzero");
  int64_t known = 1;
  int inferred = -1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !zeros) {
      if (i >= dims.size())
        return t.Fail(absl::StrCat("copies dimension ", i, " of ", ToString(dims)));
      shape[i] = dims[i];
    }
    if (shape[i] < -1 || (shape[i] == -1 && inferred >= 0)) {
      return t.Fail("the new shape has a negative dimension other than one -1");
    }
    if (shape[i] == -1) {
      inferred = static_cast<int>(i);
    } else if (shape[i] > 0 && known > (int64_t{1} << 50) / shape[i]) {
      return t.Fail("the new shape is too large");
    } else {
      known *= shape[i];
    }
  }
  if (inferred >= 0) {
    const int64_t all = NumElements(dims);
    if (known == 0 || all % known != 0) {
      return t.Fail(absl::StrCat("cannot reshape ", ToString(dims), " to ", ToString(shape)));
    }
    shape[inferred] = all / known;
  }
  t.Return(t.Reshape(x, shape));
}

void Unsqueeze(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> given = t.IntsOf("axes", 1);
  if (!t.ok()) return;
  std::vector<int64_t> axes = t.Axes(given, t.RankOf(x) + static_cast<int>(given.size()));
  if (!t.ok()) return;
  std::sort(axes.begin(), axes.end());
  Dims dims = t.DimsOf(x);
  for (int64_t axis : axes) dims.insert(dims.begin() + axis, 1);
  t.Return(t.Reshape(x, dims));
}

void Squeeze(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> axes = t.Axes(t.IntsOf("axes", 1), t.RankOf(x));
  if (!t.ok()) return;
  Dims dims;
  for (size_t d = 0; d < t.DimsOf(x).size(); ++d) {
    const int64_t size = t.DimsOf(x)[d];
    const bool named = std::count(axes.begin(), axes.end(), static_cast<int64_t>(d)) > 0;
    if (named && size != 1) {
      return t.Fail(absl::StrCat("dimension ", d, " of ", ToString(t.DimsOf(x)), " is not 1"));
    }
    if (!(named || (axes.empty() && size == 1))) dims.push_back(size);
  }
  t.Return(t.Reshape(x, dims));
}

void Transpose(Translator& t) {
  const ValueId x = t.Required(0);
  std::vector<int64_t> reversed;
  for (int d = t.RankOf(x) - 1; d >= 0; --d) reversed.push_back(d);
  t.Return(t.Emit("transpose", {x}, {{"perm", t.Ints("perm", reversed)}}));
}

void Flatten(Translator& t) {
  const ValueId x = t.Required(0);
  int64_t axis = t.Int("axis", 1);
  if (axis < 0) axis += t.RankOf(x);
  t.Return(t.Emit("flatten", {x}, {{"axis", axis}}));
}

void Split(Translator& t) {
  const ValueId x = t.Required(0);
  if (!t.ok()) return;
  const int64_t axis = t.Axis(t.Int("axis", 0), t.RankOf(x));
  if (!t.ok()) return;
  const int64_t extent = t.DimsOf(x)[axis];
  const int64_t parts = t.Int("num_outputs", t.node().output_size());
  if (parts != t.node().output_size()) {
    return t.Fail(absl::StrCat("attribute 'num_outputs' is ", parts, ", the node has ",
                               t.node().output_size()));
  }
  std::vector<int64_t> sizes = t.IntsOf("split", 1);
  if (!t.HasInput(1) && t.Attribute("split") == nullptr) {
    const int64_t piece = (extent + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::max<int64_t>(0, std::min(piece, extent - i * piece)));
    }
  }
  t.ReturnAll(t.EmitN("split", static_cast<int>(parts), {x}, {{"axis", axis}, {"sizes", sizes}}));
}

// Leaves out slices of the whole batch, whose end (the batch size) no attribute can say.
void DropWholeBatch(const Dims& dims, const Translator& t, std::vector<int64_t>* axes,
                    std::vector<int64_t>* starts, std::vector<int64_t>* ends,
                    std::vector<int64_t>* steps) {
  for (size_t i = axes->size(); i-- > 0;) {
    const int64_t size = dims[(*axes)[i]];
    if (!t.IsSymbolicBatch(size) || (*starts)[i] != 0 || (*ends)[i] != size || (*steps)[i] != 1) {
      continue;
    }
    for (std::vector<int64_t>* values : {axes, starts, ends, steps}) {
      values->erase(values->begin() + static_cast<int64_t>(i));
    }
  }
}

void Slice(Translator& t) {
  const ValueId x = t.Required(0);
  const bool inputs = t.opset() >= 10;
  std::vector<int64_t> starts = inputs ? t.ConstantInts(1) : t.Ints("starts", {}),
                       ends = inputs ? t.ConstantInts(2) : t.Ints("ends", {});
  std::vector<int64_t> axes, steps(starts.size(), 1);
  if (inputs ? t.HasInput(3) : t.Attribute("axes") != nullptr) {
    axes = t.IntsOf("axes", 3);
  } else {
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  if (inputs && t.HasInput(4)) steps = t.ConstantInts(4);
  if (!t.ok()) return;
  axes = t.Axes(axes, t.RankOf(x));
  if (!t.ok()) return;
  if (starts.size() != axes.size() || ends.size() != axes.size() || steps.size() != axes.size()) {
    return t.Fail("starts, ends, axes and steps differ in length");
  }
  DropWholeBatch(t.DimsOf(x), t, &axes, &starts, &ends, &steps);
  t.Return(axes.empty()
               ? x
               : t.Emit("slice", {x},
                        {{"axes", axes}, {"starts", starts}, {"ends", ends}, {"steps", steps}}));
}

void Expand(Translator& t) {
  const ValueId x = t.Required(0);
  t.Return(t.Expand(x, t.ConstantInts(1)));
}

// Repeats dimension `d` once per example of the batch: as a new dimension in front of it, which
// broadcasts.
ValueId RepeatByBatch(Translator& t, ValueId x, size_t d, int64_t batch) {
  const auto at = static_cast<int64_t>(d);
  Dims apart = t.DimsOf(x), wide = apart, joined = apart;
  apart.insert(apart.begin() + at, 1);
  wide.insert(wide.begin() + at, batch);
  joined[d] *= batch;
  return t.Reshape(t.Expand(t.Reshape(x, apart), wide), joined);
}

void Tile(Translator& t) {
  ValueId x = t.Required(0);
  std::vector<int64_t> repeats = t.ConstantInts(1);
  if (!t.ok()) return;
  if (repeats.size() != t.DimsOf(x).size()) return t.Fail("needs a repeat for each dimension");
  for (size_t d = 0; d < repeats.size() && t.ok(); ++d) {
    if (!t.IsSymbolicBatch(repeats[d])) continue;
    x = RepeatByBatch(t, x, d, repeats[d]);
    repeats[d] = 1;
  }
  if (!t.ok()) return;
  const bool ones = std::all_of(repeats.begin(), repeats.end(), [](int64_t r) { return r == 1; });
  t.Return(ones ? x : t.Emit("tile", {x}, {{"repeats", repeats}}));
}

void DepthToSpace(Translator& t) {
  t.Return(t.Emit("depth_to_space", {t.Required(0)},
                  {{"blocksize", t.Int("blocksize", 0)}, {"mode", t.String("mode", "DCR")}}));
}

void SpaceToDepth(Translator& t) {
  t.Return(t.Emit("space_to_depth", {t.Required(0)}, {{"blocksize", t.Int("blocksize", 0)}}));
}

bool AnyOf(const std::vector<int64_t>& values) {
  return std::any_of(values.begin(), values.end(), [](int64_t v) { return v != 0; });
}

void Pad(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> given = t.opset() < 11 ? t.Ints("pads", {}) : t.ConstantInts(1);
  const int rank = t.RankOf(x);
  std::vector<int64_t> axes;
  for (int d = 0; d < rank; ++d) axes.push_back(d);
  if (t.HasInput(3)) axes = t.Axes(t.ConstantInts(3), rank);
  if (!t.ok()) return;
  if (given.size() != 2 * axes.size()) {
    return t.Fail(absl::StrCat("has ", given.size(), " pads, expected ", 2 * axes.size()));
  }
  std::vector<int64_t> pads(2 * rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    pads[axes[i]] = given[i];
    pads[rank + axes[i]] = given[axes.size() + i];
  }
  double value = t.opset() < 11 ? t.Float("value", 0) : 0;
  if (t.opset() >= 11 && t.HasInput(2)) value = t.ConstantNumber(2);
  // PyTorch writes a Pad before every AveragePool, usually of zeros.
  if (!t.ok() || !AnyOf(pads)) return t.Return(x);
  t.Return(t.Emit("pad", {x},
                  {{"pads", pads}, {"mode", t.String("mode", "constant")}, {"value", value}}));
}

void CenterCropPad(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> wanted = t.ConstantInts(1);
  const int rank = t.RankOf(x);
  std::vector<int64_t> all;
  for (int d = 0; d < rank; ++d) all.push_back(d);
  const std::vector<int64_t> axes = t.Axes(t.Ints("axes", all), rank);
  if (t.ok() && axes.size() != wanted.size()) t.Fail("shape and axes differ in length");
  if (!t.ok()) return;
  std::vector<int64_t> starts, ends, pads(2 * rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t size = t.DimsOf(x)[axes[i]], more = wanted[i] - size;
    if (wanted[i] < 0) return t.Fail("the shape has a negative dimension");
    starts.push_back(std::max<int64_t>(0, -more / 2));
    ends.push_back(starts.back() + std::min(size, wanted[i]));
    pads[axes[i]] = std::max<int64_t>(0, more / 2);
    pads[rank + axes[i]] = std::max<int64_t>(0, more) - pads[axes[i]];
  }
  ValueId y = t.Emit("slice", {x},
                     {{"axes", axes},
                      {"starts", starts},
                      {"ends", ends},
                      {"steps", std::vector<int64_t>(axes.size(), 1)}});
  if (AnyOf(pads)) y = t.Emit("pad", {y}, {{"pads", pads}});
  t.Return(y);
}

}  // namespace

void RegisterShapeTranslations(TranslationTable& table) {
  table["CenterCropPad"] = CenterCropPad;
  table["Concat"] = Concat;
  table["DepthToSpace"] = DepthToSpace;
  table["Expand"] = Expand;
  table["Flatten"] = Flatten;
  table["Identity"] = Identity;
  table["Pad"] = Pad;
  table["Reshape"] = Reshape;
  table["Shape"] = Shape;
  table["Size"] = Size;
  table["Slice"] = Slice;
  table["SpaceToDepth"] = SpaceToDepth;
  table["Split"] = Split;
  table["Squeeze"] = Squeeze;
  table["Tile"] = Tile;
  table["Transpose"] = Transpose;
  table["Unsqueeze"] = Unsqueeze;
}

}  // namespace espalier::onnx_import
