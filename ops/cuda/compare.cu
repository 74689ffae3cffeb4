#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_compare {

struct Equal {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a == b;
  }
};

struct NotEqual {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a != b;
  }
};

struct Less {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a < b;
  }
};

struct LessEqual {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a <= b;
  }
};

struct Greater {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a > b;
  }
};

struct GreaterEqual {
  template <typename T>
  __device__ bool operator()(T a, T b) const {
    return a >= b;
  }
};

}  // namespace cuda_compare

void RegisterCompareCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_compare;
  AddBinary<Takes::kAll>(registry, "equal", Equal());
  AddBinary<Takes::kAll>(registry, "not_equal", NotEqual());
  AddBinary<Takes::kNumbers>(registry, "less", Less());
  AddBinary<Takes::kNumbers>(registry, "less_equal", LessEqual());
  AddBinary<Takes::kNumbers>(registry, "greater", Greater());
  AddBinary<Takes::kNumbers>(registry, "greater_equal", GreaterEqual());
}

}  // namespace espalier
