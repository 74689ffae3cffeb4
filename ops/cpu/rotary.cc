// Rotary position embedding (RoPE) in Hugging Face's "rotate half" form. Sines and cosines of a
// position are computed once for all kernels of a registry with the same frequencies, with
// frequencies and angles rounded to f32 as in Hugging Face.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// Cosines and sines by position, computed on first use. Thread-safe.
class TurnTable {
 public:
  // Positions from here on are computed each time, which bounds the table's size.
  static constexpr int64_t kPositions = int64_t{1} << 16;

  TurnTable(std::vector<float> frequencies, float magnitude)
      : frequencies_(std::move(frequencies)), magnitude_(magnitude) {}

  int64_t half() const { return static_cast<int64_t>(frequencies_.size()); }

  // Returns half() cosines, then half() sines.
  void Compute(int64_t position, float* turns) const {
    for (int64_t i = 0; i < half(); ++i) {
      const float angle = static_cast<float>(position) * frequencies_[i];
      turns[i] = std::cos(angle) * magnitude_;
      turns[half() + i] = std::sin(angle) * magnitude_;
    }
  }

  // As above; valid for the life of the table. REQUIRES: position in [0, kPositions).
  const float* At(int64_t position) {
    const int64_t chunk = position / kChunk;
    const float* turns = chunks_[chunk].load(std::memory_order_acquire);
    if (turns == nullptr) turns = Make(chunk);
    return turns + position % kChunk * 2 * half();
  }

 private:
  static constexpr int64_t kChunk = 64;  // positions: what is computed at once

  const float* Make(int64_t chunk) {
    std::lock_guard<std::mutex> lock(making_);
    const float* turns = chunks_[chunk].load(std::memory_order_relaxed);
    if (turns != nullptr) return turns;
    std::vector<float>& made = owned_.emplace_back(kChunk * 2 * half());
    for (int64_t i = 0; i < kChunk; ++i) {
      Compute(chunk * kChunk + i, made.data() + i * 2 * half());
    }
    chunks_[chunk].store(made.data(), std::memory_order_release);
    return made.data();
  }

  const std::vector<float> frequencies_;
  const float magnitude_;
  std::array<std::atomic<const float*>, kPositions / kChunk> chunks_ = {};
  std::mutex making_;
  std::vector<std::vector<float>> owned_;  // the chunks; under making_
};

// The tables of a registry's kernels; a table lives as long as a kernel that uses it. Thread-safe.
class TurnTables {
 public:
  std::shared_ptr<TurnTable> Get(std::vector<float> frequencies, float magnitude) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(tables_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<TurnTable>& known = tables_[{frequencies, magnitude}];
    std::shared_ptr<TurnTable> table = known.lock();
    if (table == nullptr) {
      table = std::make_shared<TurnTable>(std::move(frequencies), magnitude);
      known = table;
    }
    return table;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::vector<float>, float>, std::weak_ptr<TurnTable>> tables_;
};

class RotaryKernel : public Kernel {
 public:
  // `direction` -1 rotates back, which is the gradient.
  RotaryKernel(TurnTables& tables, const Attributes& attributes, float direction)
      : head_dim_(attributes.Int("head_dim")), direction_(direction) {
    std::vector<float> frequencies;
    for (double frequency : attributes.Floats("frequencies")) {
      frequencies.push_back(static_cast<float>(frequency));
    }
    if (frequencies.empty()) {
      const double theta = attributes.Float("theta");
      for (int64_t i = 0; i < head_dim_ / 2; ++i) {
        frequencies.push_back(static_cast<float>(
            1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim_))));
      }
    }
    table_ =
        tables.Get(std::move(frequencies), static_cast<float>(attributes.Float("magnitude", 1.0)));
    half_ = table_->half();
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
    std::vector<int64_t> far;  // rows of positions beyond the table
    for (int64_t s = 0; s < rows; ++s) {
      const int64_t position = positions != nullptr ? positions->as<int32_t>()[s] : first + s;
      if (position < 0) {
        return KernelStatus::Error("rotary: positions[" + std::to_string(s) + "] is " +
                                   std::to_string(position) + ", expected at least 0");
      }
      if (position < TurnTable::kPositions) {
        row_turns_[s] = table_->At(position);
      } else {
        far.push_back(s);
      }
    }
    far_.resize(far.size() * 2 * half_);
    for (size_t i = 0; i < far.size(); ++i) {
      const int64_t s = far[i];
      float* const turns = far_.data() + i * 2 * half_;
      table_->Compute(positions != nullptr ? positions->as<int32_t>()[s] : first + s, turns);
      row_turns_[s] = turns;
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
  void TurnHead(const float* x, const float* cosine, const float* sine, float* y) const {
    for (int64_t i = 0; i < half_; ++i) {
      const float a = x[i], b = x[i + half_], s = direction_ * sine[i];
      y[i] = a * cosine[i] - b * s;
      y[i + half_] = b * cosine[i] + a * s;
    }
    if (y != x) std::copy(x + 2 * half_, x + head_dim_, y + 2 * half_);
  }

  int64_t head_dim_;
  int64_t half_;  // pairs of a head that rotate
  float direction_;
  std::shared_ptr<TurnTable> table_;
  std::vector<float> far_;
  std::vector<const float*> row_turns_;
};

class Forward : public RotaryKernel {
 public:
  Forward(TurnTables& tables, const Attributes& attributes) : RotaryKernel(tables, attributes, 1) {}
  KernelStatus Run(const KernelArgs& args) override {
    const bool given = args.inputs.size() > 1 && args.inputs[1].present();
    return Turn(args.inputs[0], given ? &args.inputs[1] : nullptr, args.outputs[0]);
  }
};

// positions?, dy -> dx
class Backward : public RotaryKernel {
 public:
  Backward(TurnTables& tables, const Attributes& attributes)
      : RotaryKernel(tables, attributes, -1) {}
  KernelStatus Run(const KernelArgs& args) override {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const bool given = args.inputs[0].present();
    return Turn(args.inputs.back(), given ? &args.inputs[0] : nullptr, args.outputs[0]);
  }
};

}  // namespace

void RegisterRotaryCpu(KernelRegistry& registry) {
  const auto tables = std::make_shared<TurnTables>();
  registry.Add("rotary", ViaF32([tables](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Forward>(*tables, spec.attributes);
               }));
  registry.Add("rotary_grad", ViaF32([tables](const KernelSpec& spec, std::string*) {
                 return std::make_unique<Backward>(*tables, spec.attributes);
               }));
}

}  // namespace espalier
