// Group norm: the elements of a group are contiguous and form a row; each channel is one plane of
// it.
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_group_norm {

struct Moments {
  float mean, inverse;  // 1 / standard deviation
};

// The sums over one plane: of dy, and of dy * (x - mean).
struct PlaneSums {
  float dy, along;
};

struct Problem {
  int64_t batch, channels, spatial, groups;  // of the shard
  float epsilon;

  __host__ __device__ int64_t per_group() const { return channels / groups; }
  __host__ __device__ int64_t row() const { return per_group() * spatial; }
  __host__ __device__ int64_t rows() const { return batch * groups; }
};

Problem Describe(const Attributes& a, const TensorSpec& x) {
  Problem p{x.dims[0], x.dims[1], 1, a.Int("groups"), static_cast<float>(a.Float("epsilon"))};
  for (size_t d = 2; d < x.dims.size(); ++d) p.spatial *= x.dims[d];
  // Groups of the whole tensor; a shard has some of them.
  if (!x.global.empty() && x.global[1] > 0) p.groups = p.groups * x.dims[1] / x.global[1];
  return p;
}

// One block per row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MomentsKernel(const T* x, Moments* moments, int64_t n, float epsilon) {
  x += blockIdx.x * n;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += ToFloat(x[i]);
  const float mean = BlockSum(sum) / static_cast<float>(n);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float distance = ToFloat(x[i]) - mean;
    squares += distance * distance;
  }
  const float variance = BlockSum(squares) / static_cast<float>(n);
  if (threadIdx.x == 0) moments[blockIdx.x] = {mean, 1.0f / sqrtf(variance + epsilon)};
}

template <typename T>
struct Normalize {
  Problem p;
  const T* x;
  const T* scale;  // may be null, as bias
  const T* bias;
  const Moments* moments;
  T* y;
  __device__ void operator()(int64_t i) const {
    const Moments m = moments[i / p.row()];
    const int64_t channel = i / p.spatial % p.channels;
    float value = (ToFloat(x[i]) - m.mean) * m.inverse;
    if (scale != nullptr) value *= ToFloat(scale[channel]);
    if (bias != nullptr) value += ToFloat(bias[channel]);
    y[i] = FromFloat<T>(value);
  }
};

// One block per plane.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumsKernel(Problem p, const T* x, const T* dy, const Moments* moments, PlaneSums* sums) {
  const int64_t plane = blockIdx.x;
  const float mean = moments[plane / p.per_group()].mean;
  x += plane * p.spatial;
  dy += plane * p.spatial;
  float sum = 0, along = 0;
  for (int64_t i = threadIdx.x; i < p.spatial; i += kThreads) {
    const float gradient = ToFloat(dy[i]);
    sum += gradient;
    along += gradient * (ToFloat(x[i]) - mean);
  }
  sum = BlockSum(sum);
  along = BlockSum(along);
  if (threadIdx.x == 0) sums[plane] = {sum, along};
}

// With g = dy * scale and h = (x - mean) / sd: dx = (g - mean(g) - h * mean(g * h)) / sd. Leaves
// mean(g), and mean(g * h) / sd, of every row.
template <typename T>
struct CombineRow {
  Problem p;
  const T* scale;
  const Moments* moments;
  const PlaneSums* sums;
  PlaneSums* rows;
  __device__ void operator()(int64_t row) const {
    float mean = 0, along = 0;
    for (int64_t k = 0; k < p.per_group(); ++k) {
      const int64_t plane = row * p.per_group() + k;
      const float factor = scale == nullptr ? 1.0f : ToFloat(scale[plane % p.channels]);
      mean += factor * sums[plane].dy;
      along += factor * sums[plane].along;
    }
    const float inverse = moments[row].inverse, size = static_cast<float>(p.row());
    rows[row] = {mean / size, along * inverse * inverse / size};
  }
};

template <typename T>
struct InputGradient {
  Problem p;
  const T* x;
  const T* scale;
  const T* dy;
  const Moments* moments;
  const PlaneSums* rows;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / p.row();
    const Moments m = moments[row];
    const float factor = scale == nullptr ? 1.0f : ToFloat(scale[i / p.spatial % p.channels]);
    const float g = ToFloat(dy[i]) * factor;
    dx[i] =
        FromFloat<T>(m.inverse * (g - rows[row].dy - (ToFloat(x[i]) - m.mean) * rows[row].along));
  }
};

