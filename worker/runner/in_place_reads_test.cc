#include "worker/runner/in_place_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/quantized/pack.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// One tensor: as numbers, element i is i; as Q8_0 blocks, every byte follows from its place.
class OneTensor : public WeightFiles {
 public:
  explicit OneTensor(int64_t broken = -1) : broken_(broken) {}

  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }

  absl::Status Read(const std::string& tensor, int64_t begin, int64_t count,
                    float* out) const override {
    if (begin + count > broken_ && broken_ >= 0) {
      return absl::UnavailableError(absl::StrCat(tensor, " is unreadable from ", begin));
    }
    std::iota(out, out + count, static_cast<float>(begin));
    return absl::OkStatus();
  }

  absl::Status ReadQ8Blocks(const std::string&, int64_t begin, int64_t count,
                            uint8_t* out) const override {
    for (int64_t block = begin; block < begin + count; ++block) {
      for (int64_t i = 0; i < kQ8BlockBytes; ++i) {
        *out++ = static_cast<uint8_t>(block * 31 + block / 7 + i * 5);
      }
      out[1 - kQ8BlockBytes] = block == broken_ ? 0x7c : 0x12;  // the scale's exponent
    }
    return absl::OkStatus();
  }

 private:
  const int64_t broken_;
  const std::map<std::string, Tensor> tensors_;
};

TEST(InPlaceReads, EqualReadsOfWholeTensors) {
  constexpr int64_t kBegin = 5, kCount = 300001, kFirst = 3;
  const OneTensor tensor;
  InPlaceReads reads(tensor);
  std::vector<float> expected(kCount), numbers(kCount + 1, -1);
  std::iota(expected.begin(), expected.end(), static_cast<float>(kBegin));
  expected.push_back(-1);  // untouched
  reads.AddNumbers("t", kBegin, kCount, numbers.data());
  const PackedWeights shapes[] = {{8, 1003, 2048}, {8, 5, 96}};
  std::vector<uint8_t> packed[2];
  for (int i = 0; i < 2; ++i) {
    packed[i].assign(static_cast<size_t>(shapes[i].blocks() * shapes[i].block_bytes()), 0xaa);
    reads.AddQ8Rows("t", "w", shapes[i], kFirst, packed[i].data());
  }
  ASSERT_EQ(reads.Run({}), absl::OkStatus());
  EXPECT_EQ(numbers, expected);
  for (int i = 0; i < 2; ++i) {
    const PackedWeights& shape = shapes[i];
    const int64_t count = shape.out * shape.groups();
    std::vector<uint8_t> blocks(static_cast<size_t>(count * kQ8BlockBytes));
    ASSERT_TRUE(tensor.ReadQ8Blocks("t", kFirst * shape.groups(), count, blocks.data()).ok());
    std::vector<uint8_t> whole(packed[i].size());
    ASSERT_TRUE(PackQ8Blocks("w", shape, blocks.data(), whole.data()).ok());
    EXPECT_TRUE(packed[i] == whole);
  }
}

TEST(InPlaceReads, ReturnErrorsByTensorAndRow) {
  std::vector<float> numbers(1 << 20);
  const OneTensor ends(1 << 18);
  InPlaceReads beyond(ends);
  beyond.AddNumbers("t", 0, 1 << 20, numbers.data());
  EXPECT_EQ(beyond.Run({}).code(), absl::StatusCode::kUnavailable);
  const PackedWeights shape{8, 1000, 2048};
  std::vector<uint8_t> packed(static_cast<size_t>(shape.blocks() * shape.block_bytes()));
  const OneTensor infinite(903 * shape.groups() + 2);
  InPlaceReads rows(infinite);
  rows.AddQ8Rows("t", "w", shape, 3, packed.data());
  const absl::Status status = rows.Run({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'w': row 903, column 64"));
}

TEST(InPlaceReads, ReadNoMoreOnceCancelled) {
  const OneTensor tensor;
  InPlaceReads reads(tensor);
  std::vector<float> numbers(1 << 20, -1);
  reads.AddNumbers("t", 0, 1 << 20, numbers.data());
  WeightLoadOptions loading;
  loading.cancelled = [] { return true; };
  EXPECT_EQ(reads.Run(loading).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(numbers[0], -1);
}

}  // namespace
}  // namespace espalier
