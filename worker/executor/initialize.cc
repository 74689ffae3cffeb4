#include "worker/executor/initialize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace {

using Kind = v1::Initializer;

// The "step" word of Philox's counter. No training step reaches it, so dropout uses other numbers.
constexpr uint64_t kInitializationStep = ~uint64_t{0};

struct Fans {
  double in, out;
};

// Weights are [out, in, spatial...].
Fans FansOf(const Dims& dims) {
  if (dims.empty()) return {1, 1};
  if (dims.size() == 1) return {static_cast<double>(dims[0]), static_cast<double>(dims[0])};
  double spatial = 1;
  for (size_t d = 2; d < dims.size(); ++d) spatial *= static_cast<double>(dims[d]);
  return {static_cast<double>(dims[1]) * spatial, static_cast<double>(dims[0]) * spatial};
}

double UnitOf(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// Two numbers in (0, 1) for an element, different for every `attempt`.
struct Pair {
  double first, second;
};
Pair DrawPair(uint64_t key, uint64_t element, uint64_t attempt) {
  const PhiloxBlock block = Philox(key, element >> 1, kInitializationStep - attempt);
  const uint32_t* words = block.word + 2 * (element & 1);
  return {UnitOf(words[0]), UnitOf(words[1])};
}

double StandardNormal(uint64_t key, uint64_t element, uint64_t attempt = 0) {
  const Pair pair = DrawPair(key, element, attempt);
  return std::sqrt(-2.0 * std::log(pair.first)) * std::cos(2.0 * std::numbers::pi * pair.second);
}

double StandardUniform(uint64_t key, uint64_t element) {
  return 2.0 * DrawPair(key, element, 0).first - 1.0;
}

// Redraws (1 time in 22) until within two standard deviations.
double TruncatedNormal(uint64_t key, uint64_t element) {
  for (uint64_t attempt = 0;; ++attempt) {
    const double value = StandardNormal(key, element, attempt);
    if (std::abs(value) <= 2.0) return value;
  }
}

// Value of an element from its index in the whole tensor: mean + width * draw(key, element).
struct Distribution {
  double mean = 0;
  double width = 0;
  double (*draw)(uint64_t key, uint64_t element) = nullptr;  // null: no random part
};

double DrawNormal(uint64_t key, uint64_t element) { return StandardNormal(key, element); }

Distribution DistributionOf(const v1::Initializer& initializer, const Dims& dims) {
  const Fans fans = FansOf(dims);
  switch (initializer.kind()) {
    case Kind::ONES:
      return {.mean = 1};
    case Kind::CONSTANT:
      return {.mean = initializer.mean()};
    case Kind::NORMAL:
      return {initializer.mean(), initializer.scale(), DrawNormal};
    case Kind::UNIFORM:
      return {initializer.mean(), initializer.scale(), StandardUniform};
    case Kind::TRUNCATED_NORMAL:
      return {initializer.mean(), initializer.scale(), TruncatedNormal};
    case Kind::GLOROT_UNIFORM:
      return {0, std::sqrt(6.0 / (fans.in + fans.out)), StandardUniform};
    case Kind::GLOROT_NORMAL:
      return {0, std::sqrt(2.0 / (fans.in + fans.out)), DrawNormal};
    case Kind::HE_UNIFORM:
      return {0, std::sqrt(6.0 / fans.in), StandardUniform};
    case Kind::HE_NORMAL:
      return {0, std::sqrt(2.0 / fans.in), DrawNormal};
    default:
      return {};
  }
}

// Returns a whole orthogonal matrix [rows, columns], row-major: Gram-Schmidt on normal numbers,
// over rows or columns, whichever are fewer.
std::vector<float> Orthogonal(int64_t rows, int64_t columns, double gain, uint64_t key) {
  const bool by_rows = rows <= columns;
  const int64_t count = by_rows ? rows : columns, length = by_rows ? columns : rows;
  std::vector<double> vectors(static_cast<size_t>(count * length));
  const auto element = [&](int64_t v, int64_t i) {
    return by_rows ? v * columns + i : i * columns + v;
  };
  ParallelFor(count, 64 * length, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      for (int64_t i = 0; i < length; ++i) {
        vectors[v * length + i] = StandardNormal(key, static_cast<uint64_t>(element(v, i)));
      }
    }
  });
  for (int64_t v = 0; v < count; ++v) {
    double* const unit = vectors.data() + v * length;
    double squares = 0;
    for (int64_t i = 0; i < length; ++i) squares += unit[i] * unit[i];
    const double factor = 1.0 / std::sqrt(squares);
    for (int64_t i = 0; i < length; ++i) unit[i] *= factor;
    // Each later vector separately, so that the result does not depend on the number of threads.
    ParallelFor(count - v - 1, 2 * length, [&](int64_t begin, int64_t end) {
      for (int64_t other = v + 1 + begin; other < v + 1 + end; ++other) {
        double* const x = vectors.data() + other * length;
        double dot = 0;
        for (int64_t i = 0; i < length; ++i) dot += x[i] * unit[i];
        for (int64_t i = 0; i < length; ++i) x[i] -= dot * unit[i];
      }
    });
  }
  std::vector<float> matrix(vectors.size());
  for (int64_t v = 0; v < count; ++v) {
    for (int64_t i = 0; i < length; ++i) {
      matrix[element(v, i)] = static_cast<float>(gain * vectors[v * length + i]);
    }
  }
  return matrix;
}

