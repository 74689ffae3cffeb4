#include "server/jobs/pushed_examples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "storage/dataset.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 2;

template <typename T>
v1::TensorValue Values(v1::DataType dtype, std::vector<int64_t> dims, const std::vector<T>& data) {
  v1::TensorValue value;
  value.set_dtype(dtype);
  value.mutable_dims()->Assign(dims.begin(), dims.end());
  value.mutable_data()->assign(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
  return value;
}

// Of examples of two numbers and a label.
v1::PushExamplesRequest Message(const v1::TensorValue& x, const v1::TensorValue& label) {
  v1::PushExamplesRequest message;
  (*message.mutable_columns())["x"] = x;
  (*message.mutable_columns())["label"] = label;
  return message;
}

v1::TensorValue Floats(int64_t examples, float first = 0) {
  std::vector<float> values(static_cast<size_t>(2 * examples));
  for (float& value : values) value = first++;
  return Values(v1::F32, {examples, 2}, values);
}

v1::TensorValue Labels(const std::vector<int32_t>& labels) {
  return Values(v1::I32, {static_cast<int64_t>(labels.size())}, labels);
}

absl::StatusOr<PushedBatches> Take(PushedExamples& examples,
                                   const std::vector<InputRange>& labels = {}) {
  return examples.Take({{"x", {{DType::kF32, {2}}, {}}}, {"label", {{DType::kI32, {}}, labels}}},
                       kBatch);
}

std::string Refusal(const std::vector<v1::PushExamplesRequest>& messages,
                    const std::vector<InputRange>& labels = {}) {
  PushedExamples examples;
  absl::Status status;
  for (const v1::PushExamplesRequest& message : messages) {
    if (status.ok()) status = examples.Add(message);
  }
  if (status.ok()) status = Take(examples, labels).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(PushedExamples, MessagesOfACallFollowOneAnother) {
  PushedExamples examples;
  v1::PushExamplesRequest first = Message(Floats(3), Labels({1, 2, 3}));
  first.set_first_step(7);
  v1::PushExamplesRequest last = Message(Floats(1, 6), Labels({4}));
  last.set_end(true);
  ASSERT_TRUE(examples.Add(first).ok());
  ASSERT_TRUE(examples.Add(last).ok());
  const absl::StatusOr<PushedBatches> batches = Take(examples);
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_EQ(batches->first_step, 7);
  EXPECT_EQ(batches->steps, 2);
  EXPECT_TRUE(batches->end);
  const auto dataset = Dataset::FromNpz(batches->npz, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Column& x = **(*dataset)->Find("x");
  EXPECT_EQ(x.example, (TensorType{DType::kF32, {2}}));
  float values[8];
  ASSERT_EQ(x.data.size(), sizeof(values));
  std::memcpy(values, x.data.data(), sizeof(values));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], i);
}

TEST(PushedExamples, BytesOfImagesAreRead) {
  PushedExamples examples;
  const std::vector<uint8_t> pixels = {0, 1, 200, 255};
  ASSERT_TRUE(examples.Add(Message(Values(v1::U8, {2, 2}, pixels), Labels({0, 1}))).ok());
  const absl::StatusOr<PushedBatches> batches = Take(examples);
  ASSERT_TRUE(batches.ok()) << batches.status();
  const auto dataset = Dataset::FromNpz(batches->npz, 0);
  float read[2];
  ASSERT_TRUE(
      (*dataset)
          ->Read(**(*dataset)->Find("x"), 1, {0}, {2}, DType::kF32, reinterpret_cast<char*>(read))
          .ok());
  EXPECT_EQ(read[0], 200);
  EXPECT_EQ(read[1], 255);
}

TEST(PushedExamples, WithoutAnyTheCallOnlyAsksOrEnds) {
  PushedExamples examples;
  v1::PushExamplesRequest message;
  message.set_end(true);
  ASSERT_TRUE(examples.Add(message).ok());
  const absl::StatusOr<PushedBatches> batches = Take(examples);
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_EQ(batches->steps, 0);
  EXPECT_TRUE(batches->end);
}

TEST(PushedExamples, RefusalsNameColumnAndExample) {
  const v1::TensorValue labels = Labels({0, 1});
  EXPECT_THAT(Refusal({Message(Floats(3), Labels({1, 2, 3}))}),
              HasSubstr("3 examples do not fill batches of 2"));
  EXPECT_THAT(Refusal({Message(Floats(2), Labels({1}))}), HasSubstr("another column has"));
  v1::PushExamplesRequest lacks = Message(Floats(2), labels);
  lacks.mutable_columns()->erase("label");
  EXPECT_THAT(Refusal({lacks}), HasSubstr("column 'label' is missing; the job wants 'label', 'x'"));
  v1::PushExamplesRequest more = Message(Floats(2), labels);
  (*more.mutable_columns())["weight"] = labels;
  EXPECT_THAT(Refusal({more}), HasSubstr("column 'weight': the job has no such column"));
  EXPECT_THAT(Refusal({Message(Values(v1::F32, {2, 3}, std::vector<float>(6)), labels)}),
              HasSubstr("column 'x': an example is f32[3], the model wants f32[2]"));
  EXPECT_THAT(Refusal({Message(Floats(2), Values(v1::F32, {2}, std::vector<float>(2)))}),
              HasSubstr("column 'label' holds f32, the model wants i32"));
  EXPECT_THAT(
      Refusal({Message(Floats(2), Values(v1::I64, {2}, std::vector<int64_t>{1, 1LL << 40}))}),
      HasSubstr("column 'label'"));
  const std::vector<float> bad = {0, 1, 2, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT(Refusal({Message(Floats(2), labels), Message(Values(v1::F32, {2, 2}, bad), labels)}),
              HasSubstr("batch of step 1: column 'x': example 1, element 1 is NaN"));
  EXPECT_THAT(Refusal({Message(Values(v1::BF16, {2, 2}, std::vector<uint16_t>(4)), labels)}),
              HasSubstr("column 'x': its element type is BF16"));
  v1::TensorValue short_of_data = Floats(2);
  short_of_data.mutable_data()->pop_back();
  EXPECT_THAT(Refusal({Message(short_of_data, labels)}), HasSubstr("it has 15 bytes"));
  EXPECT_THAT(Refusal({Message(Values(v1::F32, {1 << 30, 1 << 30}, std::vector<float>()), labels)}),
              HasSubstr("bytes in a call"));
  EXPECT_THAT(Refusal({Message(Floats(2), labels), lacks}), HasSubstr("lacks columns"));
  EXPECT_THAT(Refusal({lacks, Message(Floats(2), labels)}), HasSubstr("an earlier message"));
}

TEST(PushedExamples, IntegersAreThoseThatTheModelAccepts) {
  const InputRange loss = {{0, 9, -100}, "node 'loss' (train.py:12)"};
  const InputRange rows = {{-1, 4, std::nullopt}, "node 'lookup'"};
  const auto taken = [](const std::vector<int32_t>& labels, const std::vector<InputRange>& ranges) {
    PushedExamples examples;
    EXPECT_TRUE(
        examples.Add(Message(Floats(static_cast<int64_t>(labels.size())), Labels(labels))).ok());
    return Take(examples, ranges).status();
  };
  EXPECT_EQ(taken({0, 9, -100, 5}, {loss}), absl::OkStatus());
  EXPECT_EQ(taken({0, 4}, {loss, rows}), absl::OkStatus());
  EXPECT_EQ(taken({0, 1 << 30}, {}), absl::OkStatus()) << "as of a job of an earlier release";

  v1::PushExamplesRequest first = Message(Floats(4), Labels({0, 9, 1, 1}));
  first.set_first_step(7);
  const v1::PushExamplesRequest second = Message(Floats(4), Labels({1, 10, 99, 1}));
  EXPECT_EQ(
      Refusal({first, second}, {loss}),
      "batch of step 9: column 'label': example 1 is 10; accepted are 0 to 9, and -100, which "
      "is ignored, by node 'loss' (train.py:12)");
  EXPECT_THAT(Refusal({Message(Floats(2), Labels({-1, 2}))}, {loss, rows}),
              HasSubstr("example 0 is -1; accepted are 0 to 9"));
  EXPECT_THAT(Refusal({Message(Floats(2), Labels({1, 5}))}, {loss, rows}),
              HasSubstr("example 1 is 5; accepted are -1 to 4, by node 'lookup'"));
  EXPECT_THAT(Refusal({Message(Floats(2), Labels({1, -100}))}, {loss, rows}),
              HasSubstr("example 1 is -100; accepted are -1 to 4"));
}

}  // namespace
}  // namespace espalier
