#include "ops/cpu/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Larger {  // a NaN wins
  float operator()(float best, float value) const {
    return value > best || value != value ? value : best;
  }
};
struct Plus {
  float operator()(float sum, float value) const { return sum + value; }
};
struct PlusMagnitude {
  float operator()(float sum, float value) const { return sum + std::fabs(value); }
};
struct PlusSquare {
  float operator()(float sum, float value) const { return sum + value * value; }
};
struct PlusPower {
  float p;
  float operator()(float sum, float value) const { return sum + std::pow(std::fabs(value), p); }
};

// Computes one row of the result: combines rows element by element (`take`), then the columns of
// each window
// (`join`), then applies `finish`.
template <typename Take, typename Join, typename Finish>
void PoolPlanes(const Windows& w, int64_t planes, const float* x, float* y, float start, Take take,
                Join join, Finish finish) {
  const int64_t columns = static_cast<int64_t>(w.columns.size());
  ParallelRanges(planes, w.work(), [&](int64_t begin, int64_t end) {
    std::vector<float> row(w.width);
    for (int64_t plane = begin; plane < end; ++plane) {
      const float* in = x + plane * w.height * w.width;
      float* out = y + plane * static_cast<int64_t>(w.rows.size()) * columns;
      for (const Span& rows : w.rows) {
        std::fill(row.begin(), row.end(), start);
        for (int64_t r = rows.first; r < rows.end; r += rows.step) {
          Vectorize(
              [](Take take, const float* in, float* row, int64_t n) {
#pragma omp simd
                for (int64_t c = 0; c < n; ++c) row[c] = take(row[c], in[c]);
              },
              take, in + r * w.width, row.data(), w.width);
        }
        for (const Span& span : w.columns) {
          float value = start;
          for (int64_t c = span.first; c < span.end; c += span.step) value = join(value, row[c]);
          *out++ = finish(value, rows, span);
        }
      }
    }
  });
}

float Divisor(const Span& rows, const Span& columns) {
  return static_cast<float>(std::max<int64_t>(1, rows.cells * columns.cells));
}

// sign(x) * |x|^(p - 1)
float SignedPower(float x, int64_t p) {
  if (p == 2) return x;
  const float magnitude = p == 1 ? 1.0f : std::pow(std::fabs(x), static_cast<float>(p - 1));
  return x > 0 ? magnitude : x < 0 ? -magnitude : 0.0f;
}

// dx += share of every window: first along the columns of one row of windows, then down its rows.
void SpreadPlane(const Pooling& pooling, const Windows& w, const float* x, const float* y,
                 const float* dy, float* dx, std::vector<float>* buffer) {
  float* row = buffer->data();
  for (const Span& rows : w.rows) {
    std::fill(buffer->begin(), buffer->end(), 0.0f);
    for (const Span& columns : w.columns) {
      float share = *dy++;
      if (pooling.kind == PoolKind::kAverage) {
        share /= Divisor(rows, columns);
      } else {
        const float norm = *y++;  // d norm / dx = sign(x) |x / norm|^(p - 1)
        share = norm > 0 ? share * std::pow(norm, static_cast<float>(1 - pooling.p)) : 0.0f;
      }
      for (int64_t c = columns.first; c < columns.end; c += columns.step) row[c] += share;
    }
    for (int64_t r = rows.first; r < rows.end; r += rows.step) {
      float* target = dx + r * w.width;
      if (pooling.kind == PoolKind::kAverage) {
        for (int64_t c = 0; c < w.width; ++c) target[c] += row[c];
      } else {
        const float* in = x + r * w.width;
        for (int64_t c = 0; c < w.width; ++c) target[c] += row[c] * SignedPower(in[c], pooling.p);
      }
    }
  }
}

}  // namespace

int64_t Windows::work() const {
  const auto taken = [](const std::vector<Span>& spans) {
    int64_t sum = 0;
    for (const Span& s : spans)
      sum += std::max<int64_t>(1, (s.end - s.first + s.step - 1) / s.step);
    return sum;
  };
  return 2 * taken(rows) * taken(columns);
}

