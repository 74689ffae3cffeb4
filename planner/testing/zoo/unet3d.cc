// The 3D U-Net of Çiçek et al., with padded convolutions (as nnU-Net has them), so that 128^3
// voxels in are 128^3 voxels out.
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {
namespace {

constexpr int64_t kEdge = 128, kClasses = 3;
constexpr int kLevels = 4;

Features ConvNorm(Layers& l, const std::string& name, Features x, int64_t out) {
  return l.BatchNorm(name + ".bn", l.Conv(name + ".conv", x, out, {{3, 3, 3}, 1, {1, 1, 1}}));
}

// Maximum over cubes of two voxels a side. There is no pooling of volumes; with each dimension
// written as [half, 2] it is a maximum over three dimensions.
Features Halve(Layers& l, const std::string& name, Features x, int64_t edge) {
  const int64_t half = edge / 2;
  const ValueId cubes = l.builder().Op(
      "reshape", {x.value}, {{"shape", std::vector<int64_t>{0, 0, half, 2, half, 2, half, 2}}},
      name + ".cubes");
  return {l.builder().Op("reduce_max", {cubes}, {{"axes", std::vector<int64_t>{3, 5, 7}}}, name),
          x.width};
}

}  // namespace

absl::StatusOr<Graph> BuildUnet3d(const OpRegistry& registry) {
  Layers l(registry, "unet3d");
  Features x = {l.builder().Input("volume", DType::kF32, {-1, 3, kEdge, kEdge, kEdge}), 3};
  std::vector<Features> skips;
  for (int level = 0; level < kLevels; ++level) {
    const std::string name = absl::StrCat("encoder.", level);
    if (level > 0) x = Halve(l, name + ".pool", x, kEdge >> (level - 1));
    x = ConvNorm(l, name + ".0", x, int64_t{32} << level);
    x = ConvNorm(l, name + ".1", x, int64_t{64} << level);
    skips.push_back(x);
  }
  for (int level = kLevels - 2; level >= 0; --level) {
    const std::string name = absl::StrCat("decoder.", level);
    x = l.UpConv3d(name + ".up", x, x.width);
    x = l.Concat(name + ".skip", {x, skips[level]});
    const int64_t width = skips[level].width;
    x = ConvNorm(l, name + ".0", x, width);
    x = ConvNorm(l, name + ".1", x, width);
  }
  x = l.Conv("head", x, kClasses, {{1, 1, 1}}, Bias::kFused);
  x.value = l.builder().Op("transpose", {x.value}, {{"perm", std::vector<int64_t>{0, 2, 3, 4, 1}}},
                           "head.classes_last");
  return l.Classify(x, {-1, kEdge, kEdge, kEdge});
}

}  // namespace espalier::zoo
