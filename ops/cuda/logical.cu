#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_logical {

struct Not {
  __device__ bool operator()(bool x) const { return !x; }
};

struct And {
  __device__ bool operator()(bool a, bool b) const { return a && b; }
};

struct Or {
  __device__ bool operator()(bool a, bool b) const { return a || b; }
};

struct Xor {
  __device__ bool operator()(bool a, bool b) const { return a != b; }
};

}  // namespace cuda_logical

void RegisterLogicalCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_logical;
  AddUnaryForward<Takes::kBools>(registry, "logical_not", [](const Attributes&) { return Not(); });
  AddBinary<Takes::kBools>(registry, "logical_and", And());
  AddBinary<Takes::kBools>(registry, "logical_or", Or());
  AddBinary<Takes::kBools>(registry, "logical_xor", Xor());
}

}  // namespace espalier
