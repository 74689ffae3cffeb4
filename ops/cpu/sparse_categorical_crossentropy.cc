// Log-softmax and the negative log-likelihood in one pass over each row of logits, and their
// gradient.
#include <cmath>
#include <limits>

#include "ops/cpu/labels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/sum.h"
#include "ops/cpu/vector_math.h"
#include "ops/cpu/vectorize.h"

namespace espalier {
namespace {

const char kName[] = "sparse_categorical_crossentropy";
constexpr int64_t kWork = 8;  // units of ParallelFor per logit

float RowMax(const float* x, int64_t n) {
  return Vectorize(
      [](const float* x, int64_t n) {
        float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
        return most;
      },
      x, n);
}

// Sum of exp(x - shift), which are stored too unless `out` is null.
double RowExp(const float* x, float shift, float* out, int64_t n) {
  double sum = 0;
  float buffer[kSumBlock];
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t count = std::min(kSumBlock, n - i);
    float* to = out != nullptr ? out + i : buffer;
    sum += Vectorize(
        [](const float* x, float shift, float* out, int64_t n) {
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < n; ++j) {
            const float e = FastExp(x[j] - shift);
            out[j] = e;
            sum += e;
          }
          return sum;
        },
        x + i, shift, to, count);
  }
  return sum;
}

struct Attribute {
  int64_t count;  // of labels, in the whole tensor
  int64_t ignore_index;
};

KernelStatus Forward(const KernelArgs& args, const Attribute& attribute) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1];
  const int64_t classes = logits.dims().back(), rows = labels.num_elements();
  if (KernelStatus status = CheckLabels(kName, labels, classes, attribute.ignore_index);
      !status.ok()) {
    return status;
  }
  const float* x = logits.as<float>();
  const int64_t block = std::max<int64_t>(1, kParallelGrain / (kWork * classes));
  const double sum = BlockedSum(rows, block, [&](int64_t begin, int64_t end) {
    double part = 0;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = IntegerAt(labels, r);
      if (label == attribute.ignore_index) continue;
      const float* row = x + r * classes;
      const float most = RowMax(row, classes);
      part +=
          std::log(RowExp(row, most, nullptr, classes)) - static_cast<double>(row[label] - most);
    }
    return part;
  });
  *args.outputs[0].as<float>() = static_cast<float>(sum / static_cast<double>(attribute.count));
  return KernelStatus::Ok();
}

// (softmax(row) - one at the label) * dy / count
KernelStatus Backward(const KernelArgs& args, const Attribute& attribute) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1], &dx = args.outputs[0];
  const int64_t classes = logits.dims().back(), rows = labels.num_elements();
  if (KernelStatus status = CheckLabels(kName, labels, classes, attribute.ignore_index);
      !status.ok()) {
    return status;
  }
  const float* x = logits.as<float>();
  const double dy = *args.inputs[2].as<float>() / static_cast<double>(attribute.count);
  ParallelFor(rows, kWork * classes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = IntegerAt(labels, r);
      float* out = dx.as<float>() + r * classes;
      if (label == attribute.ignore_index) {
        std::fill(out, out + classes, 0.0f);
        continue;
      }
      const float* row = x + r * classes;
      const double sum = RowExp(row, RowMax(row, classes), out, classes);
      Vectorize(
          [](float* out, float factor, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] *= factor;
          },
          out, static_cast<float>(dy / sum), classes);
      out[label] -= static_cast<float>(dy);
    }
  });
  return KernelStatus::Ok();
}

template <typename Run>
KernelFactory Factory(Run run) {
  return [run](const KernelSpec& spec, std::string*) {
    const Attribute attribute{spec.attributes.Int("count"), spec.attributes.Int("ignore_index")};
    return MakeKernel([run, attribute](const KernelArgs& args) { return run(args, attribute); });
  };
}

}  // namespace

void RegisterSparseCategoricalCrossentropyCpu(KernelRegistry& registry) {
  registry.Add(kName, Factory(Forward));
  registry.Add(std::string(kName) + "_grad", Factory(Backward));
}

}  // namespace espalier
