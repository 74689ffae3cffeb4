// One tower, as in torchvision (Krizhevsky 2014); the paper of 2012 had two, and local response
// normalization.
#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {

absl::StatusOr<Graph> BuildAlexNet(const OpRegistry& registry) {
  Layers l(registry, "alexnet");
  Features x = {l.builder().Input("image", DType::kF32, {-1, 3, 224, 224}), 3};
  const auto conv = [&](int i, int64_t out, const Window& window) {
    x = l.Conv(absl::StrCat("conv", i), x, out, window, Bias::kFused, "relu");
  };
  const auto pool = [&](int i) { x = l.Pool2d(absl::StrCat("pool", i), x, "max", {{3, 3}, 2}); };
  conv(1, 64, {{11, 11}, 4, {2, 2}});
  pool(1);
  conv(2, 192, {{5, 5}, 1, {2, 2}});
  pool(2);
  conv(3, 384, {{3, 3}, 1, {1, 1}});
  conv(4, 256, {{3, 3}, 1, {1, 1}});
  conv(5, 256, {{3, 3}, 1, {1, 1}});
  pool(5);
  x = {l.builder().Op("flatten", {x.value}, {}, "flatten"), x.width * 6 * 6};
  for (int i = 6; i <= 7; ++i) {
    x.value = l.builder().Op("dropout", {x.value}, {{"rate", 0.5}}, absl::StrCat("dropout", i));
    x = l.Linear(absl::StrCat("fc", i), x, 4096, Bias::kFused, "relu");
  }
  return l.Classify(l.Linear("fc8", x, 1000));
}

}  // namespace espalier::zoo
