#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

TEST(Embedding, PicksRowsAndAddsGradientsOfRepeatedIds) {
  const TestTensor ids = I32({2, 2}, {2, 0, 2, 1});
  const TestTensor weight = F32({3, 2}, {1, 2, 3, 4, 5, 6});
  const std::vector<TestTensor> y = Ops().Run("embedding", {}, {ids, weight});
  EXPECT_EQ(y[0].type.dims, (Dims{2, 2, 2}));
  ExpectClose(y[0], {5, 6, 1, 2, 5, 6, 3, 4}, 0);
  const TestTensor dy = F32({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  ExpectClose(Ops().RunGradient("embedding", {}, {ids, weight}, y, {dy})[0], {3, 4, 7, 8, 6, 8}, 0);
}

TEST(Embedding, ShardsOfTheTableAddUpToTheWhole) {
  const TestTensor ids = I32({4}, {3, 0, 1, 2});
  const TestTensor weight = Random({4, 5}, 1);
  const TestTensor whole = Ops().Run("embedding", {}, {ids, weight})[0];
  std::vector<double> sum(20, 0);
  for (const int64_t first : {0, 2}) {
    const TestTensor part = F32({2, 5}, std::vector<float>(weight.as<float>() + first * 5,
                                                           weight.as<float>() + first * 5 + 10));
    RunOptions options;
    options.specs = {{}, {DType::kF32, {2, 5}, {first, 0}, {4, 5}}};
    const TestTensor y = Ops().Run("embedding", {}, {ids, part}, options)[0];
    for (int i = 0; i < 20; ++i) sum[i] += y.at(i);
  }
  ExpectClose(whole, sum, 0);
}

TEST(Embedding, IdOutOfRangeIsNamed) {
  for (const int id : {3, -1}) {
    std::vector<TestTensor> inputs = {I32({3}, {0, id, 1}), Random({3, 2}, 1)}, outputs;
    EXPECT_EQ(Ops().TryRun("embedding", {}, &inputs, &outputs).error,
              "embedding: ids[1] is " + std::to_string(id) +
                  ", expected 0 to 2 because 'weight' has 3 rows");
  }
}

TEST(Embedding, NoIds) {
  EXPECT_EQ(Ops().Run("embedding", {}, {I32({0}, {}), Random({3, 2}, 1)})[0].size(), 0);
}

std::vector<double> NaiveRotary(const TestTensor& x, int64_t rows, int64_t dim,
                                const std::vector<int>& positions) {
  std::vector<double> y(x.size());
  const int64_t width = x.type.dims.back(), half = dim / 2;
  for (int64_t r = 0; r < x.size() / width; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = c % dim, at = r * width + c;
      const double angle =
          positions[r % rows] * std::pow(10000.0, -2.0 * static_cast<double>(i % half) / dim);
      const double other = i < half ? -x.at(at + half) : x.at(at - half);
      y[at] = x.at(at) * std::cos(angle) + other * std::sin(angle);
    }
  }
  return y;
}

TEST(Rotary, MatchesHuggingFacesFormula) {
  const Attributes attributes = {{"head_dim", int64_t{8}}};
  const TestTensor x = Random({2, 5, 24}, 1);
  ExpectClose(Ops().Run("rotary", attributes, {x})[0], NaiveRotary(x, 5, 8, {0, 1, 2, 3, 4}), 1e-6);
  const std::vector<int> positions = {7, 7, 0, 120, 3};
  ExpectClose(Ops().Run("rotary", attributes, {x, I32({5}, positions)})[0],
              NaiveRotary(x, 5, 8, positions), 2e-5);
}

TEST(Rotary, PositionsBeyondTheTable) {
  const TestTensor x = Random({2, 8}, 1);
  const std::vector<int> positions = {70000, 5};
  ExpectClose(Ops().Run("rotary", {{"head_dim", int64_t{8}}}, {x, I32({2}, positions)})[0],
              NaiveRotary(x, 2, 8, positions), 1e-2);  // angles in f32
}

TEST(Rotary, GradientIsTheInverseRotation) {
  const Attributes attributes = {{"head_dim", int64_t{4}}};
  Ops().CheckGradient("rotary", attributes, {Random({2, 6, 8}, 1)});
  Ops().CheckGradient("rotary", attributes, {Random({3, 8}, 1), I32({3}, {5, 0, 11})});
}

TEST(Rotary, ShardOfTheRowsKeepsItsPositions) {
  const Attributes attributes = {{"head_dim", int64_t{8}}};
  const TestTensor x = Random({6, 8}, 1);
  const TestTensor whole = Ops().Run("rotary", attributes, {x})[0];
  const TestTensor part = F32({2, 8}, std::vector<float>(x.as<float>() + 32, x.as<float>() + 48));
  RunOptions options;
  options.specs = {{DType::kF32, {2, 8}, {4, 0}, {6, 8}}};
  const TestTensor y = Ops().Run("rotary", attributes, {part}, options)[0];
  for (int i = 0; i < 16; ++i) EXPECT_EQ(y.at(i), whole.at(32 + i));
}

TEST(Rotary, NegativePositionIsNamed) {
  std::vector<TestTensor> inputs = {Random({2, 8}, 1), I32({2}, {0, -4})}, outputs;
  EXPECT_EQ(Ops().TryRun("rotary", {{"head_dim", int64_t{8}}}, &inputs, &outputs).error,
            "rotary: positions[1] is -4, expected at least 0");
}

}  // namespace
}  // namespace espalier
