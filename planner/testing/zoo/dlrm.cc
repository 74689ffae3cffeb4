// DLRM as its authors train it on the Criteo Terabyte data set. Each of the 26 tables is an
// operator, so that tables can be placed as well as split.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {
namespace {

constexpr int64_t kRowWidth = 64;
constexpr int64_t kMostRows = 1000000;  // larger ids are folded, as with --max-ind-range

// The number of distinct ids of each categorical feature.
constexpr int64_t kIds[] = {39884406, 39043,    17289,    7420,     20263,  3,     7120, 1543, 63,
                            38532951, 2953546,  403346,   10,       2208,   11938, 155,  4,    976,
                            14,       39979771, 25641295, 39664984, 585935, 12972, 108,  36};

Features Mlp(Layers& l, const std::string& name, Features x, const std::vector<int64_t>& widths) {
  for (size_t i = 0; i < widths.size(); ++i) {
    x = l.Linear(absl::StrCat(name, ".", i), x, widths[i], Bias::kFused, "relu");
  }
  return x;
}

// Products of all pairs of rows of `vectors`, each pair once.
Features Interact(Layers& l, const std::vector<Features>& vectors) {
  const int64_t n = static_cast<int64_t>(vectors.size());
  GraphBuilder& b = l.builder();
  const ValueId rows = b.Op("reshape", {l.Concat("interaction.concat", vectors).value},
                            {{"shape", std::vector<int64_t>{0, n, kRowWidth}}}, "interaction.rows");
  ValueId products = b.Op("matmul", {rows, rows}, {{"transpose_b", true}}, "interaction.products");
  products = b.Op("flatten", {products}, {}, "interaction.flatten");
  std::vector<int32_t> pairs;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) pairs.push_back(static_cast<int32_t>(i * n + j));
  }
  const int64_t count = static_cast<int64_t>(pairs.size());
  const ValueId places = b.Constant(
      "interaction.places", DType::kI32, {count},
      std::string(reinterpret_cast<const char*>(pairs.data()), pairs.size() * sizeof(int32_t)));
  return {b.Op("gather", {products, places}, {{"axis", int64_t{1}}}, "interaction.pairs"), count};
}

}  // namespace

absl::StatusOr<Graph> BuildDlrm(const OpRegistry& registry) {
  Layers l(registry, "dlrm");
  GraphBuilder& b = l.builder();
  const Features dense =
      Mlp(l, "bottom", {b.Input("dense", DType::kF32, {-1, 13}), 13}, {512, 256, kRowWidth});
  std::vector<Features> vectors = {dense};
  for (size_t i = 0; i < std::size(kIds); ++i) {
    const std::string name = absl::StrCat("embedding.", i);
    const ValueId table = l.Weight(name + ".weight", {std::min(kIds[i], kMostRows), kRowWidth});
    const ValueId ids = b.Input(absl::StrCat("sparse.", i), DType::kI64, {-1});
    vectors.push_back({b.Op("embedding", {ids, table}, {}, name), kRowWidth});
  }
  Features x = l.Concat("top.input", {dense, Interact(l, vectors)});
  x = l.Linear("top.3", Mlp(l, "top", x, {512, 512, 256}), 1);
  const ValueId clicked = b.Input("clicked", DType::kF32, {-1, 1});
  b.Output("loss", b.Op("binary_crossentropy", {x.value, clicked}, {}, "loss"));
  return b.Build();
}

}  // namespace espalier::zoo
