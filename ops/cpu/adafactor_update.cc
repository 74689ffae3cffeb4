// Adafactor: see ops/operators/adafactor_update.cc. Each pass recomputes the second moments of a
// row instead of storing them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Settings {
  double beta2_decay, eps1, eps2, d, weight_decay;

  explicit Settings(const Attributes& a)
      : beta2_decay(a.Float("beta2_decay")),
        eps1(a.Float("eps1")),
        eps2(a.Float("eps2")),
        d(a.Float("d")),
        weight_decay(a.Float("weight_decay")) {}
};

// A parameter's shard as runs of contiguous elements of one row of the matrix.
struct Matrix {
  bool factored;
  int64_t rows = 1, columns = 1;  // of the whole
  int64_t elements = 1;           // of the whole
  int64_t row_begin = 0;
  int64_t shard_rows = 1, stretches = 1, length = 1;  // stretches of `length` in each row
  Dims inner, inner_offset, inner_global;             // dimensions 1 and on

  explicit Matrix(const TensorSpec& spec) : factored(spec.dims.size() >= 2) {
    const size_t rank = spec.dims.size();
    for (int64_t size : spec.global) elements *= size;
    if (!factored) {
      length = spec.num_elements();
      return;
    }
    rows = spec.global[0];
    row_begin = spec.offset[0];
    shard_rows = spec.dims[0];
    inner.assign(spec.dims.begin() + 1, spec.dims.end());
    inner_offset.assign(spec.offset.begin() + 1, spec.offset.end());
    inner_global.assign(spec.global.begin() + 1, spec.global.end());
    for (int64_t size : inner_global) columns *= size;
    length = inner.back();
    for (size_t d = 1; d + 1 < rank; ++d) stretches *= spec.dims[d];
  }

  // Column of the whole matrix at which stretch s of a row begins.
  int64_t ColumnOf(int64_t s) const {
    Dims place(inner.size());
    place.back() = inner_offset.back();
    for (size_t d = inner.size() - 1; d-- > 0;) {
      place[d] = inner_offset[d] + s % inner[d];
      s /= inner[d];
    }
    int64_t column = 0;
    for (size_t d = 0; d < inner.size(); ++d) column = column * inner_global[d] + place[d];
    return column;
  }

  // Calls f(row of the whole, column, offset in the shard) for stretches of rows [begin, end).
  template <typename F>
  void ForStretches(int64_t begin, int64_t end, const F& f) const {
    for (int64_t s = 0; s < stretches; ++s) {
      const int64_t column = ColumnOf(s);
      for (int64_t r = begin; r < end; ++r) {
        f(row_begin + r, column, (r * stretches + s) * length);
      }
    }
  }
  // Rows of the shard that a thread takes at once.
  int64_t RowBlock() const {
    return std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, stretches * length));
  }
};

double SumOfSquares(const float* x, int64_t n) {
  return BlockedSum(n, kParallelGrain, [&](int64_t begin, int64_t end) {
    double part = 0;
    for (int64_t i = begin; i < end; i += kSumBlock) {
      part += SumTerms(x + i, std::min(kSumBlock, end - i), [](float v) { return v * v; });
    }
    return part;
  });
}

// Inputs of the operators after the first four.
struct Operands {
  float* rows;
  float* columns;
  float* squares;
  const float* sums = nullptr;
  const float* norm = nullptr;

  explicit Operands(const KernelArgs& args) {
    const auto at = [&](size_t i) {
      return i < args.inputs.size() ? args.inputs[i].as<float>() : nullptr;
    };
    rows = at(4);
    columns = at(5);
    squares = at(6);
    sums = at(7);
    norm = at(8);
  }
};

