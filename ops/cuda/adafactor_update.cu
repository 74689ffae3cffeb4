// Adafactor; see ops/operators/adafactor_update.cc.
#include "ops/cuda/loss.cuh"
#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_adafactor_update {

constexpr int kMaxRank = 8;

// A parameter's shard within its matrix [dimension 0, the others].
struct Matrix {
  bool factored;
  int64_t rows = 1, columns = 1, elements = 1;  // of the whole
  int64_t shard_rows = 1, shard_columns = 1;
  int64_t row_begin = 0;
  int rank = 0;  // of the dimensions behind the first
  int64_t size[kMaxRank] = {}, offset[kMaxRank] = {}, stride[kMaxRank] = {};

  explicit Matrix(const TensorSpec& spec) : factored(spec.dims.size() >= 2) {
    for (int64_t dim : spec.global) elements *= dim;
    if (!factored) return;
    rows = spec.global[0];
    row_begin = spec.offset[0];
    shard_rows = spec.dims[0];
    rank = static_cast<int>(spec.dims.size()) - 1;
    for (int d = rank - 1; d >= 0; --d) {
      size[d] = spec.dims[d + 1];
      offset[d] = spec.offset[d + 1];
      stride[d] = columns;
      columns *= spec.global[d + 1];
      shard_columns *= size[d];
    }
  }

  // Column of the whole matrix of column `local` of the shard.
  __device__ int64_t Column(int64_t local) const {
    int64_t column = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t next = local / size[d];
      column += (offset[d] + local - next * size[d]) * stride[d];
      local = next;
    }
    return column;
  }
};

struct Settings {
  double beta2_decay;
  float eps1, eps2, d, weight_decay;

  explicit Settings(const Attributes& a)
      : beta2_decay(a.Float("beta2_decay")),
        eps1(static_cast<float>(a.Float("eps1"))),
        eps2(static_cast<float>(a.Float("eps2"))),
        d(static_cast<float>(a.Float("d"))),
        weight_decay(static_cast<float>(a.Float("weight_decay"))) {}
};

struct SquareAt {
  const float* x;
  __device__ float operator()(int64_t i) const { return x[i] * x[i]; }
};
struct GradientSquareAt {
  const float* gradient;
  const float* scale;
  float eps1;
  __device__ float operator()(int64_t i) const {
    const float g = (scale != nullptr ? *scale : 1.0f) * gradient[i];
    return g * g + eps1;
  }
};
struct StoreRow {
  float* out;
  __device__ void operator()(int64_t r, float sum) const { out[r] = sum; }
};
struct StoreColumn {
  float* out;
  Matrix m;
  __device__ void operator()(int64_t c, float sum) const { out[m.Column(c)] = sum; }
};

// parameter, gradient, scale?, hyper -> sum p^2, then the sums of squares of rows and columns.
KernelStatus Sums(const KernelArgs& args, const Settings& settings) {
  const Matrix m(args.inputs[0].spec);
  const UpdateOperands o = OperandsOf(args.inputs);
  float* out = args.outputs[0].as<float>();
  const cudaStream_t stream = StreamOf(args);
  const char* op = "adafactor_sums";
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(out, 0, args.outputs[0].spec.bytes(), stream), op));
  const int64_t n = args.inputs[0].num_elements();
  ESPALIER_KERNEL_RETURN_IF_ERROR(Reduce(OverAll(n), SquareAt{o.parameter}, StoreQuotient{out, 1.0},
                                         args.workspace, stream, op));
  if (!m.factored || n == 0) return KernelStatus::Ok();
  const GradientSquareAt square{o.gradient, o.scale, settings.eps1};
  const Dims dims = {m.shard_rows, m.shard_columns};
  ESPALIER_KERNEL_RETURN_IF_ERROR(Reduce(ReduceShape::Make(dims, {false, true}), square,
                                         StoreRow{out + 1 + m.row_begin}, args.workspace, stream,
                                         op));
  return Reduce(ReduceShape::Make(dims, {true, false}), square, StoreColumn{out + 1 + m.rows, m},
                args.workspace, stream, op);
}