template <typename T>
struct ParameterGradient {
  Problem p;
  const Moments* moments;
  const PlaneSums* sums;
  T* dscale;  // may be null, as dbias
  T* dbias;
  __device__ void operator()(int64_t c) const {
    float scale = 0, bias = 0;
    for (int64_t n = 0; n < p.batch && p.row() > 0; ++n) {
      const PlaneSums s = sums[n * p.channels + c];
      scale += s.along * moments[n * p.groups + c / p.per_group()].inverse;
      bias += s.dy;
    }
    if (dscale != nullptr) dscale[c] = FromFloat<T>(scale);
    if (dbias != nullptr) dbias[c] = FromFloat<T>(bias);
  }
};

// The layout of the workspace.
struct Layout {
  size_t moments, sums, rows, bytes;

  explicit Layout(const Problem& p) {
    WorkspaceLayout layout;
    moments = layout.Add(static_cast<size_t>(p.rows()) * sizeof(Moments));
    sums = layout.Add(static_cast<size_t>(p.batch * p.channels) * sizeof(PlaneSums));
    rows = layout.Add(static_cast<size_t>(p.rows()) * sizeof(PlaneSums));
    bytes = layout.bytes();
  }
};

template <typename T>
T* DataAt(std::span<const TensorView> views, size_t i) {
  return Has(views, i) ? views[i].as<T>() : nullptr;
}

KernelStatus Forward(const KernelArgs& args, const Problem& p) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  Moments* moments = WorkspaceAt<Moments>(args, Layout(p).moments);
  return DispatchFloat(x.dtype(), "group_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    MomentsKernel<T><<<static_cast<unsigned>(p.rows()), kThreads, 0, StreamOf(args)>>>(
        x.as<T>(), moments, p.row(), p.epsilon);
    ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("group_norm"));
    return ForEach(y.num_elements(),
                   Normalize<T>{p, x.as<T>(), DataAt<T>(args.inputs, 1), DataAt<T>(args.inputs, 2),
                                moments, y.as<T>()},
                   StreamOf(args), "group_norm");
  });
}

// x, scale?, dy -> dx, dscale, dbias
KernelStatus Backward(const KernelArgs& args, const Problem& p) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[2];
  const Layout layout(p);
  Moments* moments = WorkspaceAt<Moments>(args, layout.moments);
  PlaneSums* sums = WorkspaceAt<PlaneSums>(args, layout.sums);
  PlaneSums* rows = WorkspaceAt<PlaneSums>(args, layout.rows);
  const cudaStream_t stream = StreamOf(args);
  return DispatchFloat(x.dtype(), "group_norm_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    const T* scale = DataAt<T>(args.inputs, 1);
    if (x.num_elements() > 0) {
      MomentsKernel<T><<<static_cast<unsigned>(p.rows()), kThreads, 0, stream>>>(
          x.as<T>(), moments, p.row(), p.epsilon);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("group_norm_grad"));
      SumsKernel<T><<<static_cast<unsigned>(p.batch * p.channels), kThreads, 0, stream>>>(
          p, x.as<T>(), dy.as<T>(), moments, sums);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("group_norm_grad"));
    }
    if (T* dx = DataAt<T>(args.outputs, 0); dx != nullptr && x.num_elements() > 0) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
          p.rows(), CombineRow<T>{p, scale, moments, sums, rows}, stream, "group_norm_grad"));
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
          x.num_elements(), InputGradient<T>{p, x.as<T>(), scale, dy.as<T>(), moments, rows, dx},
          stream, "group_norm_grad"));
    }
    T *dscale = DataAt<T>(args.outputs, 1), *dbias = DataAt<T>(args.outputs, 2);
    if (dscale == nullptr && dbias == nullptr) return KernelStatus::Ok();
    return ForEach(p.channels, ParameterGradient<T>{p, moments, sums, dscale, dbias}, stream,
                   "group_norm_grad");
  });
}

KernelFactory Factory(KernelStatus (*run)(const KernelArgs&, const Problem&)) {
  return [run](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    const Problem p = Describe(spec.attributes, spec.inputs[0]);
    return MakeKernel([run, p](const KernelArgs& args) { return run(args, p); }, Layout(p).bytes);
  };
}

}  // namespace cuda_group_norm

void RegisterGroupNormCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_group_norm;
  registry.Add("group_norm", Factory(Forward));
  registry.Add("group_norm_grad", Factory(Backward));
}

}  // namespace espalier
