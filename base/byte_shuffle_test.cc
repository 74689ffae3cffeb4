#include "base/byte_shuffle.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

std::string Shuffle(ByteShuffler shuffler, const std::string& bytes, size_t piece) {
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += piece) shuffler.Add(bytes.substr(at, piece), &out);
  shuffler.Finish(&out);
  return out;
}

TEST(ByteShufflerTest, PutsTheBytesOfEachPlaceSideBySideBlockByBlock) {
  EXPECT_EQ(Shuffle(ByteShuffler::Forward(12), "abcdABCD0123efghEFGH4567ijklIJKL89", 100),
            "aA0bB1cC2dD3eE4fF5gG6hH7iIjJkKlL89");
}

TEST(ByteShufflerTest, ReturnsTheSameBytesWhateverThePieces) {
  for (const size_t size : {0u, 1u, 63u, 64u, 65u, 1001u}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 37 + i / 256);
    const std::string shuffled = Shuffle(ByteShuffler::Forward(64), bytes, 1001);
    for (const size_t piece : {1u, 7u, 64u, 200u}) {
      EXPECT_EQ(Shuffle(ByteShuffler::Forward(64), bytes, piece), shuffled) << size << " " << piece;
      EXPECT_EQ(Shuffle(ByteShuffler::Back(64), shuffled, piece), bytes) << size << " " << piece;
    }
  }
}

}  // namespace
}  // namespace espalier
