// attention for training. A task is one K/V head of one sequence with the query heads that share it
// (GQA). It processes blocks of query rows, keeps their scores in cache and skips the columns that
// a causal mask hides from the block. The backward pass recomputes the probabilities (as in
// FlashAttention, Dao et al. 2022).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/small_gemm.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

constexpr int64_t kBlockRows = 48;  // eight tiles of six rows; 48 x 256 scores are 48 KiB

int64_t RoundUp(int64_t n) { return (n + 15) / 16 * 16; }

// In place: softmax of one row of raw scores. Columns from n up to `padded` become 0; so does a row
// whose scores are all -infinity.
template <int W>
struct SoftmaxRow {
  static ESPALIER_INLINE void Run(float* s, int64_t n, int64_t padded, float scale) {
    using namespace simd;
    const float lowest = -__builtin_inff();
    for (int64_t i = n; i < padded; ++i) s[i] = lowest;
    Float<W> top = Splat<W>(lowest);
    for (int64_t i = 0; i < padded; i += W) top = Max<W>(top, Load<W>(s + i));
    const float max = MaxLane<W>(top) * scale;
    if (max == lowest) {
      for (int64_t i = 0; i < padded; ++i) s[i] = s[i] != s[i] ? s[i] : 0;
      return;
    }
    Float<W> sum = {};
    for (int64_t i = 0; i < padded; i += W) {
      const Float<W> e = Exp<W>(Load<W>(s + i) * scale - max);
      Store<W>(s + i, e);
      sum += e;
    }
    const float inverse = 1.0f / Sum<W>(sum);
    for (int64_t i = 0; i < padded; i += W) Store<W>(s + i, Load<W>(s + i) * inverse);
  }
};

// In place: dp becomes the gradient of the raw scores, p * (dp - sum(p * dp)) * scale.
template <int W>
struct SoftmaxRowGradient {
  static ESPALIER_INLINE void Run(const float* p, float* dp, int64_t padded, float scale) {
    using namespace simd;
    Float<W> sum = {};
    for (int64_t i = 0; i < padded; i += W) sum = Load<W>(p + i) * Load<W>(dp + i) + sum;
    const float along = Sum<W>(sum);
    for (int64_t i = 0; i < padded; i += W) {
      Store<W>(dp + i, Load<W>(p + i) * (Load<W>(dp + i) - along) * scale);
    }
  }
};

struct Problem {
  int64_t batch, rows, columns, heads, kv_heads, dim;
  int64_t padded_dim, padded_columns;
  bool causal;
  float scale;
  int64_t first_row = 0;  // of this shard, in the whole sequence

  int64_t group() const { return heads / kv_heads; }
  int64_t q_width() const { return heads * dim; }
  int64_t kv_width() const { return kv_heads * dim; }
  // Number of columns that row s may see.
  int64_t Limit(int64_t s) const {
    return causal ? std::clamp<int64_t>(first_row + s + 1, 0, columns) : columns;
  }
};

Problem Describe(const Attributes& attributes, const Dims& q, const Dims& k) {
  Problem p;
  p.dim = attributes.Int("head_dim");
  p.batch = q[0];
  p.rows = q[1];
  p.columns = k[1];
  p.heads = q[2] / p.dim;
  p.kv_heads = k[2] / p.dim;
  p.padded_dim = RoundUp(p.dim);
  p.padded_columns = RoundUp(p.columns);
  p.causal = attributes.Bool("causal");
  const double scale = attributes.Float("scale");
  p.scale = static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(p.dim)));
  return p;
}

// Rows of a mask, [S, T], [B, S, T] or [B, Hq, S, T].
struct Mask {
  const TensorView* view = nullptr;
  int64_t batch_stride = 0, head_stride = 0;

  Mask(const TensorView& mask, const Problem& p) {
    if (!mask.present()) return;
    view = &mask;
    const size_t rank = mask.dims().size();
    if (rank == 3) batch_stride = p.rows * p.columns;
    if (rank == 4) {
      head_stride = p.rows * p.columns;
      batch_stride = p.heads * head_stride;
    }
  }

