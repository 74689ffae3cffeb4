#include <gtest/gtest.h>

#include "tools/build/precompiled_source.h"

namespace espalier {
namespace {

// Without it nothing fails, and every source compiles for a second or two longer.
TEST(PrecompiledHeaderTest, FitsTheFlagsOfLibraries) {
  EXPECT_TRUE(SourceIsPrecompiled())
      << "gcc did not take precompiled.h.gch; -Winvalid-pch says why";
}

}  // namespace
}  // namespace espalier
