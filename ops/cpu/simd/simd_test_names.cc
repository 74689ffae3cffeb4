#include "ops/cpu/simd/simd_test_names.h"

#include "ops/cpu/simd/simd.h"

namespace espalier {
namespace {

// As one in simd_test.cc is called.
template <int W>
struct NamedBody {
  static ESPALIER_INLINE void Run(int* number) { *number = 2; }
};

}  // namespace

int RunOtherNamedBody() {
  int number = 0;
  simd::Dispatch<NamedBody>(&number);
  return number;
}

}  // namespace espalier
