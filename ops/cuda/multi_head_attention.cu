// multi_head_attention, and what its gradient runs again: projections, probabilities and context.
#include <algorithm>
#include <cmath>

#include "ops/cuda/convert.h"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/multi_head_attention.cuh"

namespace espalier {
namespace cuda_multi_head_attention {

Problem Describe(const KernelSpec& spec, size_t bias_k) {
  const TensorSpec &q = spec.inputs[kQ], &wq = spec.inputs[kWq];
  Problem p;
  p.dtype = q.dtype;
  p.batch = q.dims[0];
  p.rows = q.dims[1];
  p.columns = spec.inputs[kK].dims[1];
  // The attribute counts all heads; a shard has some of them.
  p.whole_heads = spec.attributes.Int("heads");
  p.dim = (wq.global.empty() ? wq.dims : wq.global)[0] / p.whole_heads;
  p.heads = wq.dims[0] / p.dim;
  p.value_dim = spec.inputs[kWv].dims[0] / std::max<int64_t>(1, p.heads);
  p.q_width = q.dims[2];
  p.k_width = spec.inputs[kK].dims[2];
  p.v_width = spec.inputs[kV].dims[2];
  p.out = spec.inputs[kWo].dims[0];
  p.bias_row = Has(spec.inputs, bias_k);
  p.zero_row = spec.attributes.Bool("add_zero_attn");
  p.causal = spec.attributes.Bool("causal");
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.dim)));
  p.rate = spec.attributes.Float("rate");
  p.first_sequence = q.offset.empty() ? 0 : q.offset[0];
  p.first_row = q.offset.empty() ? 0 : q.offset[1];
  p.first_head = wq.offset.empty() ? 0 : wq.offset[0] / p.dim;
  p.whole_rows = q.global.empty() ? p.rows : q.global[1];
  return p;
}

template <typename T>
struct AddBias {
  T* y;
  const T* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    y[i] = FromFloat<T>(ToFloat(y[i]) + ToFloat(bias[i % columns]));
  }
};

// The additional rows of K or V behind each sequence's columns.
template <typename T>
struct ExtraRows {
  T* rows;
  const T* bias_row;  // may be null
  int64_t columns, all_columns, width;
  __device__ void operator()(int64_t i) const {
    const int64_t extra = all_columns - columns, row = i / width % extra, b = i / width / extra;
    const bool biased = bias_row != nullptr && row == 0;
    rows[(b * all_columns + columns + row) * width + i % width] =
        biased ? bias_row[i % width] : FromFloat<T>(0.0f);
  }
};

// One block per row of scores: softmax in place, and the result after dropout in the operands'
// type. A fully masked row becomes 0.
template <typename T>
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(Rules rules, float* scores, T* weights) {
  const int64_t n = rules.all_columns, h = blockIdx.x / rules.rows, s = blockIdx.x % rules.rows;
  scores += blockIdx.x * n;
  weights += blockIdx.x * n;
  float most = -INFINITY;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] = rules.Score(scores[t], h, s, t);
    most = fmaxf(most, scores[t]);
  }
  most = BlockMax(most);
  const bool blind = most == -INFINITY;
  float sum = 0;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] = blind ? 0.0f : expf(scores[t] - most);
    sum += scores[t];
  }
  sum = BlockSum(sum);
  const float inverse = blind ? 0.0f : 1.0f / sum;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] *= inverse;
    weights[t] = FromFloat<T>(rules.Kept(scores[t], h, s, t));
  }
}

KernelStatus AttentionKernel::Linear(const KernelArgs& args, int64_t m, int64_t n, int64_t k,
                                     const void* x, const void* w, const void* bias,
                                     void* y) const {
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      Multiply(Product(m, n, k, {x, false, k, 0}, {w, true, k, 0}, y), args));
  if (bias == nullptr) return KernelStatus::Ok();
  return DispatchFloat(p_.dtype, kName, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(m * n, AddBias<T>{static_cast<T*>(y), static_cast<const T*>(bias), n},
                   StreamOf(args), kName);
  });
}

KernelStatus AttentionKernel::Project(const KernelArgs& args, size_t bias_k) const {
  const Problem& p = p_;
  ESPALIER_KERNEL_RETURN_IF_ERROR(Linear(args, p.batch * p.rows, p.inner(), p.q_width,
                                         args.inputs[kQ].data, args.inputs[kWq].data,
                                         DataAt(args, kBq), At(args, q_)));
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      ProjectRows(args, kK, p.k_width, bias_k, p.inner(), At(args, k_)));
  return ProjectRows(args, kV, p.v_width, bias_k + 1, p.value(), At(args, v_));
}

