#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_trigonometry {

struct Sin {
  __device__ float operator()(float x) const { return sinf(x); }
};
struct SinGradient {
  __device__ float operator()(float x, float dy) const { return dy * cosf(x); }
};

struct Cos {
  __device__ float operator()(float x) const { return cosf(x); }
};
struct CosGradient {
  __device__ float operator()(float x, float dy) const { return -dy * sinf(x); }
};

struct Tan {
  __device__ float operator()(float x) const { return tanf(x); }
};
struct TanGradient {  // of y
  __device__ float operator()(float y, float dy) const { return dy * (1.0f + y * y); }
};

// 1 - x * x without loss next to 1.
__device__ __forceinline__ float OneMinusSquare(float x) { return (1.0f - x) * (1.0f + x); }

struct Asin {
  __device__ float operator()(float x) const { return asinf(x); }
};
struct AsinGradient {
  __device__ float operator()(float x, float dy) const { return dy / sqrtf(OneMinusSquare(x)); }
};

struct Acos {
  __device__ float operator()(float x) const { return acosf(x); }
};
struct AcosGradient {
  __device__ float operator()(float x, float dy) const { return -dy / sqrtf(OneMinusSquare(x)); }
};

struct Atan {
  __device__ float operator()(float x) const { return atanf(x); }
};
struct AtanGradient {
  __device__ float operator()(float x, float dy) const { return dy / (1.0f + x * x); }
};

struct Sinh {
  __device__ float operator()(float x) const { return sinhf(x); }
};
struct SinhGradient {
  __device__ float operator()(float x, float dy) const { return dy * coshf(x); }
};

struct Cosh {
  __device__ float operator()(float x) const { return coshf(x); }
};
struct CoshGradient {
  __device__ float operator()(float x, float dy) const { return dy * sinhf(x); }
};

struct Asinh {
  __device__ float operator()(float x) const { return asinhf(x); }
};
struct AsinhGradient {  // hypotf does not overflow
  __device__ float operator()(float x, float dy) const { return dy / hypotf(x, 1.0f); }
};

struct Acosh {
  __device__ float operator()(float x) const { return acoshf(x); }
};
struct AcoshGradient {  // x * x - 1 in factors: no loss next to 1, no overflow
  __device__ float operator()(float x, float dy) const {
    return dy / (sqrtf(x - 1.0f) * sqrtf(x + 1.0f));
  }
};

struct Atanh {
  __device__ float operator()(float x) const { return atanhf(x); }
};
struct AtanhGradient {
  __device__ float operator()(float x, float dy) const { return dy / OneMinusSquare(x); }
};

}  // namespace cuda_trigonometry

void RegisterTrigonometryCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_trigonometry;
  AddUnary(registry, "sin", Sin(), SinGradient());
  AddUnary(registry, "cos", Cos(), CosGradient());
  AddUnary(registry, "tan", Tan(), TanGradient());
  AddUnary(registry, "asin", Asin(), AsinGradient());
  AddUnary(registry, "acos", Acos(), AcosGradient());
  AddUnary(registry, "atan", Atan(), AtanGradient());
  AddUnary(registry, "sinh", Sinh(), SinhGradient());
  AddUnary(registry, "cosh", Cosh(), CoshGradient());
  AddUnary(registry, "asinh", Asinh(), AsinhGradient());
  AddUnary(registry, "acosh", Acosh(), AcoshGradient());
  AddUnary(registry, "atanh", Atanh(), AtanhGradient());
}

}  // namespace espalier
