// Rotary position embedding (RoPE) in Hugging Face's "rotate half" form: frequencies and angles in
// f32.
#include <cmath>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_rotary {

constexpr int64_t kMaxPairs = 512;

struct Frequencies {
  float value[kMaxPairs];
};

// Thread i rotates a pair (d, d + turning) of one head of one row; pairs beyond `turning` are
// copied.
template <typename T>
struct TurnPair {
  const T* x;
  T* y;
  const int32_t* positions;  // may be null
  int64_t rows;              // of one batch element
  int64_t first;             // position of row 0 where none are given
  int64_t heads, half, turning;
  float magnitude, direction;
  Frequencies frequencies;
  FaultSink faults;

  __device__ void operator()(int64_t i) const {
    const int64_t pair = i % half, head = i / half % heads, row = i / (half * heads);
    const int64_t head_at = (row * heads + head) * 2 * half;
    if (pair >= turning) {
      y[head_at + 2 * pair] = x[head_at + 2 * pair];
      y[head_at + 2 * pair + 1] = x[head_at + 2 * pair + 1];
      return;
    }
    const int64_t s = row % rows;
    int64_t position = first + s;
    if (positions != nullptr) {
      position = positions[s];
      if (position < 0) {
        faults.Report(FaultKind::kPosition, s, position, 0);
        position = 0;
      }
    }
    const float angle = static_cast<float>(position) * frequencies.value[pair];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    cosine *= magnitude;
    sine *= magnitude * direction;
    const int64_t at = head_at + pair;
    const float a = ToFloat(x[at]), b = ToFloat(x[at + turning]);
    y[at] = FromFloat<T>(a * cosine - b * sine);
    y[at + turning] = FromFloat<T>(b * cosine + a * sine);
  }
};

class RotaryKernel : public Kernel {
 public:
  // The gradient is the inverse rotation.
  RotaryKernel(DeviceContexts& contexts, const Attributes& attributes, bool back)
      : contexts_(contexts),
        half_(attributes.Int("head_dim") / 2),
        magnitude_(static_cast<float>(attributes.Float("magnitude", 1.0))),
        back_(back) {
    const std::vector<double> given = attributes.Floats("frequencies");
    turning_ = given.empty() ? half_ : static_cast<int64_t>(given.size());
    for (size_t i = 0; i < given.size(); ++i) {
      frequencies_.value[i] = static_cast<float>(given[i]);
    }
    const double theta = attributes.Float("theta");
    for (int64_t i = 0; given.empty() && i < half_; ++i) {
      frequencies_.value[i] = static_cast<float>(
          1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(2 * half_)));
    }
  }

  // Forward: x, positions? -> y. Backward: positions?, dy -> dx.
  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[back_ ? 1 : 0], &y = args.outputs[0];
    if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
    const size_t at = back_ ? 0 : 1;
    const bool given = Has(args.inputs, at);
    const Dims& dims = x.dims();
    const size_t rows_dim = dims.size() - 2;
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    return DispatchFloat(x.dtype(), "rotary", [&](auto type) {
      using T = typename decltype(type)::T;
      const TurnPair<T> turn{x.as<T>(),
                             y.as<T>(),
                             given ? args.inputs[at].as<int32_t>() : nullptr,
                             dims[rows_dim],
                             x.spec.offset.empty() ? 0 : x.spec.offset[rows_dim],
                             dims.back() / (2 * half_),
                             half_,
                             turning_,
                             magnitude_,
                             back_ ? -1.0f : 1.0f,
                             frequencies_,
                             context->faults()};
      return ForEach(y.num_elements() / 2, turn, StreamOf(args), "rotary");
    });
  }

 private:
  DeviceContexts& contexts_;
  const int64_t half_;
  int64_t turning_ = 0;  // pairs of a head
  const float magnitude_;
  const bool back_;
  Frequencies frequencies_ = {};
};

KernelFactory Factory(DeviceContexts& contexts, bool back) {
  return
      [&contexts, back](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
        const int64_t head_dim = spec.attributes.Int("head_dim");
        if (head_dim > 2 * kMaxPairs || head_dim % 2 != 0) {
          *refusal = "head_dim is odd or above " + std::to_string(2 * kMaxPairs);
          return nullptr;
        }
        return std::make_unique<RotaryKernel>(contexts, spec.attributes, back);
      };
}

}  // namespace cuda_rotary

void RegisterRotaryCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_rotary;
  registry.Add("rotary", Factory(contexts, false));
  registry.Add("rotary_grad", Factory(contexts, true));
}

}  // namespace espalier
