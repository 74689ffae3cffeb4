// Convolutions.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/conv_attributes.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

Dims Spatial(Translator& t, ValueId x) {
  const Dims& dims = t.DimsOf(x);
  return dims.size() < 2 ? Dims{} : Dims(dims.begin() + 2, dims.end());
}

// x[N, C, ...] and a weight with 1 to `most` spatial dimensions.
bool ExpectImages(Translator& t, ValueId x, ValueId weight, int most) {
  if (!t.ok()) return false;
  if (t.RankOf(x) < 3 || t.RankOf(x) != t.RankOf(weight)) {
    t.Fail(absl::StrCat("takes x[N, C, ...] and a weight of the same rank, found ",
                        ToString(t.DimsOf(x)), " and ", ToString(t.DimsOf(weight))));
  } else if (t.RankOf(x) > 2 + most) {
    t.Refuse(absl::StrCat("has ", t.RankOf(x) - 2, " spatial dimensions; taken are 1 to ", most));
  }
  return t.ok();
}

void Conv(Translator& t) {
  const ValueId x = t.Required(0), weight = t.Required(1), bias = t.Input(2);
  if (!ExpectImages(t, x, weight, 3)) return;
  ConvAttributes w;
  if (!ReadConvAttributes(t, Spatial(t, x), Spatial(t, weight), &w)) return;
  const int64_t groups = t.Int("group", 1);
  static const char* const kOps[] = {"conv1d", "conv2d", "conv3d"};
  t.Return(t.Emit(
      kOps[w.dims() - 1], {x, weight, bias},
      {{"strides", w.strides}, {"pads", w.pads}, {"dilations", w.dilations}, {"groups", groups}}));
}

// Pads and additional output that give `wanted` (attribute output_shape), as ONNX defines them.
void FitOutput(Translator& t, const Dims& x, std::vector<int64_t>* extra, ConvAttributes* w) {
  const size_t n = x.size();
  std::vector<int64_t> wanted = t.Ints("output_shape", {});
  const std::string mode = t.String("auto_pad", "NOTSET");
  const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  if (wanted.empty() && same) {
    for (size_t d = 0; d < n; ++d) wanted.push_back(x[d] * w->strides[d]);
  }
  if (wanted.empty()) return;
  if (wanted.size() == n + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (wanted.size() != n) {
    t.Fail(absl::StrCat("attribute 'output_shape' must be ", n, " integers"));
    return;
  }
  for (size_t d = 0; d < n; ++d) {
    const int64_t window = (w->kernel[d] - 1) * w->dilations[d] + 1;
    const int64_t full = w->strides[d] * (x[d] - 1) + (*extra)[d] + window;
    const int64_t total = std::max<int64_t>(0, full - wanted[d]);
    (*extra)[d] += std::max<int64_t>(0, wanted[d] - full);
    w->pads[d] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
    w->pads[d + n] = total - w->pads[d];
  }
}

void ConvTranspose(Translator& t) {
  const ValueId x = t.Required(0), weight = t.Required(1), bias = t.Input(2);
  if (!ExpectImages(t, x, weight, 3)) return;
  ConvAttributes w;
  const Dims spatial = Spatial(t, x);
  if (!ReadConvAttributes(t, spatial, Spatial(t, weight), &w)) return;
  std::vector<int64_t> extra = t.Ints("output_padding", std::vector<int64_t>(spatial.size(), 0));
  if (extra.size() != spatial.size()) {
    return t.Fail(absl::StrCat("attribute 'output_padding' must be ", spatial.size(), " integers"));
  }
  FitOutput(t, spatial, &extra, &w);
  static const char* const kOps[] = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
  t.Return(t.Emit(kOps[w.dims() - 1], {x, weight, bias},
                  {{"strides", w.strides},
                   {"pads", w.pads},
                   {"dilations", w.dilations},
                   {"groups", t.Int("group", 1)},
                   {"output_padding", extra}}));
}

// Col2Im sums overlapping blocks: a transposed convolution with an identity kernel.
void Col2Im(Translator& t) {
  const ValueId x = t.Required(0);
  const std::vector<int64_t> image = t.ConstantInts(1), block = t.ConstantInts(2);
  if (!t.ok()) return;
  const std::vector<int64_t> strides = t.Ints("strides", {1, 1}),
                             dilations = t.Ints("dilations", {1, 1});
  const std::vector<int64_t> pads = t.Ints("pads", {0, 0, 0, 0});
  if (image.size() != 2) return t.Refuse("takes images of two dimensions only");
  if (!ExpectPositive(t, "block_shape", block, 2) || !ExpectPositive(t, "strides", strides, 2) ||
      !ExpectPositive(t, "dilations", dilations, 2)) {
    return;
  }
  // elements of the kernel; larger byte sizes overflow
  constexpr int64_t kMaxUnits = int64_t{1} << 56;
  const int64_t size = block[0] * block[1];
  if (pads.size() != 4 || t.RankOf(x) != 3 || size > (1 << 12) || t.DimsOf(x)[1] % size != 0) {
    return t.Fail(
        absl::StrCat("takes x[N, C * block, L] and 4 pads, found ", ToString(t.DimsOf(x))));
  }
  if (t.DimsOf(x)[1] > kMaxUnits / size) {
    return t.Refuse(absl::StrCat("needs a kernel of more than ", kMaxUnits, " elements"));
  }
  const int64_t channels = t.DimsOf(x)[1] / size;
  Dims dims = {t.DimsOf(x)[0], t.DimsOf(x)[1]};
  std::vector<int64_t> extra;
  for (int d = 0; d < 2; ++d) {
    const int64_t padded = image[d] + pads[d] + pads[d + 2],
                  window = (block[d] - 1) * dilations[d] + 1;
    if (padded < window) return t.Fail("the block is larger than the image");
    dims.push_back((padded - window) / strides[d] + 1);
    extra.push_back((padded - window) % strides[d]);
  }
  if (!t.CheckConstantBytes(DType::kF32, channels * size * size)) return;
  constexpr float kOne = 1;
  std::string units(static_cast<size_t>(channels * size * size) * sizeof kOne, '\0');
  for (int64_t row = 0; row < channels * size; ++row) {
    std::memcpy(&units[static_cast<size_t>(row * size + row % size) * sizeof kOne], &kOne,
                sizeof kOne);
  }
  const ValueId weight =
      t.Cast(t.Constant({DType::kF32, {channels * size, 1, block[0], block[1]}}, std::move(units)),
             t.DTypeOf(x));
  t.Return(t.Emit("conv_transpose2d", {t.Reshape(x, dims), weight},
                  {{"strides", strides},
                   {"pads", pads},
                   {"dilations", dilations},
                   {"groups", channels},
                   {"output_padding", extra}}));
}

}  // namespace

void RegisterConvTranslations(TranslationTable& table) {
  table["Col2Im"] = Col2Im;
  table["Conv"] = Conv;
  table["ConvTranspose"] = ConvTranspose;
}

}  // namespace espalier::onnx_import
