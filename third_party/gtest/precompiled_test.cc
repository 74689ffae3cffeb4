#include <gtest/gtest.h>

namespace {

// Without it nothing fails, and every test compiles for a second or two longer.
TEST(PrecompiledHeaderTest, FitsTheFlagsOfTests) {
#ifndef ESPALIER_PRECOMPILED
  FAIL() << "gcc did not take precompiled.h.gch; -Winvalid-pch says why";
#endif
}

}  // namespace
