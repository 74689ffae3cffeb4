#include "storage/copy_encoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

std::string Floats(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

std::string Noise(size_t bytes) {
  std::mt19937 random(7);
  std::string noise(bytes, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  return noise;
}

std::string Encoded(CopyEncoding encoding, const std::string& bytes, size_t piece) {
  CopyEncoder encoder(encoding);
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_EQ(encoder.Add(bytes.substr(at, piece), &out), absl::OkStatus());
  }
  EXPECT_EQ(encoder.Finish(&out), absl::OkStatus());
  return out;
}

absl::Status Decode(CopyEncoding encoding, absl::string_view object, size_t piece,
                    std::string* out) {
  CopyDecoder decoder(encoding);
  for (size_t at = 0; at < object.size(); at += piece) {
    absl::string_view bytes = object.substr(at, piece);
    for (bool more = true; more;) {
      const size_t before = out->size();
      const absl::StatusOr<bool> added = decoder.Add(&bytes, out);
      if (!added.ok()) return added.status();
      EXPECT_LT(out->size() - before, 4u << 20) << "memory is bounded";
      more = *added;
    }
    EXPECT_TRUE(bytes.empty());
  }
  return decoder.Finish(out);
}

TEST(CopyEncodingTest, ReturnsTheSameBytesWhateverThePieces) {
  for (const std::string& bytes : {std::string(), std::string("abcdefg"), Floats(600'000) + "xy",
                                   std::string(30'000'000, '\0')}) {
    for (const CopyEncoding encoding : kCopyEncodings) {
      const std::string object = Encoded(encoding, bytes, 1 << 20);
      EXPECT_TRUE(object == Encoded(encoding, bytes, 70'001));
      for (const size_t piece : {4093u, 1u << 20}) {
        std::string out;
        EXPECT_EQ(Decode(encoding, object, piece, &out), absl::OkStatus());
        EXPECT_TRUE(out == bytes) << bytes.size() << SuffixOf(encoding) << " by " << piece;
      }
    }
  }
}

TEST(CopyEncodingTest, ChoosesTheSmallestUnlessLittleIsGained) {
  const auto chosen = [](const std::string& part) {
    const absl::StatusOr<CopyEncoding> encoding = ChooseEncoding(part);
    EXPECT_TRUE(encoding.ok()) << encoding.status();
    return encoding.value_or(CopyEncoding::kPlain);
  };
  EXPECT_EQ(chosen(Noise(1 << 20)), CopyEncoding::kPlain);
  EXPECT_EQ(chosen(""), CopyEncoding::kPlain);
  EXPECT_EQ(chosen(std::string(1 << 20, '\0')), CopyEncoding::kZstd);
  const std::string floats = Floats(1 << 18);
  EXPECT_EQ(chosen(floats), CopyEncoding::kShuffled);
  EXPECT_LT(Encoded(CopyEncoding::kShuffled, floats, 1 << 20).size(), floats.size() * 9 / 10);
}

TEST(CopyEncodingTest, SaysThatBytesAreDamagedOrMissing) {
  for (const CopyEncoding encoding : {CopyEncoding::kZstd, CopyEncoding::kShuffled}) {
    const std::string object = Encoded(encoding, Floats(2000), 1 << 20);
    for (size_t at = 0; at < object.size(); at += object.size() / 41) {
      std::string damaged = object, out;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      EXPECT_TRUE(absl::IsDataLoss(Decode(encoding, damaged, 1 << 20, &out))) << at;
    }
    for (const size_t size : {size_t{0}, size_t{5}, size_t{16}, object.size() - 1}) {
      std::string out;
      EXPECT_TRUE(absl::IsDataLoss(Decode(encoding, object.substr(0, size), 1 << 20, &out)))
          << SuffixOf(encoding) << " of " << size << " bytes";
    }
    std::string out;
    EXPECT_TRUE(absl::IsDataLoss(Decode(encoding, absl::StrCat(object, "x"), 1 << 20, &out)));
  }
}

// Not read as anything else, nor with memory for blocks of any size.
TEST(CopyEncodingTest, AnotherVersionIsRefused) {
  const std::string object = Encoded(CopyEncoding::kShuffled, Floats(2000), 1 << 20);
  for (const size_t at : {size_t{7}, size_t{8}, size_t{15}}) {
    std::string other = object, out;
    other[at] = '2';
    const absl::Status refused = Decode(CopyEncoding::kShuffled, other, 1 << 20, &out);
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_NE(refused.message().find("this version knows"), std::string::npos) << refused;
  }
}

}  // namespace
}  // namespace espalier