// sums[0] = sum p^2, then sum over columns and over rows of (scale g)^2 + eps1.
void Sums(const KernelArgs& args, const Settings& settings) {
  const UpdateArgs u(args);
  const Matrix m(args.inputs[0].spec);
  float* out = args.outputs[0].as<float>();
  std::fill(out, out + args.outputs[0].num_elements(), 0.0f);
  out[0] = static_cast<float>(SumOfSquares(u.parameter, u.n));
  if (!m.factored || u.n == 0) return;
  const float scale = u.scale;
  // A fixed number of pieces with partial sums over rows.
  const int64_t block = std::max<int64_t>(m.RowBlock(), (m.shard_rows + 15) / 16);
  const int64_t pieces = (m.shard_rows + block - 1) / block;
  std::vector<double> columns(static_cast<size_t>(pieces * m.columns), 0.0);
  std::vector<double> rows(static_cast<size_t>(m.shard_rows), 0.0);
  ParallelBlocks(m.shard_rows, block, [&](int64_t begin, int64_t end) {
    double* mine = columns.data() + begin / block * m.columns;
    m.ForStretches(begin, end, [&](int64_t row, int64_t column, int64_t at) {
      double& row_sum = rows[row - m.row_begin];
      for (int64_t i = 0; i < m.length; i += kSumBlock) {
        row_sum += Vectorize(
            [](const float* g, double* columns, float scale, double eps, int64_t n) {
              double sum = 0;
#pragma omp simd reduction(+ : sum)
              for (int64_t j = 0; j < n; ++j) {
                const double v = static_cast<double>(scale * g[j]);
                const double square = v * v + eps;
                columns[j] += square;
                sum += square;
              }
              return sum;
            },
            u.gradient + at + i, mine + column + i, scale, settings.eps1,
            std::min(kSumBlock, m.length - i));
      }
    });
  });
  for (int64_t r = 0; r < m.shard_rows; ++r) {
    out[1 + m.row_begin + r] = static_cast<float>(rows[r]);
  }
  for (int64_t c = 0; c < m.columns; ++c) {
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += columns[piece * m.columns + c];
    out[1 + m.rows + c] = static_cast<float>(sum);
  }
}

// The second moments of this step: v_ij = row[i] * column[j], or v_i = b squares[i] + (1 - b) ...
struct Moments {
  float decay, rest, eps1;
  std::vector<float> row, column;  // 1 / sqrt of the factors of v

  Moments(const KernelArgs& args, const Settings& settings, const Matrix& m, double step,
          bool store) {
    const Operands o(args);
    const double b = 1.0 - std::pow(step, settings.beta2_decay);
    decay = static_cast<float>(b);
    rest = static_cast<float>(1.0 - b);
    eps1 = static_cast<float>(settings.eps1);
    if (!m.factored) return;
    std::vector<double> rows(m.rows), columns(m.columns);
    double total = 0;
    for (int64_t r = 0; r < m.rows; ++r) {
      rows[r] = b * static_cast<double>(o.rows[r]) + (1.0 - b) * static_cast<double>(o.sums[1 + r]);
      total += rows[r];
    }
    for (int64_t c = 0; c < m.columns; ++c) {
      columns[c] = b * static_cast<double>(o.columns[c]) +
                   (1.0 - b) * static_cast<double>(o.sums[1 + m.rows + c]);
    }
    row.resize(m.rows);
    column.resize(m.columns);
    for (int64_t r = 0; r < m.rows; ++r) {
      row[r] = static_cast<float>(std::sqrt(total / rows[r]));
      if (store) o.rows[r] = static_cast<float>(rows[r]);
    }
    for (int64_t c = 0; c < m.columns; ++c) {
      column[c] = static_cast<float>(1.0 / std::sqrt(columns[c]));
      if (store) o.columns[c] = static_cast<float>(columns[c]);
    }
  }
};

// v of one element of a vector.
inline float SquareOf(float squares, float gradient, float decay, float rest, float eps1) {
  return decay * squares + rest * (gradient * gradient + eps1);
}

