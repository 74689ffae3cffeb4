// ResNet-50 with the stride on the 3x3 convolution ("v1.5", as in torchvision and MLPerf).
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {
namespace {

constexpr int64_t kExpansion = 4;

Features Bottleneck(Layers& l, const std::string& name, Features x, int64_t width, int64_t stride) {
  Features shortcut = x;
  if (stride != 1 || x.width != width * kExpansion) {
    shortcut = l.Conv(name + ".downsample.conv", x, width * kExpansion, {{1, 1}, stride});
    shortcut = l.BatchNorm(name + ".downsample.bn", shortcut, {.activation = "none"});
  }
  Features y = l.BatchNorm(name + ".bn1", l.Conv(name + ".conv1", x, width, {{1, 1}}));
  y = l.BatchNorm(name + ".bn2", l.Conv(name + ".conv2", y, width, {{3, 3}, stride, {1, 1}}));
  y = l.Conv(name + ".conv3", y, width * kExpansion, {{1, 1}});
  return l.BatchNorm(name + ".bn3", y, {.residual = shortcut.value});
}

}  // namespace

absl::StatusOr<Graph> BuildResNet50(const OpRegistry& registry, const ResNetSizes& sizes) {
  Layers l(registry, "resnet50");
  Features x = {
      l.builder().Input("image", DType::kF32, {-1, sizes.channels, sizes.edge, sizes.edge}),
      sizes.channels};
  x = l.BatchNorm("bn1", l.Conv("conv1", x, sizes.width, {{7, 7}, 2, {3, 3}}));
  x = l.Pool2d("maxpool", x, "max", {{3, 3}, 2, {1, 1}});
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    for (int i = 0; i < blocks[stage]; ++i) {
      x = Bottleneck(l, absl::StrCat("layer", stage + 1, ".", i), x, sizes.width << stage,
                     stage > 0 && i == 0 ? 2 : 1);
    }
  }
  return l.Classify(l.Linear("fc", l.GlobalAverage("avgpool", x), sizes.classes));
}

}  // namespace espalier::zoo
