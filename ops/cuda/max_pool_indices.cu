#include "ops/cuda/pool.cuh"
#include "ops/kernel/max_pool_index.h"

namespace espalier {
namespace cuda_max_pool_indices {

template <typename T>
struct Forward {
  Windows w;
  MaxPoolIndex index;
  const T* x;
  T* values;  // may be null, as indices
  int64_t* indices;
  __device__ void operator()(int64_t at) const {
    const int64_t j = at % w.y_size[1], i = at / w.y_size[1] % w.y_size[0];
    const int64_t plane = at / w.y_area();
    const T* in = x + plane * w.x_area();
    const int64_t best = w.ArgMax(in, i, j);
    if (values != nullptr) values[at] = best < 0 ? FromFloat<T>(-INFINITY) : in[best];
    if (indices != nullptr) {
      indices[at] = best < 0 ? -1 : index.Start(plane) + index.FromRowMajor(best);
    }
  }
};

template <typename T>
struct Backward {
  Windows w;
  MaxPoolIndex index;
  const int64_t* indices;
  const T* dy;
  T* dx;
  __device__ void operator()(int64_t at) const {
    const int64_t in_plane = at % w.x_area(), plane = at / w.x_area();
    const int64_t column = in_plane % w.x_size[1], row = in_plane / w.x_size[1];
    const int64_t own = index.Start(plane) + index.FromRowMajor(in_plane);
    float sum = 0;
    for (int64_t i = w.FirstWindow(0, row); i < w.EndWindow(0, row); ++i) {
      for (int64_t j = w.FirstWindow(1, column); j < w.EndWindow(1, column); ++j) {
        const int64_t window = plane * w.y_area() + i * w.y_size[1] + j;
        if (indices[window] == own) sum += ToFloat(dy[window]);
      }
    }
    dx[at] = FromFloat<T>(sum);
  }
};

MaxPoolIndex IndexOf(const TensorSpec& x, const Attributes& a) {
  MaxPoolIndex index(x);
  index.column_major = a.Bool("column_major");
  return index;
}

}  // namespace cuda_max_pool_indices

void RegisterMaxPoolIndicesCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_max_pool_indices;
  registry.Add("max_pool_indices",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([a = spec.attributes](const KernelArgs& args) {
                   const TensorView &x = args.inputs[0], &values = args.outputs[0],
                                    &indices = args.outputs[1];
                   const TensorSpec& out = (values.present() ? values : indices).spec;
                   return DispatchFloat(x.dtype(), "max_pool_indices", [&](auto type) {
                     using T = typename decltype(type)::T;
                     return ForEach(
                         out.num_elements(),
                         Forward<T>{Windows::Sliding(a, x.dims(), out.dims), IndexOf(x.spec, a),
                                    x.as<T>(), values.as<T>(), indices.as<int64_t>()},
                         StreamOf(args), "max_pool_indices");
                   });
                 });
               });
  // indices, dvalues, dindices (never there) -> dx
  registry.Add("max_pool_indices_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
                 return MakeKernel([a = spec.attributes](const KernelArgs& args) {
                   const TensorView &indices = args.inputs[0], &dy = args.inputs[1],
                                    &dx = args.outputs[0];
                   if (!dx.present()) return KernelStatus::Ok();
                   return DispatchFloat(dx.dtype(), "max_pool_indices_grad", [&](auto type) {
                     using T = typename decltype(type)::T;
                     return ForEach(
                         dx.num_elements(),
                         Backward<T>{Windows::Sliding(a, dx.dims(), dy.dims()), IndexOf(dx.spec, a),
                                     indices.as<int64_t>(), dy.as<T>(), dx.as<T>()},
                         StreamOf(args), "max_pool_indices_grad");
                   });
                 });
               });
}

}  // namespace espalier
