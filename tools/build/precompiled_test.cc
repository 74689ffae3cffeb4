#include <gtest/gtest.h>

#include "tools/build/precompiled_source.h"

namespace espalier {
namespace {

// If the header is not used, nothing fails, but every source takes a second or two longer to
// compile.
TEST(PrecompiledHeaderTest, FitsTheFlagsOfLibraries) {
  EXPECT_TRUE(SourceIsPrecompiled())
      << "gcc did not take precompiled.h.gch; -Winvalid-pch says why";
}

}  // namespace
}  // namespace espalier