size_t SumsWorkspace(const TensorSpec& spec) {
  const Matrix m(spec);
  size_t bytes = OverAll(spec.num_elements()).WorkspaceBytes();
  if (!m.factored) return bytes;
  const Dims dims = {m.shard_rows, m.shard_columns};
  for (bool by_row : {true, false}) {
    bytes = std::max(bytes, ReduceShape::Make(dims, {!by_row, by_row}).WorkspaceBytes());
  }
  return bytes;
}

// The second moments of this step, after the workspace's other use: factors of 1 / sqrt(v).
struct Moments {
  Matrix m;
  const float* squares;  // of vectors, as they were
  const float* rows;     // of matrices: sqrt(sum / row), then 1 / sqrt(column)
  const float* columns;
  const float* hyper;
  double beta2_decay;
  float eps1;

  __device__ float Rest() const {
    return static_cast<float>(pow(static_cast<double>(hyper[1]), beta2_decay));
  }
  // v of element i of a vector.
  __device__ float Square(int64_t i, float g) const {
    const float rest = Rest();
    return (1.0f - rest) * squares[i] + rest * (g * g + eps1);
  }
  // 1 / sqrt(v)
  __device__ float Factor(int64_t i, float g) const {
    if (!m.factored) return rsqrtf(Square(i, g));
    const int64_t row = i / m.shard_columns;
    return rows[m.row_begin + row] * columns[m.Column(i - row * m.shard_columns)];
  }
};

struct NewRow {
  const float* old;
  const float* sums;
  const float* hyper;
  double beta2_decay;
  __device__ float operator()(int64_t r) const {
    const float rest = static_cast<float>(pow(static_cast<double>(hyper[1]), beta2_decay));
    return (1.0f - rest) * old[r] + rest * sums[r];
  }
};
// out[r] = sqrt(total / row), or 1 / sqrt(column) without a total.
struct MakeFactor {
  NewRow value;
  const float* total;
  float* out;
  __device__ void operator()(int64_t r) const {
    out[r] = total != nullptr ? sqrtf(*total / value(r)) : rsqrtf(value(r));
  }
};
struct StoreState {
  NewRow value;
  float* state;
  const float* hyper;
  __device__ void operator()(int64_t r) const {
    if (hyper[1] >= 1) state[r] = value(r);
  }
};

// Inputs: parameter, gradient, scale?, hyper, rows?, columns?, squares?, sums, norm (of the
// update). The workspace: sum of rows, factors of rows and columns, then Reduce's partial sums.
class PassKernel : public Kernel {
 public:
  PassKernel(const KernelSpec& spec, const char* op) : settings_(spec.attributes), op_(op) {
    const Matrix m(spec.inputs[0]);
    total_ = layout_.Add(sizeof(float));
    rows_ = layout_.Add(m.factored ? m.rows * sizeof(float) : 0);
    columns_ = layout_.Add(m.factored ? m.columns * sizeof(float) : 0);
    partial_ = layout_.Add(std::max(OverAll(m.rows).WorkspaceBytes(),
                                    OverAll(spec.inputs[0].num_elements()).WorkspaceBytes()));
  }
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  KernelStatus Prepare(const KernelArgs& args, Moments* moments) const {
    const Matrix m(args.inputs[0].spec);
    const cudaStream_t stream = StreamOf(args);
    const UpdateOperands o = OperandsOf(args.inputs);
    float* rows = WorkspaceAt<float>(args, rows_);
    float* columns = WorkspaceAt<float>(args, columns_);
    *moments = {m, o.buffers[2], rows, columns, o.hyper, settings_.beta2_decay, settings_.eps1};
    if (!m.factored) return KernelStatus::Ok();
    float* total = WorkspaceAt<float>(args, total_);
    const NewRow row = Rows(args), column = Columns(args, m);
    ESPALIER_KERNEL_RETURN_IF_ERROR(Reduce(OverAll(m.rows), row, StoreQuotient{total, 1.0},
                                           WorkspaceAt(args, partial_), stream, op_));
    ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(m.rows, MakeFactor{row, total, rows}, stream, op_));
    return ForEach(m.columns, MakeFactor{column, nullptr, columns}, stream, op_);
  }
  NewRow Rows(const KernelArgs& args) const {
    return {args.inputs[4].as<float>(), args.inputs[7].as<float>() + 1, args.inputs[3].as<float>(),
            settings_.beta2_decay};
  }
  NewRow Columns(const KernelArgs& args, const Matrix& m) const {
    return {args.inputs[5].as<float>(), args.inputs[7].as<float>() + 1 + m.rows,
            args.inputs[3].as<float>(), settings_.beta2_decay};
  }

  const Settings settings_;
  const char* const op_;
  WorkspaceLayout layout_;
  size_t total_ = 0, rows_ = 0, columns_ = 0, partial_ = 0;
};

