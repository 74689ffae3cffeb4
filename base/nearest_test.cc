#include "base/nearest.h"

#include "gtest/gtest.h"

namespace espalier {
namespace {

TEST(NearestTest, FindsTheWordThatWasMeant) {
  EXPECT_EQ(Nearest("trian", {"train", "plan"}), "train");
  EXPECT_EQ(Nearest("gen", {"train", "generate"}), "generate");
  EXPECT_EQ(Nearest("xyz", {"train", "plan"}), "");
  EXPECT_EQ(DidYouMean("trian", {"train", "plan"}), "; did you mean 'train'?");
  EXPECT_EQ(DidYouMean("xyz", {"train", "plan"}), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'm'), {"train", "plan"}), "");
}

}  // namespace
}  // namespace espalier