  // Computes scores[0..n) of one row, scaled, with the mask applied.
  void Apply(const Problem& p, int64_t b, int64_t h, int64_t s, int64_t n, float* scores) const {
    const int64_t at = b * batch_stride + h * head_stride + s * p.columns;
    if (view->dtype() == DType::kBool) {
      const uint8_t* visible = view->as<uint8_t>() + at;
      for (int64_t t = 0; t < n; ++t) scores[t] = visible[t] ? scores[t] * p.scale : -INFINITY;
    } else {
      const float* added = view->as<float>() + at;
      for (int64_t t = 0; t < n; ++t) scores[t] = scores[t] * p.scale + added[t];
    }
  }
};

// out[d][t] = x[t][d], columns up to `padded` zero.
void PackTransposed(const float* x, int64_t stride, int64_t columns, int64_t dim, int64_t padded,
                    float* out) {
  for (int64_t first = 0; first < dim; first += 16) {  // the 16 lines being written stay in cache
    const int64_t last = std::min(first + 16, dim);
    for (int64_t t = 0; t < columns; ++t) {
      for (int64_t d = first; d < last; ++d) out[d * padded + t] = x[t * stride + d];
    }
  }
  for (int64_t d = 0; d < dim; ++d) {
    std::fill(out + d * padded + columns, out + (d + 1) * padded, 0.0f);
  }
}

// Makes a dense copy, padded_dim wide, with zeros behind each row. Even if no padding is needed:
// rows a whole width apart map to few cache sets and evict each other.
const float* DenseRows(const float* x, int64_t stride, int64_t rows, const Problem& p,
                       float* copy) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(copy + i * p.padded_dim, x + i * stride, p.dim * sizeof(float));
    std::fill(copy + i * p.padded_dim + p.dim, copy + (i + 1) * p.padded_dim, 0.0f);
  }
  return copy;
}

void CopyRows(const float* from, int64_t rows, const Problem& p, float* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * stride, from + i * p.padded_dim, p.dim * sizeof(float));
  }
}

// Probabilities of rows [begin, end) of query head h of sequence b, row-major by padded_columns.
// Returns the number of columns that at least one of the rows may see; padded to 16, they are all
// written.
int64_t Probabilities(const Problem& p, const Mask& mask, const float* q, int64_t b, int64_t h,
                      int64_t begin, int64_t end, const float* k_transposed, float* out) {
  const int64_t columns = p.Limit(end - 1), padded = RoundUp(columns);
  SmallGemm({end - begin, padded, p.dim, q + (b * p.rows + begin) * p.q_width() + h * p.dim,
             p.q_width(), 1, k_transposed, p.padded_columns, out, p.padded_columns, false});
  for (int64_t s = begin; s < end; ++s) {
    float* row = out + (s - begin) * p.padded_columns;
    const int64_t visible = p.Limit(s);
    if (mask.view != nullptr) mask.Apply(p, b, h, s, visible, row);
    simd::Dispatch<SoftmaxRow>(row, visible, padded, mask.view != nullptr ? 1.0f : p.scale);
  }
  return columns;
}

class AttentionKernel : public Kernel {
 public:
  explicit AttentionKernel(const Attributes& attributes)
      : attributes_(attributes), parts_(MaxThreads()) {}

  size_t workspace_bytes() const override { return part_.bytes() * parts_; }

 protected:
  // `work` of a task: see parallel.h.
  template <typename Task>
  void ForEachTask(const Problem& p, int64_t work, void* workspace, const Task& task) const {
    ParallelParts(p.batch * p.kv_heads, work, parts_, [&](int64_t begin, int64_t end, int part) {
      char* base = static_cast<char*>(workspace) + part * part_.bytes();
      for (int64_t i = begin; i < end; ++i) task(i / p.kv_heads, i % p.kv_heads, base);
    });
  }

  Problem Bind(const TensorView& q, const TensorView& k) const {
    Problem p = Describe(attributes_, q.dims(), k.dims());
    if (!q.spec.offset.empty()) p.first_row = q.spec.offset[1];
    return p;
  }

