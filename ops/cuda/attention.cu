// attention for training: batched products by cuBLAS with the scores of one sequence in the
// workspace, [heads, S, T] in f32. The backward pass recomputes the probabilities.
#include <cmath>

#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_attention {

struct Problem {
  int64_t batch, rows, columns, heads, kv_heads, dim;
  bool causal;
  float scale;
  int64_t first_row = 0;  // of this shard, in the whole sequence

  int64_t group() const { return heads / kv_heads; }
  int64_t q_width() const { return heads * dim; }
  int64_t kv_width() const { return kv_heads * dim; }
  int64_t matrix() const { return rows * columns; }
  int64_t scores() const { return heads * matrix(); }
};

Problem Describe(const Attributes& attributes, const TensorSpec& q, const TensorSpec& k) {
  Problem p;
  p.dim = attributes.Int("head_dim");
  p.batch = q.dims[0];
  p.rows = q.dims[1];
  p.columns = k.dims[1];
  p.heads = q.dims[2] / p.dim;
  p.kv_heads = k.dims[2] / p.dim;
  p.causal = attributes.Bool("causal");
  const double scale = attributes.Float("scale");
  p.scale = static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(p.dim)));
  if (!q.offset.empty()) p.first_row = q.offset[1];
  return p;
}

// The mask of one sequence: [S, T], or [Hq, S, T] with head_stride S * T. Both pointers null: none.
struct Mask {
  const uint8_t* visible = nullptr;
  const float* added = nullptr;
  int64_t head_stride = 0;

  static Mask Of(const TensorView* mask, const Problem& p, int64_t b) {
    Mask result;
    if (mask == nullptr || !mask->present()) return result;
    const size_t rank = mask->dims().size();
    int64_t at = 0;
    if (rank == 3) at = b * p.matrix();
    if (rank == 4) {
      at = b * p.scores();
      result.head_stride = p.matrix();
    }
    if (mask->dtype() == DType::kBool) {
      result.visible = mask->as<uint8_t>() + at;
    } else {
      result.added = mask->as<float>() + at;
    }
    return result;
  }
};

// One block per row of scores (head, s). Probabilities go to `probabilities`, which may be
// `scores`; a row that sees nothing becomes 0.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxKernel(const float* scores, T* probabilities, Mask mask, int64_t rows, int64_t columns,
                  bool causal, int64_t first_row, float scale) {
  const int64_t head = blockIdx.x / rows, s = blockIdx.x % rows;
  const int64_t limit = causal ? min(columns, max(int64_t{0}, first_row + s + 1)) : columns;
  const int64_t mask_at = head * mask.head_stride + s * columns;
  scores += blockIdx.x * columns;
  probabilities += blockIdx.x * columns;
  const auto score = [&](int64_t t) {
    float value = scores[t] * scale;
    if (mask.visible != nullptr && mask.visible[mask_at + t] == 0) value = -INFINITY;
    if (mask.added != nullptr) value += mask.added[mask_at + t];
    return value;
  };
  float most = -INFINITY;
  for (int64_t t = threadIdx.x; t < limit; t += kThreads) most = fmaxf(most, score(t));
  most = BlockMax(most);
  if (most == -INFINITY) {
    for (int64_t t = threadIdx.x; t < columns; t += kThreads) {
      const float value = t < limit ? score(t) : 0.0f;
      probabilities[t] = FromFloat<T>(value != value ? value : 0.0f);
    }
    return;
  }
  float sum = 0;
  for (int64_t t = threadIdx.x; t < limit; t += kThreads) sum += expf(score(t) - most);
  const float inverse = 1.0f / BlockSum(sum);
  for (int64_t t = threadIdx.x; t < columns; t += kThreads) {
    probabilities[t] = FromFloat<T>(t < limit ? expf(score(t) - most) * inverse : 0.0f);
  }
}

// dscores = p * (dp - sum(p * dp)) * scale. `dscores` may be `dp`; `rounded`, if not null, gets p.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxGradientKernel(const float* p, const float* dp, T* dscores, T* rounded, int64_t columns,
                          float scale) {
  const int64_t start = blockIdx.x * columns;
  float along = 0;
  for (int64_t t = threadIdx.x; t < columns; t += kThreads) along += p[start + t] * dp[start + t];
  along = BlockSum(along);
  for (int64_t t = threadIdx.x; t < columns; t += kThreads) {
    const float probability = p[start + t];
    dscores[start + t] = FromFloat<T>(probability * (dp[start + t] - along) * scale);
    if (rounded != nullptr) rounded[start + t] = FromFloat<T>(probability);
  }
}

template <typename T>
struct RoundElement {
  const float* x;
  T* y;
  __device__ void operator()(int64_t i) const { y[i] = FromFloat<T>(x[i]); }
};

const void* At(const TensorView& view, int64_t elements) {
  return static_cast<const char*>(view.data) +
         elements * static_cast<int64_t>(SizeOf(view.dtype()));
}
void* MutableAt(const TensorView& view, int64_t elements) {
  return static_cast<char*>(view.data) + elements * static_cast<int64_t>(SizeOf(view.dtype()));
}

