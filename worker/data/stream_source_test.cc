#include "worker/data/stream_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "absl/synchronization/mutex.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 4;

// Files of consecutive numbers, one per example.
class StreamSourceTest : public testing::Test {
 protected:
  StreamSourceTest() : source_(kBatch, [this](const std::string& path) { return OpenPart(path); }) {
    EXPECT_TRUE(source_.Prepare("x", spec_).ok());
  }

  StreamSource::Part AddPart(int64_t first, int64_t end) {
    Column column;
    column.name = "x";
    column.example = {DType::kI32, {}};
    std::vector<int32_t> values;
    for (int64_t i = first * kBatch; i < end * kBatch; ++i) {
      values.push_back(static_cast<int32_t>(i));
    }
    column.data.resize(values.size() * 4);
    std::memcpy(column.data.data(), values.data(), column.data.size());
    const std::string path = "part-" + std::to_string(first);
    std::vector<Column> columns;
    columns.push_back(std::move(column));
    absl::MutexLock lock(&mutex_);
    parts_[path] = *Dataset::FromColumns(std::move(columns), 0);
    return {first, end, path};
  }

  absl::StatusOr<std::shared_ptr<const Dataset>> OpenPart(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    ++opened_[path];
    if (!parts_.contains(path)) return absl::NotFoundError("no such file");
    return parts_[path];
  }

  // This rank's half of the batch of a step.
  std::vector<int32_t> Batch(int64_t step) {
    std::vector<int32_t> values(2);
    const absl::Status s = source_.Load("x", spec_, step, values.data());
    EXPECT_TRUE(s.ok()) << s;
    return values;
  }
  static std::vector<int32_t> Wanted(int64_t step) {
    const auto first = static_cast<int32_t>(step * kBatch + 2);
    return {first, first + 1};
  }

  const TensorSpec spec_{DType::kI32, {2}, {2}, {kBatch}};
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Dataset>> parts_;
  std::map<std::string, int> opened_;
  StreamSource source_;
};

TEST_F(StreamSourceTest, StepsReadTheirPartsInRunsOfAnyLength) {
  const auto a = AddPart(0, 3), b = AddPart(3, 4), c = AddPart(4, 9);
  source_.SetParts({a, b});
  for (int64_t step : {0, 1, 2}) EXPECT_EQ(Batch(step), Wanted(step));
  source_.SetParts({b, c});
  for (int64_t step : {3, 4, 5}) EXPECT_EQ(Batch(step), Wanted(step));
  source_.SetParts({c});
  for (int64_t step : {6, 7, 8}) EXPECT_EQ(Batch(step), Wanted(step));
  absl::MutexLock lock(&mutex_);
  for (const auto& [path, times] : opened_) EXPECT_EQ(times, 1) << path;
}

TEST_F(StreamSourceTest, AJobThatGoesBackReadsTheSameAgain) {
  source_.SetParts({AddPart(0, 2), AddPart(2, 5), AddPart(5, 6)});
  for (int64_t step : {4, 5, 1, 2, 3, 4, 5}) EXPECT_EQ(Batch(step), Wanted(step));
}

TEST_F(StreamSourceTest, ErrorsNameStepsAndFile) {
  source_.SetParts({AddPart(0, 2), {2, 3, "part-2"}});
  EXPECT_EQ(Batch(1), Wanted(1));
  int32_t out[2];
  absl::Status status = source_.Load("x", spec_, 2, out);
  EXPECT_THAT(std::string(status.message()), HasSubstr("steps 2 to 2, part-2: no such file"));
  status = source_.Load("x", spec_, 7, out);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 7"));
  StreamSource::Part longer = AddPart(3, 4);
  longer.end = 6;
  source_.SetParts({longer});
  status = source_.Load("x", spec_, 4, out);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 4 examples; 12 were pushed"));
}

}  // namespace
}  // namespace espalier
