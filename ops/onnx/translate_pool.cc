// Pooling. A 3D window is a 2D one followed by one in the third dimension: maxima, sums of powers
// and counts of averages all separate this way.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "ops/onnx/conv_attributes.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

ValueId Pool2d(Translator& t, ValueId x, const std::string& kind, const ConvAttributes& w) {
  Attributes attributes = {{"kind", kind},
                           {"kernel", w.kernel},
                           {"strides", w.strides},
                           {"pads", w.pads},
                           {"ceil_mode", t.Bool("ceil_mode")}};
  if (kind == "average") attributes.Set("count_include_pad", t.Bool("count_include_pad"));
  if (kind == "lp") attributes.Set("p", t.Int("p", 2));
  if (w.dilations != std::vector<int64_t>{1, 1}) attributes.Set("dilations", w.dilations);
  return t.Emit("pool2d", {x}, std::move(attributes));
}

// The window over some dimensions; the others are not pooled.
ConvAttributes Take(const ConvAttributes& w, std::vector<int> dims) {
  ConvAttributes taken;
  for (int d : dims) {
    taken.kernel.push_back(d < 0 ? 1 : w.kernel[d]);
    taken.strides.push_back(d < 0 ? 1 : w.strides[d]);
    taken.dilations.push_back(d < 0 ? 1 : w.dilations[d]);
  }
  for (int end = 0; end < 2; ++end) {
    for (int d : dims) taken.pads.push_back(d < 0 ? 0 : w.pads[end * w.dims() + d]);
  }
  return taken;
}

bool ReadPool(Translator& t, ValueId x, int most, ConvAttributes* w) {
  if (!t.ok()) return false;
  if (t.RankOf(x) < 3 || t.RankOf(x) > 2 + most) {
    t.Refuse(absl::StrCat("takes x[N, C, ...] with 1 to ", most,
                          " spatial dimensions; its input has shape ", ToString(t.DimsOf(x))));
    return false;
  }
  return ReadConvAttributes(t, {t.DimsOf(x).begin() + 2, t.DimsOf(x).end()}, {}, w);
}

void Pool(Translator& t, const std::string& kind) {
  const ValueId x = t.Required(0);
  ConvAttributes w;
  if (!ReadPool(t, x, 3, &w)) return;
  // With both, what a window beyond the padding counts is a product over the dimensions only
  // without dilations.
  const bool dilated =
      std::any_of(w.dilations.begin(), w.dilations.end(), [](int64_t d) { return d != 1; });
  if (kind == "average" && w.dims() == 3 && dilated && t.Bool("ceil_mode") &&
      t.Bool("count_include_pad")) {
    return t.Refuse(
        "in three dimensions 'ceil_mode', 'count_include_pad' and 'dilations' together are not "
        "taken");
  }
  const Dims dims = t.DimsOf(x);
  if (w.dims() == 2) return t.Return(Pool2d(t, x, kind, w));
  if (w.dims() == 1) {
    ValueId y = Pool2d(t, t.Reshape(x, {dims[0], dims[1], 1, dims[2]}), kind, Take(w, {-1, 0}));
    if (t.ok()) t.Return(t.Reshape(y, {dims[0], dims[1], t.DimsOf(y)[3]}));
    return;
  }
  ValueId y = Pool2d(t, t.Reshape(x, {dims[0], dims[1] * dims[2], dims[3], dims[4]}), kind,
                     Take(w, {1, 2}));
  if (!t.ok()) return;
  const int64_t height = t.DimsOf(y)[2], width = t.DimsOf(y)[3];
  y = Pool2d(t, t.Reshape(y, {dims[0], dims[1], dims[2], height * width}), kind, Take(w, {0, -1}));
  if (t.ok()) t.Return(t.Reshape(y, {dims[0], dims[1], t.DimsOf(y)[2], height, width}));
}

void MaxPool(Translator& t) {
  if (!t.WantsOutput(1)) return Pool(t, "max");
  ValueId x = t.Required(0);
  ConvAttributes w;
  if (!ReadPool(t, x, 2, &w)) return;
  const Dims dims = t.DimsOf(x);
  const bool line = w.dims() == 1;
  if (line) {
    x = t.Reshape(x, {dims[0], dims[1], 1, dims[2]});
    w = Take(w, {-1, 0});
  }
  std::vector<ValueId> results = t.EmitN("max_pool_indices", 2, {x},
                                         {{"kernel", w.kernel},
                                          {"strides", w.strides},
                                          {"pads", w.pads},
                                          {"dilations", w.dilations},
                                          {"ceil_mode", t.Bool("ceil_mode")},
                                          {"column_major", t.Bool("storage_order")}});
  if (!t.ok()) return;
  for (ValueId& y : results) {
    if (line) y = t.Reshape(y, {dims[0], dims[1], t.DimsOf(y)[3]});
  }
  t.ReturnAll(results);
}

void MaxUnpool(Translator& t) {
  const ValueId x = t.Required(0), indices = t.Required(1);
  ConvAttributes w;
  if (!ReadPool(t, x, 2, &w)) return;
  if (w.dims() != 2) return t.Refuse("takes x[N, C, H, W] only");
  Dims dims;
  for (int d = 0; d < 2; ++d) {
    dims.push_back((t.DimsOf(x)[d + 2] - 1) * w.strides[d] - w.pads[d] - w.pads[d + 2] +
                   w.kernel[d]);
  }
  ValueId y = t.Emit("max_unpool", {x, indices}, {{"dims", dims}});
  if (!t.HasInput(2)) return t.Return(y);
  // Indices are positions in the pooled image: the smaller one.
  const Dims larger = t.ConstantInts(2);
  if (t.ok() && larger.size() != 4) t.Fail("input 2 (output_shape) must be 4 integers");
  if (!t.ok()) return;
  std::vector<int64_t> pads(8, 0);
  for (int d = 0; d < 2; ++d) pads[6 + d] = larger[2 + d] - dims[d];
  t.Return(pads == std::vector<int64_t>(8, 0) ? y : t.Emit("pad", {y}, {{"pads", pads}}));
}

void Global(Translator& t, const std::string& op) {
  const ValueId x = t.Required(0);
  std::vector<int64_t> axes;
  for (int d = 2; d < t.RankOf(x); ++d) axes.push_back(d);
  if (axes.empty()) return t.Fail("takes x[N, C, ...]");
  t.Return(t.Reduce(op, x, axes, true));
}

void GlobalLpPool(Translator& t) {
  const int64_t p = t.Int("p", 2);
  if (p == 1 || p == 2) return Global(t, p == 1 ? "reduce_l1" : "reduce_l2");
  t.Refuse(absl::StrCat("attribute 'p' is ", p, "; taken are 1 and 2"));
}

}  // namespace

void RegisterPoolTranslations(TranslationTable& table) {
  table["AveragePool"] = [](Translator& t) { Pool(t, "average"); };
  table["GlobalAveragePool"] = [](Translator& t) { Global(t, "reduce_mean"); };
  table["GlobalLpPool"] = GlobalLpPool;
  table["GlobalMaxPool"] = [](Translator& t) { Global(t, "reduce_max"); };
  table["LpPool"] = [](Translator& t) { Pool(t, "lp"); };
  table["MaxPool"] = MaxPool;
  table["MaxUnpool"] = MaxUnpool;
}

}  // namespace espalier::onnx_import