// Products over all heads of one sequence; query head kv * group + j uses KV head kv (GQA).
class AttentionKernel : public Kernel {
 public:
  AttentionKernel(DeviceContexts& contexts, const Attributes& attributes)
      : contexts_(contexts), attributes_(attributes) {}
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  // out[h] = x[h] z[kv]^T, rows x columns in f32; x is like q, z like k.
  KernelStatus Scores(const Problem& p, const TensorView& x, const TensorView& z, int64_t b,
                      float* out, void* stream) const {
    for (int64_t j = 0; j < p.group(); ++j) {
      Gemm gemm;
      gemm.m = p.rows;
      gemm.n = p.columns;
      gemm.k = p.dim;
      gemm.batch = p.kv_heads;
      gemm.a = {At(x, b * p.rows * p.q_width() + j * p.dim), false, p.q_width(), p.group() * p.dim};
      gemm.b = {At(z, b * p.columns * p.kv_width()), true, p.kv_width(), p.dim};
      gemm.c = out + j * p.matrix();
      gemm.ldc = p.columns;
      gemm.c_stride = p.group() * p.matrix();
      gemm.input = x.dtype();
      gemm.output = DType::kF32;
      ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts_, gemm, stream, "attention"));
    }
    return KernelStatus::Ok();
  }

  // out[h] = weights[h] z[kv]: `weights` rows x columns in the element type, z like k, out like q.
  KernelStatus WeightedSums(const Problem& p, const void* weights, const TensorView& z, int64_t b,
                            const TensorView& out, void* stream) const {
    const int64_t bytes = static_cast<int64_t>(SizeOf(z.dtype()));
    for (int64_t j = 0; j < p.group(); ++j) {
      Gemm gemm;
      gemm.m = p.rows;
      gemm.n = p.dim;
      gemm.k = p.columns;
      gemm.batch = p.kv_heads;
      gemm.a = {static_cast<const char*>(weights) + j * p.matrix() * bytes, false, p.columns,
                p.group() * p.matrix()};
      gemm.b = {At(z, b * p.columns * p.kv_width()), false, p.kv_width(), p.dim};
      gemm.c = MutableAt(out, b * p.rows * p.q_width() + j * p.dim);
      gemm.ldc = p.q_width();
      gemm.c_stride = p.group() * p.dim;
      gemm.input = gemm.output = z.dtype();
      ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts_, gemm, stream, "attention"));
    }
    return KernelStatus::Ok();
  }

  // out[kv] = sum over the group of weights[h]^T x[h], in f32; x is like q, out like k.
  KernelStatus TransposedSums(const Problem& p, const void* weights, const TensorView& x, int64_t b,
                              float* out, void* stream) const {
    const int64_t bytes = static_cast<int64_t>(SizeOf(x.dtype()));
    for (int64_t j = 0; j < p.group(); ++j) {
      Gemm gemm;
      gemm.m = p.columns;
      gemm.n = p.dim;
      gemm.k = p.rows;
      gemm.batch = p.kv_heads;
      gemm.a = {static_cast<const char*>(weights) + j * p.matrix() * bytes, true, p.columns,
                p.group() * p.matrix()};
      gemm.b = {At(x, b * p.rows * p.q_width() + j * p.dim), false, p.q_width(), p.group() * p.dim};
      gemm.c = out + b * p.columns * p.kv_width();
      gemm.ldc = p.kv_width();
      gemm.c_stride = p.dim;
      gemm.input = x.dtype();
      gemm.output = DType::kF32;
      gemm.beta = j == 0 ? 0.0f : 1.0f;
      ESPALIER_KERNEL_RETURN_IF_ERROR(RunGemm(contexts_, gemm, stream, "attention"));
    }
    return KernelStatus::Ok();
  }

  template <typename T>
  static KernelStatus Softmax(const Problem& p, const TensorView* mask, int64_t b,
                              const float* scores, T* probabilities, cudaStream_t stream) {
    SoftmaxKernel<T><<<static_cast<unsigned>(p.heads * p.rows), kThreads, 0, stream>>>(
        scores, probabilities, Mask::Of(mask, p, b), p.rows, p.columns, p.causal, p.first_row,
        p.scale);
    return LaunchStatus("attention");
  }

  DeviceContexts& contexts_;
  const Attributes attributes_;
  WorkspaceLayout layout_;
};

