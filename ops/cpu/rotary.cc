// Rotary position embedding in Hugging Face's "rotate half" form. Sines and cosines of a position
// are computed once per kernel, as Hugging Face does: frequencies and angles rounded to f32.
#include <algorithm>
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"

namespace espalier {
namespace {

class RotaryKernel : public Kernel {
 public:
  // `direction` -1 turns back, which is the gradient.
  RotaryKernel(const Attributes& attributes, float direction)
      : head_dim_(attributes.Int("head_dim")),
        magnitude_(static_cast<float>(attributes.Float("magnitude", 1.0))),
        direction_(direction) {
    for (double frequency : attributes.Floats("frequencies")) {
      frequencies_.push_back(static_cast<float>(frequency));
    }
    if (frequencies_.empty()) {
      const double theta = attributes.Float("theta");
      for (int64_t i = 0; i < head_dim_ / 2; ++i) {
        frequencies_.push_back(static_cast<float>(
            1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim_))));
      }
    }
    half_ = static_cast<int64_t>(frequencies_.size());
  }

 protected:
  KernelStatus Turn(const TensorView& x, const TensorView* positions, const TensorView& y) {
    const Dims& dims = x.dims();
    const int64_t rows = dims[dims.size() - 2], width = dims.back();
    const int64_t heads = width / head_dim_;
    int64_t batches = 1;
    for (size_t d = 0; d + 2 < dims.size(); ++d) batches *= dims[d];
    if (x.num_elements() == 0) return KernelStatus::Ok();
    const int64_t first = x.spec.offset.empty() ? 0 : x.spec.offset[dims.size() - 2];
    row_turns_.resize(rows);
    far_.resize(rows * 2 * half_);
    int64_t last = 0;
    for (int64_t s = 0; s < rows; ++s) {
      const int64_t position = positions != nullptr ? positions->as<int32_t>()[s] : first + s;
      if (position < 0) {
        return KernelStatus::Error("rotary: positions[" + std::to_string(s) + "] is " +
                                   std::to_string(position) + ", expected at least 0");
      }
      if (position < kTablePositions) last = std::max(last, position);
    }
    GrowTable(last);
    for (int64_t s = 0; s < rows; ++s) {
      const int64_t position = positions != nullptr ? positions->as<int32_t>()[s] : first + s;
      if (position < kTablePositions) {
        row_turns_[s] = table_.data() + position * 2 * half_;
      } else {
        Compute(position, far_.data() + s * 2 * half_);
        row_turns_[s] = far_.data() + s * 2 * half_;
      }
    }
    ParallelRanges(batches * rows, 4 * width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* cosine = row_turns_[r % rows];
        const float* sine = cosine + half_;
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t at = r * width + h * head_dim_;
          TurnHead(x.as<float>() + at, cosine, sine, y.as<float>() + at);
        }
      }
    });
    return KernelStatus::Ok();
  }

 private:
  // Positions from here on are computed each time: a table for them would be large.
  static constexpr int64_t kTablePositions = int64_t{1} << 16;

  // Cosines, then sines.
  void Compute(int64_t position, float* turns) const {
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(position) * frequencies_[i];
      turns[i] = std::cos(angle) * magnitude_;
      turns[half_ + i] = std::sin(angle) * magnitude_;
    }
  }

  void GrowTable(int64_t last) {
    int64_t known = static_cast<int64_t>(table_.size()) / (2 * half_);
    if (last < known) return;
    table_.resize((last + 1) * 2 * half_);
    for (; known <= last; ++known) Compute(known, table_.data() + known * 2 * half_);
  }

  void TurnHead(const float* x, const float* cosine, const float* sine, float* y) const {
    for (int64_t i = 0; i < half_; ++i) {
      const float a = x[i], b = x[i + half_], s = direction_ * sine[i];
      y[i] = a * cosine[i] - b * s;
      y[i + half_] = b * cosine[i] + a * s;
    }
    if (y != x) std::copy(x + 2 * half_, x + head_dim_, y + 2 * half_);
  }

  int64_t head_dim_;
  int64_t half_;  // pairs of a head that turn
  float magnitude_;
  float direction_;
  std::vector<float> frequencies_;
  std::vector<float> table_;  // [position][cosines, sines], grown to the largest position seen
  std::vector<float> far_;
  std::vector<const float*> row_turns_;
};

class Forward : public RotaryKernel {
 public:
  explicit Forward(const Attributes& attributes) : RotaryKernel(attributes, 1) {}
  KernelStatus Run(const KernelArgs& args) override {
    const bool given = args.inputs.size() > 1 && args.inputs[1].present();
    return Turn(args.inputs[0], given ? &args.inputs[1] : nullptr, args.outputs[0]);
  }
};

// positions?, dy -> dx
class Backward : public RotaryKernel {
 public:
  explicit Backward(const Attributes& attributes) : RotaryKernel(attributes, -1) {}
  KernelStatus Run(const KernelArgs& args) override {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const bool given = args.inputs[0].present();
    return Turn(args.inputs.back(), given ? &args.inputs[0] : nullptr, args.outputs[0]);
  }
};

}  // namespace

void RegisterRotaryCpu(KernelRegistry& registry) {
  registry.Add("rotary", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Forward>(spec.attributes);
               }));
  registry.Add("rotary_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Backward>(spec.attributes);
               }));
}

}  // namespace espalier