  size_t AddFloats(int64_t n) { return part_.Add(n * sizeof(float)); }

  Attributes attributes_;
  int parts_;
  WorkspaceLayout part_;  // of one thread
};

class Forward : public AttentionKernel {
 public:
  explicit Forward(const KernelSpec& spec) : AttentionKernel(spec.attributes) {
    const Problem p = Describe(attributes_, spec.inputs[0].dims, spec.inputs[1].dims);
    k_ = AddFloats(p.dim * p.padded_columns);
    v_ = AddFloats(p.columns * p.padded_dim);
    scores_ = AddFloats(kBlockRows * p.padded_columns);
    y_ = AddFloats(kBlockRows * p.padded_dim);
  }

  KernelStatus Run(const KernelArgs& args) override {
    const Problem p = Bind(args.inputs[0], args.inputs[1]);
    const TensorView none;
    const Mask mask(args.inputs.size() > 3 ? args.inputs[3] : none, p);
    const float* q = args.inputs[0].as<float>();
    const int64_t work = p.group() * p.rows * p.columns * p.dim / 8;
    ForEachTask(p, work, args.workspace, [&](int64_t b, int64_t kv, char* base) {
      const int64_t at = b * p.columns * p.kv_width() + kv * p.dim;
      float* k_transposed = WorkspaceAt(base, k_);
      float* scores = WorkspaceAt(base, scores_);
      PackTransposed(args.inputs[1].as<float>() + at, p.kv_width(), p.columns, p.dim,
                     p.padded_columns, k_transposed);
      const float* v = DenseRows(args.inputs[2].as<float>() + at, p.kv_width(), p.columns, p,
                                 WorkspaceAt(base, v_));
      for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
        for (int64_t begin = 0; begin < p.rows; begin += kBlockRows) {
          const int64_t end = std::min(begin + kBlockRows, p.rows);
          const int64_t columns = Probabilities(p, mask, q, b, h, begin, end, k_transposed, scores);
          float* y = args.outputs[0].as<float>() + (b * p.rows + begin) * p.q_width() + h * p.dim;
          const bool direct = p.dim == p.padded_dim;
          float* to = direct ? y : WorkspaceAt(base, y_);
          const int64_t stride = direct ? p.q_width() : p.padded_dim;
          SmallGemm({end - begin, p.padded_dim, columns, scores, p.padded_columns, 1, v,
                     p.padded_dim, to, stride, false});
          if (!direct) CopyRows(to, end - begin, p, y, p.q_width());
        }
      }
    });
    return KernelStatus::Ok();
  }

 private:
  size_t k_, v_, scores_, y_;
};

// q, k, v, mask?, dy -> dq, dk, dv
class Backward : public AttentionKernel {
 public:
  explicit Backward(const KernelSpec& spec) : AttentionKernel(spec.attributes) {
    const Problem p = Describe(attributes_, spec.inputs[0].dims, spec.inputs[1].dims);
    k_transposed_ = AddFloats(p.dim * p.padded_columns);
    v_transposed_ = AddFloats(p.dim * p.padded_columns);
    k_ = AddFloats(p.columns * p.padded_dim);
    dk_ = AddFloats(p.columns * p.padded_dim);
    dv_ = AddFloats(p.columns * p.padded_dim);
    p_ = AddFloats(kBlockRows * p.padded_columns);
    dp_ = AddFloats(kBlockRows * p.padded_columns);
    q_ = AddFloats(kBlockRows * p.padded_dim);
    dy_ = AddFloats(kBlockRows * p.padded_dim);
    dq_ = AddFloats(kBlockRows * p.padded_dim);
  }