// Calls f(i, index of the shard's element i in the whole tensor).
template <typename F>
void ForElements(const TensorSpec& spec, const F& f) {
  const int rank = static_cast<int>(spec.dims.size());
  const int64_t count = spec.num_elements();
  Dims index(rank, 0);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t element = 0;
    for (int d = 0; d < rank; ++d) {
      element = element * static_cast<uint64_t>(spec.global[d]) +
                static_cast<uint64_t>(spec.offset[d] + index[d]);
    }
    f(i, element);
    for (int d = rank - 1; d >= 0 && ++index[d] == spec.dims[d]; --d) index[d] = 0;
  }
}

}  // namespace

uint64_t NameHash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

absl::Status Initialize(const v1::Initializer& initializer, const std::string& name, uint64_t seed,
                        const TensorSpec& spec, void* host) {
  const int64_t count = spec.num_elements();
  if (initializer.kind() == Kind::STORED) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", name, "' is STORED: its value is in a folder"));
  }
  if (!IsFloat(spec.dtype)) {
    if (initializer.kind() != Kind::ZEROS && initializer.kind() != Kind::ONES) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is ", Name(spec.dtype),
                                                     ": it can start at zeros or ones only"));
    }
    const bool one = initializer.kind() == Kind::ONES;
    std::memset(host, 0, static_cast<size_t>(spec.bytes()));
    const size_t size = SizeOf(spec.dtype);
    for (int64_t i = 0; one && i < count; ++i) static_cast<char*>(host)[i * size] = 1;
    return absl::OkStatus();
  }
  if (!std::isfinite(initializer.scale()) || !std::isfinite(initializer.mean())) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer of '", name, "' has a scale or mean that is no finite number"));
  }
  const uint64_t key = seed ^ (NameHash(name) * 0x9E3779B97F4A7C15ull);
  std::vector<float> values(static_cast<size_t>(count));
  if (initializer.kind() == Kind::ORTHOGONAL) {
    if (spec.global.size() < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' has shape ", ToString(spec.global),
                       "; an orthogonal one needs two dimensions or more"));
    }
    const int64_t rows = spec.global[0];
    const double gain = initializer.scale() == 0 ? 1.0 : initializer.scale();
    const std::vector<float> whole =
        Orthogonal(rows, NumElements(spec.global) / std::max<int64_t>(1, rows), gain, key);
    ForElements(spec, [&](int64_t i, uint64_t element) { values[i] = whole[element]; });
  } else {
    const Distribution d = DistributionOf(initializer, spec.global);
    if (d.draw == nullptr) {
      std::fill(values.begin(), values.end(), static_cast<float>(d.mean));
    } else {
      ForElements(spec, [&](int64_t i, uint64_t element) {
        values[i] = static_cast<float>(d.mean + d.width * d.draw(key, element));
      });
    }
  }
  FromF32(spec.dtype, values.data(), host, count);
  return absl::OkStatus();
}

}  // namespace espalier
