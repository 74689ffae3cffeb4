#include "server/inference/prediction/infer_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
