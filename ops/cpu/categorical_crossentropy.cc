#include <cmath>
#include <limits>

#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/example_weights.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// Probabilities below it count as this.
constexpr float kLeast = std::numeric_limits<float>::min();

struct Problem {
  bool from_logits;
  float keep, spread;  // t = keep * target + spread
  double count;

  Problem(const Attributes& attributes, int64_t classes) {
    const double smoothing = attributes.Float("label_smoothing");
    from_logits = attributes.Bool("from_logits");
    keep = static_cast<float>(1.0 - smoothing);
    spread = static_cast<float>(smoothing / static_cast<double>(classes));
    count = static_cast<double>(attributes.Int("count"));
  }
};

double RowLoss(const Problem& p, const float* x, const float* target, int64_t classes) {
  const float keep = p.keep, spread = p.spread;
  if (!p.from_logits) {
    return RowSum(
        [=](float x, float t) { return -(keep * t + spread) * FastLog(x < kLeast ? kLeast : x); },
        x, target, classes);
  }
  // sum t (log_sum - (x - most))
  const float most = RowMax(x, classes);
  const double log_sum = std::log(RowExp(x, most, nullptr, classes));
  return RowSum([=](float x, float t) { return (keep * t + spread) * (most - x); }, x, target,
                classes) +
         log_sum * RowSum([=](float, float t) { return keep * t + spread; }, x, target, classes);
}

void RowGradient(const Problem& p, const float* x, const float* target, double dy, float* out,
                 int64_t classes) {
  const float keep = p.keep, spread = p.spread, g = static_cast<float>(dy);
  if (!p.from_logits) {
    RowMap(
        [=](float x, float t) {
          const float slope = -g * (keep * t + spread) / (x < kLeast ? kLeast : x);
          return x < kLeast ? 0.0f : slope;
        },
        x, target, out, classes);
    return;
  }
  const double sum = RowExp(x, RowMax(x, classes), out, classes);
  const double total =
      RowSum([=](float, float t) { return keep * t + spread; }, x, target, classes);
  const float factor = static_cast<float>(dy * total / sum);
  RowMap([=](float e, float t) { return factor * e - g * (keep * t + spread); }, out, target, out,
         classes);
}

}  // namespace

void RegisterCategoricalCrossentropyCpu(KernelRegistry& registry) {
  registry.Add("categorical_crossentropy", [](const KernelSpec& spec, std::string*) {
    const int64_t classes = spec.inputs[0].dims.back();
    return MakeKernel([=, p = Problem(spec.attributes, classes)](const KernelArgs& args) {
      const float* x = args.inputs[0].as<float>();
      const float* target = args.inputs[1].as<float>();
      const int64_t rows = args.inputs[0].num_elements() / classes;
      const ExampleWeights examples(args, 2, /*gradient=*/false, rows);
      const double sum = BlockedSum(rows, RowBlock(classes), [&](int64_t begin, int64_t end) {
        double part = 0;
        for (int64_t r = begin; r < end; ++r) {
          part += examples[r] * RowLoss(p, x + r * classes, target + r * classes, classes);
        }
        return part;
      });
      *args.outputs[0].as<float>() = static_cast<float>(sum / p.count);
      return KernelStatus::Ok();
    });
  });
  registry.Add("categorical_crossentropy_grad", [](const KernelSpec& spec, std::string*) {
    const int64_t classes = spec.inputs[0].dims.back();
    return MakeKernel([=, p = Problem(spec.attributes, classes)](const KernelArgs& args) {
      const float* x = args.inputs[0].as<float>();
      const float* target = args.inputs[1].as<float>();
      float* dx = args.outputs[0].as<float>();
      const double dy = *args.inputs.back().as<float>() / p.count;
      const int64_t rows = args.inputs[0].num_elements() / classes;
      const ExampleWeights examples(args, 2, /*gradient=*/true, rows);
      ParallelFor(rows, kRowWork * classes, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t at = r * classes;
          RowGradient(p, x + at, target + at, examples[r] * dy, dx + at, classes);
        }
      });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
