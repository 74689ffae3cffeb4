// The 3D U-Net of Çiçek et al., with padded convolutions as in nnU-Net, so that the output has the
// input's 128^3 voxels.
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {
namespace {

constexpr int kLevels = 4;

// `norm_groups` as in Unet3dSizes.
Features ConvNorm(Layers& l, const std::string& name, Features x, int64_t out,
                  int64_t norm_groups) {
  x = l.Conv(name + ".conv", x, out, {{3, 3, 3}, 1, {1, 1, 1}});
  if (norm_groups == 0) return l.BatchNorm(name + ".bn", x);
  x = l.GroupNorm(name + ".gn", x, norm_groups);
  return {l.builder().Op("relu", {x.value}, {}, name + ".relu"), x.width};
}

// Max pooling over 2^3 voxels. There is no 3D pooling operator; with each dimension reshaped to
// [half, 2] it is a maximum over three dimensions.
Features Halve(Layers& l, const std::string& name, Features x, int64_t edge) {
  const int64_t half = edge / 2;
  const ValueId cubes = l.builder().Op(
      "reshape", {x.value}, {{"shape", std::vector<int64_t>{0, 0, half, 2, half, 2, half, 2}}},
      name + ".cubes");
  return {l.builder().Op("reduce_max", {cubes}, {{"axes", std::vector<int64_t>{3, 5, 7}}}, name),
          x.width};
}

}  // namespace

absl::StatusOr<Graph> BuildUnet3d(const OpRegistry& registry, const Unet3dSizes& sizes) {
  Layers l(registry, "unet3d");
  const int64_t edge = sizes.edge, norm_groups = sizes.norm_groups;
  Features x = {l.builder().Input("volume", DType::kF32, {-1, sizes.channels, edge, edge, edge}),
                sizes.channels};
  std::vector<Features> skips;
  for (int level = 0; level < kLevels; ++level) {
    const std::string name = absl::StrCat("encoder.", level);
    if (level > 0) x = Halve(l, name + ".pool", x, edge >> (level - 1));
    x = ConvNorm(l, name + ".0", x, sizes.width << level, norm_groups);
    x = ConvNorm(l, name + ".1", x, 2 * sizes.width << level, norm_groups);
    skips.push_back(x);
  }
  for (int level = kLevels - 2; level >= 0; --level) {
    const std::string name = absl::StrCat("decoder.", level);
    x = l.UpConv3d(name + ".up", x, x.width);
    x = l.Concat(name + ".skip", {x, skips[level]});
    const int64_t width = skips[level].width;
    x = ConvNorm(l, name + ".0", x, width, norm_groups);
    x = ConvNorm(l, name + ".1", x, width, norm_groups);
  }
  x = l.Conv("head", x, sizes.classes, {{1, 1, 1}}, Bias::kFused);
  x.value = l.builder().Op("transpose", {x.value}, {{"perm", std::vector<int64_t>{0, 2, 3, 4, 1}}},
                           "head.classes_last");
  return l.Classify(x, {-1, edge, edge, edge});
}

}  // namespace espalier::zoo
