#include "server/http/open_inference/infer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One input of these fields, besides its name.
std::string Body(const std::string& fields) {
  return absl::StrCat(R"({"inputs":[{"name":"x",)", fields, "}]}");
}

std::string ErrorOf(const std::string& body, std::optional<size_t> json_bytes = std::nullopt) {
  const absl::StatusOr<InferBody> parsed = ParseInferBody(body, json_bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << body;
  return std::string(parsed.status().message());
}

TEST(InferJsonTest, ReadsNestedAndFlatData) {
  for (const char* data : {"[1, 2.5, -3, 4e0]", "[[1, 2.5], [-3, 4]]"}) {
    const auto body = ParseInferBody(
        Body(absl::StrCat(R"("datatype":"FP32","shape":[2,2],"data":)", data)), std::nullopt);
    ASSERT_TRUE(body.ok()) << body.status();
    const InferTensor& x = body->call.inputs[0];
    EXPECT_EQ(x.shape, (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(x.data, Floats({1, 2.5, -3, 4}));
  }
}

TEST(InferJsonTest, ReadsParametersAndOutputs) {
  const auto body = ParseInferBody(
      R"({"id":"7","parameters":{"binary_data_output":true,"timeout":1500},"inputs":[],)"
      R"("outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":false}}]})",
      std::nullopt);
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->id, "7");
  EXPECT_TRUE(body->binary);
  EXPECT_EQ(body->call.timeout, absl::Microseconds(1500));
  EXPECT_EQ(body->call.outputs, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(body->binary_outputs, (std::vector<bool>{true, false}));
}

TEST(InferJsonTest, TakesBinaryTensorsFromBehindTheJsonInOrder) {
  const std::string json =
      R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}},)"
      R"({"name":"n","datatype":"INT8","shape":[2],"data":[-128,127]},)"
      R"({"name":"y","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]})";
  const auto body = ParseInferBody(json + Floats({1.5}) + "hi", json.size());
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->call.inputs[0].data, Floats({1.5}));
  EXPECT_EQ(body->call.inputs[1].data, "\x80\x7f");
  EXPECT_EQ(body->call.inputs[2].data, "hi");
  EXPECT_THAT(ErrorOf(json + "1234", json.size()), HasSubstr("inputs[2].parameters"));
  EXPECT_THAT(ErrorOf(json + "123456789", json.size()), HasSubstr("3 bytes behind the JSON"));
  EXPECT_THAT(ErrorOf(json, json.size() + 1), HasSubstr(kInferHeaderLength));
}

TEST(InferJsonTest, ErrorsNameTheField) {
  EXPECT_THAT(ErrorOf("no json"), HasSubstr("JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("field 'inputs'"));
  EXPECT_THAT(ErrorOf(R"({"inputs":[],"inputs":[]})"), HasSubstr("'inputs' is given twice"));
  EXPECT_THAT(ErrorOf(R"({"inputs":[],"colour":1})"), HasSubstr("'colour' is not known"));
  EXPECT_THAT(ErrorOf(R"({"inputs":[],"parameters":{"sequence_id":1}})"),
              HasSubstr("parameter 'sequence_id'"));
  EXPECT_THAT(
      ErrorOf(R"({"inputs":[],"outputs":[{"name":"y","parameters":{"classification":2}}]})"),
      HasSubstr("parameter 'classification'"));
  EXPECT_THAT(ErrorOf(Body(R"("datatype":"FP32","shape":[1])")), HasSubstr("needs its 'data'"));
  EXPECT_THAT(ErrorOf(Body(R"("datatype":"FP32","data":[1])")), HasSubstr("inputs[0].shape"));
  EXPECT_THAT(ErrorOf(Body(R"("datatype":"FP32","shape":[-1],"data":[1])")),
              HasSubstr("inputs[0].shape"));
  EXPECT_THAT(ErrorOf(Body(R"("datatype":"FP64","shape":[1],"data":[1])")),
              HasSubstr("inputs[0].datatype"));
  EXPECT_THAT(ErrorOf(Body(R"("datatype":"FP16","shape":[1],"data":[1])")),
              HasSubstr("binary_data_size"));
}

TEST(InferJsonTest, ValuesThatTheirDatatypeCannotHoldAreRefused) {
  const std::pair<const char*, const char*> cases[] = {{"INT8", "128"},
                                                       {"INT8", "-129"},
                                                       {"UINT8", "256"},
                                                       {"UINT8", "-1"},
                                                       {"INT32", "2147483648"},
                                                       {"INT32", "1.0"},
                                                       {"INT64", "9223372036854775808"},
                                                       {"FP32", "1e39"},
                                                       {"FP32", "\"1\""},
                                                       {"BOOL", "1"},
                                                       {"FP32", "null"}};
  for (const auto& [datatype, value] : cases) {
    EXPECT_THAT(ErrorOf(Body(absl::StrCat(R"("datatype":")", datatype, R"(","shape":[1],"data":[)",
                                          value, "]"))),
                HasSubstr(absl::StrCat("no array of values that ", datatype, " holds")));
  }
}

TEST(InferJsonTest, WritesNumbersThatReadBackAsTheSame) {
  const std::vector<float> values = {0.1f, -1e-30f, 16777217.0f, 3};
  const std::vector<InferTensor> outputs = {{"y", "FP32", {2, 2}, Floats(values)},
                                            {"n", "INT8", {1}, "\x80"},
                                            {"b", "BOOL", {2}, std::string("\1\0", 2)}};
  const auto answer = FormatInferAnswer("m", "3", "id\"", outputs, {false, false, false});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->json_bytes.has_value());
  EXPECT_EQ(answer->body,
            R"({"model_name":"m","model_version":"3","id":"id\"","outputs":[)"
            R"({"name":"y","datatype":"FP32","shape":[2,2],"data":[0.1,-1e-30,16777216,3]},)"
            R"({"name":"n","datatype":"INT8","shape":[1],"data":[-128]},)"
            R"({"name":"b","datatype":"BOOL","shape":[2],"data":[true,false]}]})");
}

TEST(InferJsonTest, WritesBinaryOutputsBehindTheJson) {
  const std::vector<InferTensor> outputs = {{"y", "FP32", {1}, Floats({std::nanf("")})},
                                            {"z", "FP32", {1}, Floats({2})},
                                            {"h", "BF16", {1}, "hh"}};
  const auto answer = FormatInferAnswer("m", "1", "", outputs, {true, false, true});
  ASSERT_TRUE(answer.ok()) << answer.status();
  const std::string json =
      R"({"model_name":"m","model_version":"1","outputs":[)"
      R"({"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}},)"
      R"({"name":"z","datatype":"FP32","shape":[1],"data":[2]},)"
      R"({"name":"h","datatype":"BF16","shape":[1],"parameters":{"binary_data_size":2}}]})";
  EXPECT_EQ(answer->json_bytes, json.size());
  EXPECT_EQ(answer->body, json + Floats({std::nanf("")}) + "hh");
  for (const auto& output : outputs) {
    if (output.name == "z") continue;
    const absl::Status status = FormatInferAnswer("m", "1", "", {output}, {false}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("ask for binary_data"));
  }
}

}  // namespace
}  // namespace espalier