  KernelStatus Run(const KernelArgs& args) override {
    const Problem p = Bind(args.inputs[0], args.inputs[1]);
    const Mask mask(args.inputs[3], p);
    const int64_t work = p.group() * p.rows * p.columns * p.dim / 3;
    ForEachTask(p, work, args.workspace, [&](int64_t b, int64_t kv, char* base) {
      const int64_t at = b * p.columns * p.kv_width() + kv * p.dim;
      const float* k = args.inputs[1].as<float>() + at;
      PackTransposed(k, p.kv_width(), p.columns, p.dim, p.padded_columns,
                     WorkspaceAt(base, k_transposed_));
      PackTransposed(args.inputs[2].as<float>() + at, p.kv_width(), p.columns, p.dim,
                     p.padded_columns, WorkspaceAt(base, v_transposed_));
      const float* k_rows = DenseRows(k, p.kv_width(), p.columns, p, WorkspaceAt(base, k_));
      std::fill_n(WorkspaceAt(base, dk_), p.columns * p.padded_dim, 0.0f);
      std::fill_n(WorkspaceAt(base, dv_), p.columns * p.padded_dim, 0.0f);
      for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
        for (int64_t begin = 0; begin < p.rows; begin += kBlockRows) {
          Block(args, p, mask, b, h, begin, std::min(begin + kBlockRows, p.rows), k_rows, base);
        }
      }
      for (int i : {1, 2}) {
        if (!args.outputs[i].present()) continue;
        CopyRows(WorkspaceAt(base, i == 1 ? dk_ : dv_), p.columns, p,
                 args.outputs[i].as<float>() + at, p.kv_width());
      }
    });
    return KernelStatus::Ok();
  }

 private:
  // Backward of rows [begin, end) of query head h: writes dq, adds to dk and dv.
  void Block(const KernelArgs& args, const Problem& p, const Mask& mask, int64_t b, int64_t h,
             int64_t begin, int64_t end, const float* k, char* base) const {
    const int64_t rows = end - begin, at = (b * p.rows + begin) * p.q_width() + h * p.dim;
    const float* q = args.inputs[0].as<float>();
    const float* dy = args.inputs[4].as<float>() + at;
    float* probabilities = WorkspaceAt(base, p_);
    float* dscores = WorkspaceAt(base, dp_);
    const int64_t columns = Probabilities(p, mask, q, b, h, begin, end,
                                          WorkspaceAt(base, k_transposed_), probabilities);
    const int64_t padded = RoundUp(columns);
    SmallGemm({rows, padded, p.dim, dy, p.q_width(), 1, WorkspaceAt(base, v_transposed_),
               p.padded_columns, dscores, p.padded_columns, false});
    for (int64_t i = 0; i < rows; ++i) {
      simd::Dispatch<SoftmaxRowGradient>(
          static_cast<const float*>(probabilities + i * p.padded_columns),
          dscores + i * p.padded_columns, padded, p.scale);
    }
    if (args.outputs[0].present()) {
      float* dq = args.outputs[0].as<float>() + at;
      const bool direct = p.dim == p.padded_dim;
      float* to = direct ? dq : WorkspaceAt(base, dq_);
      const int64_t stride = direct ? p.q_width() : p.padded_dim;
      SmallGemm({rows, p.padded_dim, columns, dscores, p.padded_columns, 1, k, p.padded_dim, to,
                 stride, false});
      if (!direct) CopyRows(to, rows, p, dq, p.q_width());
    }
    if (args.outputs[1].present()) {
      const float* q_rows = DenseRows(q + at, p.q_width(), rows, p, WorkspaceAt(base, q_));
      SmallGemm({columns, p.padded_dim, rows, dscores, 1, p.padded_columns, q_rows, p.padded_dim,
                 WorkspaceAt(base, dk_), p.padded_dim, true});
    }
    if (args.outputs[2].present()) {
      const float* dy_rows = DenseRows(dy, p.q_width(), rows, p, WorkspaceAt(base, dy_));
      SmallGemm({columns, p.padded_dim, rows, probabilities, 1, p.padded_columns, dy_rows,
                 p.padded_dim, WorkspaceAt(base, dv_), p.padded_dim, true});
    }
  }

  size_t k_transposed_, v_transposed_, k_, dk_, dv_, p_, dp_, q_, dy_, dq_;
};

}  // namespace

void RegisterAttentionCpu(KernelRegistry& registry) {
  registry.Add("attention", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Forward>(spec);
               }));
  registry.Add("attention_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Backward>(spec);
               }));
}

}  // namespace espalier
