#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier {
namespace {

float GateGradient(float dy, float gate, float up, float sigmoid) {
  return dy * up * sigmoid * (1.0f + gate * (1.0f - sigmoid));
}

float UpGradient(float dy, float gate, float sigmoid) { return dy * (gate * sigmoid); }

// Both gradients share the sigmoid, and most graphs need both.
KernelStatus Backward(const KernelArgs& args) {
  const float *gate = args.inputs[0].as<float>(), *up = args.inputs[1].as<float>();
  const float* dy = args.inputs[2].as<float>();
  float* d_gate = args.outputs[0].as<float>();
  float* d_up = args.outputs.size() > 1 ? args.outputs[1].as<float>() : nullptr;
  ParallelFor(args.inputs[2].num_elements(), 2, [&](int64_t begin, int64_t end) {
    Vectorize(
        [](const float* gate, const float* up, const float* dy, float* d_gate, float* d_up,
           int64_t n) {
          if (d_gate != nullptr && d_up != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              const float sigmoid = FastSigmoid(gate[i]);
              d_gate[i] = GateGradient(dy[i], gate[i], up[i], sigmoid);
              d_up[i] = UpGradient(dy[i], gate[i], sigmoid);
            }
          } else if (d_gate != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              d_gate[i] = GateGradient(dy[i], gate[i], up[i], FastSigmoid(gate[i]));
            }
          } else if (d_up != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              d_up[i] = UpGradient(dy[i], gate[i], FastSigmoid(gate[i]));
            }
          }
        },
        gate + begin, up + begin, dy + begin, d_gate == nullptr ? nullptr : d_gate + begin,
        d_up == nullptr ? nullptr : d_up + begin, end - begin);
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterSwigluCpu(KernelRegistry& registry) {
  registry.Add("swiglu", ViaF32([](const KernelSpec&, std::string*) {
                 return MakeKernel([](const KernelArgs& args) {
                   const TensorView& y = args.outputs[0];
                   MapBinary([](float gate, float up) { return gate * FastSigmoid(gate) * up; },
                             args.inputs[0].as<float>(), args.inputs[1].as<float>(), y.as<float>(),
                             y.num_elements());
                   return KernelStatus::Ok();
                 });
               }));
  registry.Add("swiglu_grad",
               ViaF32([](const KernelSpec&, std::string*) { return MakeKernel(Backward); }));
}

}  // namespace espalier