struct UpdateSquareAt {
  UpdateOperands o;
  Moments moments;
  __device__ float operator()(int64_t i) const {
    const float g = o.Scale() * o.gradient[i];
    const float u = g * moments.Factor(i, g);
    return u * u;
  }
};

class Norm : public PassKernel {
 public:
  explicit Norm(const KernelSpec& spec) : PassKernel(spec, "adafactor_norm") {}
  KernelStatus Run(const KernelArgs& args) override {
    Moments moments{Matrix(args.inputs[0].spec)};
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, &moments));
    return Reduce(OverAll(args.inputs[0].num_elements()),
                  UpdateSquareAt{OperandsOf(args.inputs), moments},
                  StoreQuotient{args.outputs[0].as<float>(), 1.0}, WorkspaceAt(args, partial_),
                  StreamOf(args), op_);
  }
};

struct Step {
  UpdateOperands o;
  Moments moments;
  const float* sums;
  const float* norm;
  float count, eps2, d, weight_decay;
  __device__ void operator()(int64_t i) const {
    if (!o.Moves()) return;
    const float g = o.Scale() * o.gradient[i];
    const float factor = moments.Factor(i, g);
    if (!moments.m.factored) o.buffers[2][i] = moments.Square(i, g);
    const float rate = o.hyper[0];
    const float size = fminf(rate, rsqrtf(o.hyper[1])) * fmaxf(eps2, sqrtf(sums[0] / count)) /
                       fmaxf(1.0f, sqrtf(*norm / count) / d);
    o.parameter[i] = (1.0f - rate * weight_decay) * o.parameter[i] - size * g * factor;
  }
};

class Move : public PassKernel {
 public:
  explicit Move(const KernelSpec& spec) : PassKernel(spec, "adafactor_update") {}
  KernelStatus Run(const KernelArgs& args) override {
    const Matrix m(args.inputs[0].spec);
    const cudaStream_t stream = StreamOf(args);
    Moments moments{m};
    ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare(args, &moments));
    const Step step{OperandsOf(args.inputs),
                    moments,
                    args.inputs[7].as<float>(),
                    args.inputs[8].as<float>(),
                    static_cast<float>(m.elements > 0 ? m.elements : 1),
                    settings_.eps2,
                    settings_.d,
                    settings_.weight_decay};
    ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(args.inputs[0].num_elements(), step, stream, op_));
    if (m.factored) {
      const NewRow row = Rows(args), column = Columns(args, m);
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          ForEach(m.rows, StoreState{row, args.inputs[4].as<float>(), step.o.hyper}, stream, op_));
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
          m.columns, StoreState{column, args.inputs[5].as<float>(), step.o.hyper}, stream, op_));
    }
    return CopyParameters(args, op_);
  }
};

}  // namespace cuda_adafactor_update

void RegisterAdafactorUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_adafactor_update;
  registry.Add("adafactor_sums", ForF32([](const KernelSpec& spec) {
                 return MakeKernel([settings = Settings(spec.attributes)](
                                       const KernelArgs& args) { return Sums(args, settings); },
                                   SumsWorkspace(spec.inputs[0]));
               }));
  registry.Add("adafactor_norm",
               ForF32([](const KernelSpec& spec) { return std::make_unique<Norm>(spec); }));
  registry.Add("adafactor_update",
               ForF32([](const KernelSpec& spec) { return std::make_unique<Move>(spec); }));
}

}  // namespace espalier
