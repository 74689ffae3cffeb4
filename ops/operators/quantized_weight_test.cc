// Errors of operators on quantized matrices for weights that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/kernel/packed_weights.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kIn = 40, kOut = 18, kRows = 5, kExperts = 3;

class QuantizedWeightTest : public ::testing::TestWithParam<bool> {
 protected:
  QuantizedWeightTest() { RegisterAllOperators(registry_); }

  // The operator's answer for a weight; with experts there is one more leading dimension.
  absl::Status Infer(int64_t bits, DType dtype, Dims weight, int64_t out = kOut) {
    const bool experts = GetParam();
    if (experts) weight.insert(weight.begin(), kExperts);
    NodeTypes types;
    types.attributes = {{"bits", bits}, {"out", out}, {"source", std::string()}};
    types.inputs = {{DType::kF32, {kRows, kIn}}, {dtype, weight}};
    if (experts) types.inputs.push_back({DType::kI32, {kRows, 1}});
    const OpDef* def = registry_.Find(experts ? "quantized_expert_linear" : "quantized_linear");
    return InferNode(*def, &types);
  }

  OpRegistry registry_;
};

TEST_P(QuantizedWeightTest, TakesTheShapeThatItsBitsWant) {
  EXPECT_EQ(Infer(16, DType::kBF16, {kOut, kIn}), absl::OkStatus());
  for (const int bits : {8, 4}) {
    const PackedWeights packed{bits, kOut, kIn};
    EXPECT_EQ(Infer(bits, DType::kU8, {packed.blocks(), packed.block_bytes()}), absl::OkStatus());
  }
}

TEST_P(QuantizedWeightTest, SaysWhatItExpectsOtherwise) {
  const PackedWeights packed{4, kOut, kIn};
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Infer(16, DType::kBF16, {kOut, kIn + 1})), HasSubstr("as long as 'x' ends"));
  EXPECT_THAT(message(Infer(16, DType::kBF16, {kIn, kOut})), HasSubstr("'out' rows"));
  EXPECT_THAT(message(Infer(16, DType::kF32, {kOut, kIn})), HasSubstr("weight"));
  EXPECT_THAT(message(Infer(4, DType::kU8, {packed.blocks(), packed.block_bytes() + 64})),
              HasSubstr("blocks of 16 outputs of 18 x 40 weights"));
  EXPECT_THAT(message(Infer(8, DType::kU8, {packed.blocks(), packed.block_bytes()})),
              HasSubstr("blocks of 16 outputs"));
  EXPECT_THAT(message(Infer(4, DType::kBF16, {packed.blocks(), packed.block_bytes()})),
              HasSubstr("weight"));
  EXPECT_THAT(message(Infer(3, DType::kU8, {packed.blocks(), packed.block_bytes()})),
              HasSubstr("16 (bf16 or f16), 8 or 4"));
  EXPECT_THAT(message(Infer(16, DType::kBF16, {0, kIn}, 0)), HasSubstr("'out'"));
  EXPECT_THAT(message(Infer(16, DType::kBF16, {kOut, kIn}, (int64_t{1} << 31) + 1)),
              HasSubstr("1 to 2^31"));
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutExperts, QuantizedWeightTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Experts" : "One"; });

}  // namespace
}  // namespace espalier
