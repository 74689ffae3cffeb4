// A kernel body with the same name as one in simd_test.cc, to test that Dispatch keeps them apart.
#pragma once

namespace espalier {

// 2, by way of simd::Dispatch; the test's own gives 1.
int RunOtherNamedBody();

}  // namespace espalier
