#include "ops/cuda/reduce_generic.cuh"

namespace espalier {
namespace cuda_reduce_prod {

struct ProductOp {
  using Type = double;
  static __device__ __forceinline__ Type Identity() { return 1; }
  static __device__ __forceinline__ Type Apply(Type a, Type b) { return a * b; }
};

// Products of integers, which wrap.
struct WrapProductOp {
  using Type = uint64_t;
  static __device__ __forceinline__ Type Identity() { return 1; }
  static __device__ __forceinline__ Type Apply(Type a, Type b) { return a * b; }
};

template <typename T>
struct Factor {
  const T* x;
  __device__ auto operator()(int64_t i) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<uint64_t>(static_cast<int64_t>(x[i]));
    } else {
      return static_cast<double>(ToFloat(x[i]));
    }
  }
};

template <typename T>
struct StoreProduct {
  T* y;
  template <typename V>
  __device__ void operator()(int64_t o, V product) const {
    if constexpr (std::is_integral_v<T>) {
      y[o] = static_cast<T>(product);
    } else {
      y[o] = FromFloat<T>(static_cast<float>(product));
    }
  }
};

// The factors that are not zero; and how many are.
template <typename T>
struct NonzeroFactor {
  const T* x;
  __device__ double operator()(int64_t i) const {
    const float value = ToFloat(x[i]);
    return value == 0.0f ? 1.0 : static_cast<double>(value);
  }
};
template <typename T>
struct IsZero {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]) == 0.0f ? 1.0f : 0.0f; }
};

struct StoreDouble {
  double* y;
  template <typename V>
  __device__ void operator()(int64_t o, V value) const {
    y[o] = static_cast<double>(value);
  }
};

// The gradient of an element is dy times the product of the others: of all of them without zeros,
// divided by the element; with one zero, that one alone gets any.
template <typename T>
struct GradientElement {
  const T* x;
  const T* dy;
  const double* products;
  const double* zeros;
  T* dx;
  BroadcastIndex index;
  __device__ void operator()(int64_t i) const {
    const int64_t o = index(i);
    const float value = ToFloat(x[i]);
    const double part = products[o] * static_cast<double>(ToFloat(dy[o]));
    double gradient = 0;
    if (zeros[o] == 0) {
      gradient = part / static_cast<double>(value);
    } else if (zeros[o] == 1 && value == 0.0f) {
      gradient = part;
    }
    dx[i] = FromFloat<T>(static_cast<float>(gradient));
  }
};

KernelStatus Gradient(const ReductionPlan& plan, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  double* products = WorkspaceAt<double>(args, plan.extra);
  double* zeros = products + dy.num_elements();
  return DispatchFloat(x.dtype(), "reduce_prod_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    ESPALIER_KERNEL_RETURN_IF_ERROR(plan.Run<ProductOp>(
        x.dims(), NonzeroFactor<T>{x.as<T>()}, StoreDouble{products}, args, "reduce_prod_grad"));
    ESPALIER_KERNEL_RETURN_IF_ERROR(plan.Run<SumOp>(x.dims(), IsZero<T>{x.as<T>()},
                                                    StoreDouble{zeros}, args, "reduce_prod_grad"));
    return ForEach(dx.num_elements(),
                   GradientElement<T>{x.as<T>(), dy.as<T>(), products, zeros, dx.as<T>(),
                                      plan.Index(x.dims())},
                   StreamOf(args), "reduce_prod_grad");
  });
}

}  // namespace cuda_reduce_prod

void RegisterReduceProdCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reduce_prod;
  registry.Add(
      "reduce_prod", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesNumber(spec.inputs[0].dtype, refusal)) return nullptr;
        const ReductionPlan plan = ReductionPlan::Make<ProductOp>(spec, spec.inputs[0].dims);
        return MakeKernel(
            [plan](const KernelArgs& args) {
              const TensorView &x = args.inputs[0], &y = args.outputs[0];
              return DispatchNumber(x.dtype(), "reduce_prod", [&](auto type) {
                using T = typename decltype(type)::T;
                using Op = std::conditional_t<std::is_integral_v<T>, WrapProductOp, ProductOp>;
                return plan.Run<Op>(x.dims(), Factor<T>{x.as<T>()}, StoreProduct<T>{y.as<T>()},
                                    args, "reduce_prod");
              });
            },
            plan.layout.bytes());
      });
  registry.Add("reduce_prod_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 const ReductionPlan plan =
                     ReductionPlan::Make<ProductOp>(spec, spec.inputs[0].dims, 2 * sizeof(double));
                 return MakeKernel([plan](const KernelArgs& args) { return Gradient(plan, args); },
                                   plan.layout.bytes());
               });
}

}  // namespace espalier
