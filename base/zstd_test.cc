#include "base/zstd.h"

#include <gtest/gtest.h>

#include <random>

namespace espalier {
namespace {

// Values of which one byte of four repeats, as the exponents of parameters do.
std::string SampleValues(size_t count) {
  std::mt19937 random(7);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = 0x3d000000u | (random() & 0x00ffffffu);
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return bytes;
}

std::string CompressInPieces(const std::string& bytes, size_t piece) {
  ZstdCompressor compressor(1);
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_EQ(compressor.Add(bytes.substr(at, piece), &out), absl::OkStatus());
  }
  EXPECT_EQ(compressor.Finish(&out), absl::OkStatus());
  return out;
}

// Adds all of the bytes, and takes at most about `most` at a time.
absl::Status Decompress(ZstdDecompressor& decompressor, absl::string_view compressed,
                        std::string* out, size_t most = 1 << 16) {
  while (true) {
    const size_t before = out->size();
    const absl::StatusOr<bool> more = decompressor.Add(&compressed, most, out);
    if (!more.ok()) return more.status();
    EXPECT_LE(out->size() - before, most + (1 << 17));
    if (!*more) break;
  }
  EXPECT_TRUE(compressed.empty());
  return absl::OkStatus();
}

TEST(ZstdTest, FewBytesThatGiveMuchAreTakenInPieces) {
  const std::string bytes(20'000'000, 'x'), compressed = CompressInPieces(bytes, 1 << 20);
  ASSERT_LT(compressed.size(), 10'000u);
  for (const size_t most : {1u, 1u << 20}) {
    ZstdDecompressor decompressor;
    std::string out;
    ASSERT_EQ(Decompress(decompressor, compressed, &out, most), absl::OkStatus());
    EXPECT_EQ(decompressor.Finish(), absl::OkStatus());
    EXPECT_TRUE(out == bytes);
  }
}

TEST(ZstdTest, ReturnsTheSameBytesWhateverThePieces) {
  for (const size_t count : {0u, 1u, 1000u, 300000u}) {
    const std::string bytes = SampleValues(count);
    for (const size_t piece : {997u, 1u << 20}) {
      const std::string compressed = CompressInPieces(bytes, piece);
      ZstdDecompressor decompressor;
      std::string out;
      for (size_t at = 0; at < compressed.size(); at += 4093) {
        ASSERT_EQ(Decompress(decompressor, compressed.substr(at, 4093), &out), absl::OkStatus());
      }
      EXPECT_EQ(decompressor.Finish(), absl::OkStatus());
      EXPECT_TRUE(out == bytes) << count;
      if (count > 1000) {
        EXPECT_LT(compressed.size(), bytes.size() * 9 / 10);
      }
    }
  }
}

TEST(ZstdTest, SaysThatBytesAreDamaged) {
  const std::string compressed = CompressInPieces(SampleValues(1000), 1 << 20);
  for (size_t at = 0; at < compressed.size(); at += compressed.size() / 37) {
    std::string damaged = compressed, out;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    ZstdDecompressor decompressor;
    const absl::Status added = Decompress(decompressor, damaged, &out);
    EXPECT_TRUE(absl::IsDataLoss(added.ok() ? decompressor.Finish() : added)) << at;
  }
  std::string out;
  ZstdDecompressor truncated, longer;
  ASSERT_EQ(Decompress(truncated, compressed.substr(0, compressed.size() - 5), &out),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(truncated.Finish()));
  EXPECT_TRUE(absl::IsDataLoss(Decompress(longer, compressed + "x", &out)));
}

}  // namespace
}  // namespace espalier