Windows SlidingWindows(const Attributes& a, const Dims& x, const Dims& y) {
  const std::vector<int64_t> kernel = a.Ints("kernel"), strides = a.Ints("strides", {1, 1}),
                             pads = a.Ints("pads", {0, 0, 0, 0}),
                             dilations = a.Ints("dilations", {1, 1});
  const bool include_pad = a.Bool("count_include_pad");
  const auto spans = [&](int d) {
    const int64_t size = x[2 + d], step = dilations[d];
    std::vector<Span> all;
    for (int64_t i = 0; i < y[2 + d]; ++i) {
      const int64_t start = i * strides[d] - pads[d], past = start + (kernel[d] - 1) * step + 1;
      Span s;
      s.step = step;
      s.first = start < 0 ? start + (-start + step - 1) / step * step : start;
      s.end = std::min(past, size);
      if (include_pad) {  // what ceil_mode adds beyond the pads does not count
        s.cells = (std::min(past, size + pads[2 + d]) - start + step - 1) / step;
      } else {
        s.cells = std::max<int64_t>(0, s.end - s.first + step - 1) / step;
      }
      all.push_back(s);
    }
    return all;
  };
  return {x[2], x[3], spans(0), spans(1)};
}

Windows AdaptiveWindows(const Dims& x, const Dims& y) {
  const auto spans = [&](int d) {
    std::vector<Span> all;
    for (int64_t i = 0; i < y[d]; ++i) {
      const int64_t first = i * x[d] / y[d], end = ((i + 1) * x[d] + y[d] - 1) / y[d];
      all.push_back({first, end, 1, end - first});
    }
    return all;
  };
  return {x[2], x[3], spans(2), spans(3)};
}

int64_t ArgMax(const Windows& w, const float* plane, int64_t i, int64_t j) {
  const Span &rows = w.rows[i], &columns = w.columns[j];
  if (rows.first >= rows.end || columns.first >= columns.end) return -1;
  int64_t best = rows.first * w.width + columns.first;
  for (int64_t r = rows.first; r < rows.end; r += rows.step) {
    for (int64_t c = columns.first; c < columns.end; c += columns.step) {
      const float value = plane[r * w.width + c];
      if (value > plane[best] || std::isnan(value)) best = r * w.width + c;
    }
  }
  return best;
}

void PoolForward(const Pooling& pooling, const Windows& w, int64_t planes, const float* x,
                 float* y) {
  if (pooling.kind == PoolKind::kMax) {
    return PoolPlanes(w, planes, x, y, kLowest, Larger(), Larger(),
                      [](float value, const Span&, const Span&) { return value; });
  }
  if (pooling.kind == PoolKind::kAverage) {
    return PoolPlanes(w, planes, x, y, 0.0f, Plus(), Plus(),
                      [](float sum, const Span& rows, const Span& columns) {
                        return sum / Divisor(rows, columns);
                      });
  }
  if (pooling.p == 1) {
    return PoolPlanes(w, planes, x, y, 0.0f, PlusMagnitude(), Plus(),
                      [](float sum, const Span&, const Span&) { return sum; });
  }
  if (pooling.p == 2) {
    return PoolPlanes(w, planes, x, y, 0.0f, PlusSquare(), Plus(),
                      [](float sum, const Span&, const Span&) { return std::sqrt(sum); });
  }
  const float p = static_cast<float>(pooling.p);
  PoolPlanes(w, planes, x, y, 0.0f, PlusPower{p}, Plus(),
             [p](float sum, const Span&, const Span&) { return std::pow(sum, 1.0f / p); });
}

void PoolBackward(const Pooling& pooling, const Windows& w, int64_t planes, const float* x,
                  const float* y, const float* dy, float* dx) {
  const int64_t height = static_cast<int64_t>(w.rows.size());
  const int64_t width = static_cast<int64_t>(w.columns.size());
  const int64_t in = w.height * w.width, out = height * width;
  ParallelRanges(planes, w.work(), [&](int64_t begin, int64_t end) {
    std::vector<float> row(w.width);
    for (int64_t plane = begin; plane < end; ++plane) {
      float* to = dx + plane * in;
      const float* from = dy + plane * out;
      std::fill(to, to + in, 0.0f);
      if (pooling.kind != PoolKind::kMax) {
        SpreadPlane(pooling, w, x + plane * in, y == nullptr ? nullptr : y + plane * out, from, to,
                    &row);
        continue;
      }
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = 0; j < width; ++j, ++from) {
          const int64_t at = ArgMax(w, x + plane * in, i, j);
          if (at >= 0) to[at] += *from;
        }
      }
    }
  });
}

}  // namespace espalier