Rules AttentionKernel::RulesOf(const KernelArgs& args, size_t mask, int64_t b) const {
  const Problem& p = p_;
  Rules rules{p.rows, p.columns, p.all_columns(), p.first_row, p.causal, p.scale};
  if (Has(args.inputs, mask)) {
    const TensorView& view = args.inputs[mask];
    const size_t rank = view.dims().size();
    const int64_t matrix = p.rows * p.columns;
    rules.head_stride = rank == 4 ? matrix : 0;
    const int64_t at = rank == 2 ? 0 : rank == 3 ? b * matrix : b * p.heads * matrix;
    if (view.dtype() == DType::kBool) {
      rules.visible = view.as<uint8_t>() + at;
    } else {
      rules.added = view.as<float>() + at;
    }
  }
  if (args.training && p.rate > 0) {
    rules.rate = static_cast<float>(p.rate);
    rules.keep_scale = static_cast<float>(1.0 / (1.0 - p.rate));
    rules.seed = args.seed;
    rules.node_key = args.node_key;
    rules.step = static_cast<uint64_t>(args.step);
    rules.head_elements = p.whole_rows * p.all_columns();
    rules.first_element =
        ((p.first_sequence + b) * p.whole_heads + p.first_head) * rules.head_elements +
        p.first_row * p.all_columns();
  }
  return rules;
}

KernelStatus AttentionKernel::Attend(const KernelArgs& args, size_t mask, int64_t b) const {
  const Problem& p = p_;
  const int64_t n = p.all_columns(), matrix = p.rows * n;
  float* scores = WorkspaceAt<float>(args, probabilities_);
  if (p.scores() > 0) {
    Gemm gemm =
        Product(p.rows, n, p.dim, {At(args, q_, b * p.rows * p.inner()), false, p.inner(), 0},
                {At(args, k_, b * n * p.inner()), true, p.inner(), 0}, scores);
    gemm.output = DType::kF32;
    ESPALIER_KERNEL_RETURN_IF_ERROR(PerHead(args, gemm, p.dim, p.dim, n, matrix));
    ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(p.dtype, kName, [&](auto type) {
      using T = typename decltype(type)::T;
      SoftmaxKernel<T><<<static_cast<unsigned>(p.heads * p.rows), kThreads, 0, StreamOf(args)>>>(
          RulesOf(args, mask, b), scores, reinterpret_cast<T*>(At(args, weights_)));
      return LaunchStatus(kName);
    }));
  }
  return PerHead(args,
                 Product(p.rows, p.value_dim, n, {At(args, weights_), false, n, 0},
                         {At(args, v_, b * n * p.value()), false, p.value(), 0},
                         At(args, context_, b * p.rows * p.value())),
                 matrix, p.value_dim, p.value(), p.value_dim);
}

KernelStatus AttentionKernel::ProjectRows(const KernelArgs& args, int x, int64_t x_width,
                                          size_t bias_row, int64_t width, char* to) const {
  const Problem& p = p_;
  const void *w = args.inputs[kWq + x].data, *bias = DataAt(args, kBq + x);
  const int64_t extra = p.all_columns() - p.columns;
  if (extra == 0) {
    return Linear(args, p.batch * p.columns, width, x_width, args.inputs[x].data, w, bias, to);
  }
  const int64_t stride = p.all_columns() * width * static_cast<int64_t>(SizeOf(p.dtype));
  for (int64_t b = 0; b < p.batch; ++b) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(Linear(args, p.columns, width, x_width,
                                           InputAt(args, x, b * p.columns * x_width), w, bias,
                                           to + b * stride));
  }
  return DispatchFloat(p.dtype, kName, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        p.batch * extra * width,
        ExtraRows<T>{reinterpret_cast<T*>(to), static_cast<const T*>(DataAt(args, bias_row)),
                     p.columns, p.all_columns(), width},
        StreamOf(args), kName);
  });
}

class Forward : public AttentionKernel {
 public:
  Forward(DeviceContexts& contexts, const KernelSpec& spec)
      : AttentionKernel(contexts, Describe(spec, kBiasK)) {}

  KernelStatus Run(const KernelArgs& args) override {
    const Problem& p = p_;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Project(args, kBiasK));
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Attend(args, kMask, b));
    }
    return Linear(args, p.batch * p.rows, p.out, p.value(), At(args, context_),
                  args.inputs[kWo].data, DataAt(args, kBo), args.outputs[0].data);
  }
};

}  // namespace cuda_multi_head_attention

void RegisterMultiHeadAttentionCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_multi_head_attention;
  registry.Add("multi_head_attention", InNarrowest(Factory<Forward>(contexts), kMask));
}

}  // namespace espalier
