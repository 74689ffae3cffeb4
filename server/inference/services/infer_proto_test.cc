#include "server/inference/services/infer_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Input = inference::ModelInferRequest::InferInputTensor;

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

Input* AddInput(const std::string& datatype, inference::ModelInferRequest* request) {
  Input* input = request->add_inputs();
  input->set_name("x");
  input->set_datatype(datatype);
  input->add_shape(1);
  return input;
}

std::string ErrorOf(inference::ModelInferRequest request) {
  const absl::Status status = TakeCall(&request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(InferProtoTest, EachDatatypeHasItsField) {
  inference::ModelInferRequest request;
  AddInput("FP32", &request)->mutable_contents()->add_fp32_contents(-0.5);
  AddInput("INT8", &request)->mutable_contents()->add_int_contents(-128);
  AddInput("INT32", &request)->mutable_contents()->add_int_contents(-7);
  AddInput("INT64", &request)->mutable_contents()->add_int64_contents(int64_t{1} << 40);
  AddInput("UINT8", &request)->mutable_contents()->add_uint_contents(255);
  AddInput("BOOL", &request)->mutable_contents()->add_bool_contents(true);
  const auto call = TakeCall(&request);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->inputs[0].data, Bytes({-0.5f}));
  EXPECT_EQ(call->inputs[1].data, "\x80");
  EXPECT_EQ(call->inputs[2].data, Bytes({int32_t{-7}}));
  EXPECT_EQ(call->inputs[3].data, Bytes({int64_t{1} << 40}));
  EXPECT_EQ(call->inputs[4].data, "\xff");
  EXPECT_EQ(call->inputs[5].data, "\1");
}

TEST(InferProtoTest, RawContentsAndParameters) {
  inference::ModelInferRequest request;
  AddInput("FP16", &request);
  request.add_raw_input_contents("hi");
  request.add_outputs()->set_name("y");
  (*request.mutable_parameters())["timeout"].set_int64_param(2500);
  const auto call = TakeCall(&request);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->inputs[0].data, "hi");
  EXPECT_EQ(call->outputs, std::vector<std::string>{"y"});
  EXPECT_EQ(call->timeout, absl::Microseconds(2500));
}

TEST(InferProtoTest, ErrorsNameTheInput) {
  inference::ModelInferRequest request;
  AddInput("FP64", &request);
  EXPECT_THAT(ErrorOf(request), HasSubstr("input 'x': datatype 'FP64'"));
  request.Clear();
  AddInput("BF16", &request);
  EXPECT_THAT(ErrorOf(request), HasSubstr("raw_input_contents"));
  request.Clear();
  AddInput("FP32", &request)->mutable_contents()->add_fp64_contents(1);
  EXPECT_THAT(ErrorOf(request), HasSubstr("in another field than fp32_contents"));
  request.Clear();
  AddInput("INT8", &request)->mutable_contents()->add_int_contents(128);
  EXPECT_THAT(ErrorOf(request), HasSubstr("int_contents has a value"));
  request.Clear();
  AddInput("FP32", &request)->mutable_contents()->add_fp32_contents(1);
  request.add_raw_input_contents("1234");
  EXPECT_THAT(ErrorOf(request), HasSubstr("both contents and raw_input_contents"));
  request.add_raw_input_contents("1234");
  EXPECT_THAT(ErrorOf(request), HasSubstr("2 entries for 1 inputs"));
  request.Clear();
  (*AddInput("FP32", &request)->mutable_parameters())["shared_memory_region"].set_string_param("r");
  EXPECT_THAT(ErrorOf(request), HasSubstr("parameter 'shared_memory_region'"));
  request.Clear();
  (*request.mutable_parameters())["sequence_id"].set_int64_param(1);
  EXPECT_THAT(ErrorOf(request), HasSubstr("parameter 'sequence_id'"));
  request.Clear();
  (*request.mutable_parameters())["timeout"].set_int64_param(-1);
  EXPECT_THAT(ErrorOf(request), HasSubstr("'timeout'"));
}

}  // namespace
}  // namespace espalier