class Forward : public AttentionKernel {
 public:
  Forward(DeviceContexts& contexts, const KernelSpec& spec)
      : AttentionKernel(contexts, spec.attributes) {
    const Problem p = Describe(attributes_, spec.inputs[0], spec.inputs[1]);
    scores_ = layout_.Add(p.scores() * sizeof(float));
    const DType dtype = spec.inputs[0].dtype;
    // Probabilities overwrite the scores where they have the same size.
    rounded_ = dtype == DType::kF32 ? scores_ : layout_.Add(p.scores() * SizeOf(dtype));
  }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &q = args.inputs[0], &y = args.outputs[0];
    const Problem p = Describe(attributes_, q.spec, args.inputs[1].spec);
    if (y.num_elements() == 0) return KernelStatus::Ok();
    const TensorView* mask = Has(args.inputs, 3) ? &args.inputs[3] : nullptr;
    float* scores = WorkspaceAt<float>(args, scores_);
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Scores(p, q, args.inputs[1], b, scores, args.stream));
      ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(q.dtype(), "attention", [&](auto type) {
        using T = typename decltype(type)::T;
        return Softmax(p, mask, b, scores, WorkspaceAt<T>(args, rounded_), StreamOf(args));
      }));
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          WeightedSums(p, WorkspaceAt(args, rounded_), args.inputs[2], b, y, args.stream));
    }
    return KernelStatus::Ok();
  }

 private:
  size_t scores_, rounded_;
};

// q, k, v, mask?, dy -> dq, dk, dv
class Backward : public AttentionKernel {
 public:
  Backward(DeviceContexts& contexts, const KernelSpec& spec)
      : AttentionKernel(contexts, spec.attributes) {
    const Problem p = Describe(attributes_, spec.inputs[0], spec.inputs[1]);
    const DType dtype = spec.inputs[0].dtype;
    p_ = layout_.Add(p.scores() * sizeof(float));
    dp_ = layout_.Add(p.scores() * sizeof(float));
    p_rounded_ = p_;
    dscores_ = dp_;
    if (dtype == DType::kF32) return;
    p_rounded_ = layout_.Add(p.scores() * SizeOf(dtype));
    dscores_ = layout_.Add(p.scores() * SizeOf(dtype));
    sums_ = layout_.Add(spec.inputs[1].num_elements() * sizeof(float));
  }

  KernelStatus Run(const KernelArgs& args) override {
    return DispatchFloat(args.inputs[0].dtype(), "attention_grad",
                         [&](auto type) { return RunFor<typename decltype(type)::T>(args); });
  }

 private:
  template <typename T>
  KernelStatus RunFor(const KernelArgs& args) {
    const TensorView &q = args.inputs[0], &k = args.inputs[1], &v = args.inputs[2];
    const TensorView& dy = args.inputs[4];
    const Problem p = Describe(attributes_, q.spec, k.spec);
    const TensorView* mask = Has(args.inputs, 3) ? &args.inputs[3] : nullptr;
    float* probabilities = WorkspaceAt<float>(args, p_);
    float* dp = WorkspaceAt<float>(args, dp_);
    T* rounded = WorkspaceAt<T>(args, p_rounded_);
    T* dscores = WorkspaceAt<T>(args, dscores_);
    constexpr bool exact = std::is_same_v<T, float>;
    // Computes dk and dv one after the other: they may share the f32 sums.
    for (int64_t b = 0; b < p.batch; ++b) {
      if (p.scores() > 0) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(Scores(p, q, k, b, probabilities, args.stream));
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            Softmax(p, mask, b, probabilities, probabilities, StreamOf(args)));
        ESPALIER_KERNEL_RETURN_IF_ERROR(Scores(p, dy, v, b, dp, args.stream));
        SoftmaxGradientKernel<T>
            <<<static_cast<unsigned>(p.heads * p.rows), kThreads, 0, StreamOf(args)>>>(
                probabilities, dp, dscores, exact ? nullptr : rounded, p.columns, p.scale);
        ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("attention_grad"));
      }
      if (Has(args.outputs, 0)) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(
            WeightedSums(p, dscores, k, b, args.outputs[0], args.stream));
      }
      if (Has(args.outputs, 1)) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(SumInto<T>(p, dscores, q, b, args.outputs[1], args));
      }
      if (Has(args.outputs, 2)) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(SumInto<T>(p, rounded, dy, b, args.outputs[2], args));
      }
    }
    return KernelStatus::Ok();
  }

  template <typename T>
  KernelStatus SumInto(const Problem& p, const T* weights, const TensorView& x, int64_t b,
                       const TensorView& out, const KernelArgs& args) const {
    if constexpr (std::is_same_v<T, float>) {
      return TransposedSums(p, weights, x, b, out.as<float>(), args.stream);
    } else {
      float* sums = WorkspaceAt<float>(args, sums_);
      ESPALIER_KERNEL_RETURN_IF_ERROR(TransposedSums(p, weights, x, b, sums, args.stream));
      const int64_t n = p.columns * p.kv_width();
      return ForEach(n, RoundElement<T>{sums + b * n, out.as<T>() + b * n}, StreamOf(args),
                     "attention_grad");
    }
  }

  size_t p_, dp_, p_rounded_, dscores_, sums_ = 0;
};

template <typename K>
KernelFactory Factory(DeviceContexts& contexts) {
  return [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    if (spec.batch_invariant) {
      *refusal = "serving programs use paged_attention";
      return nullptr;
    }
    return std::make_unique<K>(contexts, spec);
  };
}

}  // namespace cuda_attention

void RegisterAttentionCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_attention;
  registry.Add("attention", Factory<Forward>(contexts));
  registry.Add("attention_grad", Factory<Backward>(contexts));
}

}  // namespace espalier