// Sum of u^2.
void Norm(const KernelArgs& args, const Settings& settings) {
  const UpdateArgs u(args);
  const Matrix m(args.inputs[0].spec);
  const Moments moments(args, settings, m, u.step, false);
  const float* squares = Operands(args).squares;
  const float scale = u.scale;
  double sum = 0;
  if (m.factored) {
    sum = BlockedSum(m.shard_rows, m.RowBlock(), [&](int64_t begin, int64_t end) {
      double part = 0;
      m.ForStretches(begin, end, [&](int64_t row, int64_t column, int64_t at) {
        for (int64_t i = 0; i < m.length; i += kSumBlock) {
          part += Vectorize(
              [](const float* g, const float* column, float factor, int64_t n) {
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t j = 0; j < n; ++j) {
                  const float v = factor * g[j] * column[j];
                  sum += v * v;
                }
                return static_cast<double>(sum);
              },
              u.gradient + at + i, moments.column.data() + column + i, scale * moments.row[row],
              std::min(kSumBlock, m.length - i));
        }
      });
      return part;
    });
  } else {
    sum = BlockedSum(m.length, kParallelGrain, [&](int64_t begin, int64_t end) {
      double part = 0;
      for (int64_t i = begin; i < end; ++i) {
        const float g = scale * u.gradient[i];
        const double v = SquareOf(squares[i], g, moments.decay, moments.rest, moments.eps1);
        part += static_cast<double>(g) * static_cast<double>(g) / v;
      }
      return part;
    });
  }
  *args.outputs[0].as<float>() = static_cast<float>(sum);
}

void Update(const KernelArgs& args, const Settings& settings) {
  const UpdateArgs u(args);
  if (u.step < 1) return;
  const Operands o(args);
  const Matrix m(args.inputs[0].spec);
  const Moments moments(args, settings, m, u.step, true);
  const double count = static_cast<double>(std::max<int64_t>(1, m.elements));
  const double root = std::sqrt(static_cast<double>(o.sums[0]) / count);
  const double update_root = std::sqrt(static_cast<double>(*o.norm) / count);
  const double step_size = std::min(u.learning_rate, 1.0 / std::sqrt(u.step)) *
                           std::max(settings.eps2, root) / std::max(1.0, update_root / settings.d);
  const float keep = static_cast<float>(1.0 - u.learning_rate * settings.weight_decay);
  const float size = static_cast<float>(step_size) * u.scale;
  if (m.factored) {
    ParallelBlocks(m.shard_rows, m.RowBlock(), [&](int64_t begin, int64_t end) {
      m.ForStretches(begin, end, [&](int64_t row, int64_t column, int64_t at) {
        Vectorize(
            [](float* p, const float* g, const float* column, float keep, float factor, int64_t n) {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) p[j] = keep * p[j] - factor * g[j] * column[j];
            },
            u.parameter + at, u.gradient + at, moments.column.data() + column, keep,
            size * moments.row[row], m.length);
      });
    });
    return;
  }
  ParallelFor(m.length, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float g = u.scale * u.gradient[i];
      const float v = SquareOf(o.squares[i], g, moments.decay, moments.rest, moments.eps1);
      o.squares[i] = v;
      u.parameter[i] = keep * u.parameter[i] - size * u.gradient[i] / std::sqrt(v);
    }
  });
}

template <typename Run>
KernelFactory Factory(Run run) {
  return [run](const KernelSpec& spec, std::string*) {
    return MakeKernel([run, settings = Settings(spec.attributes)](const KernelArgs& args) {
      run(args, settings);
      return KernelStatus::Ok();
    });
  };
}

}  // namespace

void RegisterAdafactorUpdateCpu(KernelRegistry& registry) {
  registry.Add("adafactor_sums", Factory(Sums));
  registry.Add("adafactor_norm", Factory(Norm));
  registry.Add("adafactor_update", Factory([](const KernelArgs& args, const Settings& settings) {
                 Update(args, settings);
                 CopyParameters(args);
               }));
}

}  // namespace espalier
