#include "ops/tensor/contiguous.h"

#include <vector>

#include "gtest/gtest.h"

namespace espalier {
namespace {

// Checks every box inside a small tensor against an enumeration of its elements.
TEST(ContiguousOffsetTest, MatchesEnumerationOfElements) {
  const Region box{{2, 1, 5}, {3, 2, 4}};
  int stretches = 0;
  Region piece{Dims(3), Dims(3)};
  for (int64_t code = 0; code < 3 * 3 * 2 * 2 * 4 * 4; ++code) {
    int64_t rest = code;
    bool inside = true;
    for (int d = 0; d < 3; ++d) {
      piece.start[d] = box.start[d] + rest % box.size[d];
      rest /= box.size[d];
      piece.size[d] = 1 + rest % box.size[d];
      rest /= box.size[d];
      inside = inside && piece.start[d] + piece.size[d] <= box.start[d] + box.size[d];
    }
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < piece.size[0]; ++i) {
      for (int64_t j = 0; j < piece.size[1]; ++j) {
        for (int64_t k = 0; k < piece.size[2]; ++k) {
          elements.push_back(((piece.start[0] - 2 + i) * 2 + piece.start[1] - 1 + j) * 4 +
                             piece.start[2] - 5 + k);
        }
      }
    }
    bool dense = inside;
    for (size_t i = 0; i < elements.size(); ++i) {
      dense = dense && elements[i] == elements[0] + static_cast<int64_t>(i);
    }
    const std::optional<int64_t> begin = ContiguousOffset(piece, box);
    ASSERT_EQ(begin.has_value(), dense) << code;
    if (dense) {
      ++stretches;
      ASSERT_EQ(*begin, elements[0]);
    }
  }
  EXPECT_GT(stretches, 50);
  EXPECT_EQ(ContiguousOffset({{}, {}}, {{}, {}}), 0);
  EXPECT_EQ(ContiguousOffset({{0}, {1}}, {{}, {}}), std::nullopt);
}

}  // namespace
}  // namespace espalier
