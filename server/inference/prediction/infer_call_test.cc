#include "server/inference/prediction/infer_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace espalier {
namespace {

using ::testing::HasSubstr;

const GraphSignature kSignature = {
    .inputs = {{"x", {DType::kF32, {2}}}, {"mask", {DType::kBool, {}}}},
    .outputs = {{"logits", {DType::kF32, {3}}}, {"hidden", {DType::kF16, {}}}}};

InferTensor X(int64_t examples) {
  return {"x", "FP32", {examples, 2}, std::string(static_cast<size_t>(examples * 8), 'x')};
}
InferTensor Mask(int64_t examples) {
  return {"mask", "BOOL", {examples}, std::string(static_cast<size_t>(examples), '\1')};
}

std::string ErrorOf(InferCall call) {
  const absl::StatusOr<CheckedCall> checked = CheckCall(kSignature, std::move(call));
  EXPECT_TRUE(absl::IsInvalidArgument(checked.status())) << checked.status();
  return std::string(checked.status().message());
}

TEST(InferCallTest, InputsMayComeInAnyOrderAndOutputsBeChosen) {
  const auto all = CheckCall(kSignature, {.inputs = {Mask(4), X(4)}});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->examples, 4);
  EXPECT_EQ(all->inputs[0], X(4).data);
  EXPECT_EQ(all->inputs[1], Mask(4).data);
  EXPECT_EQ(all->outputs, (std::vector<size_t>{0, 1}));
  const auto one = CheckCall(kSignature, {.inputs = {X(1), Mask(1)}, .outputs = {"hidden"}});
  ASSERT_TRUE(one.ok()) << one.status();
  const std::vector<InferTensor> outputs =
      OutputsOf(kSignature, one->outputs, 1, {std::string(12, 'l'), std::string(2, 'h')});
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].name, "hidden");
  EXPECT_EQ(outputs[0].datatype, "FP16");
  EXPECT_EQ(outputs[0].shape, (std::vector<int64_t>{1}));
  EXPECT_EQ(outputs[0].data, "hh");
}

TEST(InferCallTest, ErrorsNameTheTensorAndWhatTheModelTakes) {
  EXPECT_EQ(ErrorOf({.inputs = {X(2)}}), "input 'mask' is missing: BOOL[-1]");
  EXPECT_EQ(ErrorOf({.inputs = {X(2), X(2)}}), "input 'x' is given twice");
  EXPECT_EQ(ErrorOf({.inputs = {X(2), Mask(3)}}),
            "input 'mask' has 3 examples, input 'x' 2; they must be as many");
  EXPECT_EQ(ErrorOf({.inputs = {{"z", "FP32", {1}, "1234"}}}),
            "the model has no input 'z'; it has 'x' FP32[-1, 2], 'mask' BOOL[-1]");
  for (const InferTensor& wrong : {InferTensor{"x", "FP64", {1, 2}, std::string(16, 'x')},
                                   InferTensor{"x", "FP32", {2}, std::string(8, 'x')},
                                   InferTensor{"x", "FP32", {1, 3}, std::string(12, 'x')}}) {
    EXPECT_THAT(ErrorOf({.inputs = {wrong}}), HasSubstr("the model takes FP32[-1, 2]"));
  }
  EXPECT_EQ(ErrorOf({.inputs = {{"x", "FP32", {1, 2}, "short"}}}),
            "input 'x': 5 bytes were given; FP32[1, 2] has 8");
  EXPECT_THAT(ErrorOf({.inputs = {{"x", "FP32", {0, 2}, ""}}}), HasSubstr("at least one"));
  EXPECT_THAT(ErrorOf({.inputs = {{"x", "FP32", {int64_t{1} << 62, 2}, ""}}}),
              HasSubstr("at least one"));
  EXPECT_THAT(ErrorOf({.inputs = {X(1), {"mask", "BOOL", {1}, "\7"}}}),
              HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(ErrorOf({.inputs = {X(1), Mask(1)}, .outputs = {"loss"}}),
              HasSubstr("the model has no output 'loss'; it has 'logits' FP32[-1, 3]"));
  EXPECT_THAT(ErrorOf({.inputs = {X(1), Mask(1)}, .outputs = {"logits", "logits"}}),
              HasSubstr("twice"));
}

TEST(InferCallTest, IntegersThatTheGraphHasNoPlaceForAreNamed) {
  GraphSignature signature;
  signature.inputs = {
      {"ids", {DType::kI32, {3}}, {{.low = 0, .high = 9, .reader = "node 'words' (embedding)"}}},
      {"kind", {DType::kI64, {}}, {{.low = -1, .high = 1, .reader = "node 'kinds' (embedding)"}}}};
  signature.outputs = {{"y", {DType::kF32, {}}}};
  const auto check = [&](const std::vector<int32_t>& ids, const std::vector<int64_t>& kinds) {
    InferTensor first{"ids", "INT32", {2, 3}, std::string(24, '\0')};
    InferTensor second{"kind", "INT64", {2}, std::string(16, '\0')};
    std::memcpy(first.data.data(), ids.data(), 24);
    std::memcpy(second.data.data(), kinds.data(), 16);
    return CheckCall(signature, {.inputs = {first, second}}).status();
  };
  EXPECT_EQ(check({0, 9, 1, 2, 3, 4}, {-1, 1}), absl::OkStatus());
  EXPECT_EQ(check({0, 9, 1, 2, 10, 4}, {-1, 1}).message(),
            "input 'ids': example 1, element 1 is 10; accepted are 0 to 9, by node 'words' "
            "(embedding)");
  EXPECT_EQ(check({0, 9, 1, 2, 3, -1}, {-1, 1}).message(),
            "input 'ids': example 1, element 2 is -1; accepted are 0 to 9, by node 'words' "
            "(embedding)");
  EXPECT_EQ(
      check({0, 9, 1, 2, 3, 4}, {int64_t{1} << 32, 1}).message(),
      "input 'kind': example 0 is 4294967296; accepted are -1 to 1, by node 'kinds' (embedding)");
}

TEST(InferCallTest, DatatypesAreTheProtocolsNames) {
  for (const DType dtype : kAllDTypes) {
    const absl::StatusOr<DType> back = DTypeOfDatatype(DatatypeOf(dtype));
    ASSERT_TRUE(back.ok()) << DatatypeOf(dtype);
    EXPECT_EQ(*back, dtype);
  }
  EXPECT_THAT(std::string(DTypeOfDatatype("FP64").status().message()), HasSubstr("FP32"));
}

}  // namespace
}  // namespace espalier
