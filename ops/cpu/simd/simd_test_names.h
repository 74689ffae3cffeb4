// A kernel's inner part with the name of one in simd_test.cc.
#pragma once

namespace espalier {

// 2, by way of simd::Dispatch; the test's own gives 1.
int RunOtherNamedBody();

}  // namespace espalier
