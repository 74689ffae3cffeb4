// Attention over the paged KV cache. Every row is computed by itself, with key number j of its list
// (prefix, then ancestors) always in the same place of the same sums: the bits do not depend on the
// batch, on the slots, or on whether a key comes through the sequence or as an ancestor in a tree.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/convert.h"
#include "ops/cpu/dot_tile.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/vector_math.h"

namespace espalier {
namespace {

enum Input {
  kQ,
  kK,
  kV,
  kKCache,
  kVCache,
  kSlots,
  kRowSequence,
  kRowPrefix,
  kAncestorStart,
  kAncestorSlots,
  kSequenceStart,
  kSequenceSlots,
  kSlopes
};

// The keys that one row sees.
struct Keys {
  const int32_t* prefix;
  int64_t prefix_size;
  const int32_t* ancestors;
  int64_t size;       // prefix and ancestors
  int64_t first = 0;  // position of key 0: how many lie before the window

  ESPALIER_INLINE int64_t Slot(int64_t j) const {
    return j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
  }
};

struct Head {
  const float* q;        // [dim]
  const float* k_cache;  // this head's part of slot 0
  const float* v_cache;
  int64_t width;  // from one slot to the next
  int64_t dim;
  float scale;
  float softcap;  // 0: none
  float slope;    // 0: no ALiBi
  bool alibi_bf16;
  float* scores;  // keys.size rounded up to 16
  float* y;       // [dim]
};

// Vectors d to d + P of the weighted sum of V. Even and odd keys add up apart: two chains of
// additions per vector hide their latency.
template <int W, int P>
ESPALIER_INLINE void WeightedSum(const Keys& keys, const Head& h, int64_t d) {
  using namespace simd;
  Float<W> acc[2][P] = {};
  int64_t j = 0;
  for (; j + 2 <= keys.size; j += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const float* v = h.v_cache + keys.Slot(j + odd) * h.width + d;
      const Float<W> weight = Splat<W>(h.scores[j + odd]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[odd][p] = weight * Load<W>(v + p * W) + acc[odd][p];
    }
  }
  if (j < keys.size) {
    const float* v = h.v_cache + keys.Slot(j) * h.width + d;
    const Float<W> weight = Splat<W>(h.scores[j]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) acc[0][p] = weight * Load<W>(v + p * W) + acc[0][p];
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) Store<W>(h.y + d + p * W, acc[0][p] + acc[1][p]);
}

ESPALIER_INLINE float RoundToBF16(float x) { return BF16ToF32(F32ToBF16(x)); }

// What ALiBi adds to the scaled product with key j.
ESPALIER_INLINE float Alibi(const Keys& keys, const Head& h, int64_t j) {
  if (!h.alibi_bf16) return h.slope * static_cast<float>(j - (keys.size - 1));
  return RoundToBF16(RoundToBF16(h.slope) * RoundToBF16(static_cast<float>(keys.first + j))) *
         h.scale;
}

template <int W>
struct AttendHead {
  static ESPALIER_INLINE void Run(const Keys* keys, const Head* head) {
    using namespace simd;
    const Head& h = *head;
    const int64_t n = keys->size;
    const float lowest = -__builtin_inff();
    Float<W> top = Splat<W>(lowest);
    for (int64_t j = 0; j < n; j += W) {
      const float* rows[W];
      for (int c = 0; c < W; ++c) {
        rows[c] = h.k_cache + keys->Slot(std::min(j + c, n - 1)) * h.width;
      }
      Float<W> scores = DotTile<W, 1, W>(&h.q, rows, h.dim) * h.scale;
      if (h.softcap > 0) {
        for (int c = 0; c < W; ++c) scores[c] = h.softcap * FastTanh(scores[c] / h.softcap);
      }
      if (h.slope != 0) {
        for (int c = 0; c < W; ++c) scores[c] += Alibi(*keys, h, j + c);
      }
      for (int64_t c = n - j; c < W; ++c) scores[c] = lowest;
      Store<W>(h.scores + j, scores);
      top = Max<W>(top, scores);
    }
    const float max = MaxLane<W>(top);
    Float<W> sum = {};
    for (int64_t j = 0; j < n; j += W) {
      const Float<W> e = Exp<W>(Load<W>(h.scores + j) - max);
      Store<W>(h.scores + j, e);
      sum += e;
    }
    const float inverse = 1.0f / Sum<W>(sum);
    for (int64_t j = 0; j < n; j += W) Store<W>(h.scores + j, Load<W>(h.scores + j) * inverse);
    int64_t d = 0;
    for (; d + 4 * W <= h.dim; d += 4 * W) WeightedSum<W, 4>(*keys, h, d);
    for (; d + W <= h.dim; d += W) WeightedSum<W, 1>(*keys, h, d);
    for (; d < h.dim; ++d) {
      float value = 0;
      for (int64_t j = 0; j < n; ++j) {
        value += h.scores[j] * h.v_cache[keys->Slot(j) * h.width + d];
      }
      h.y[d] = value;
    }
  }
};

std::string RowError(int64_t row, const std::string& what) {
  return "paged_attention: row " + std::to_string(row) + ": " + what;
}

std::string OutOfRange(const std::string& name, int64_t value, int64_t least, int64_t most) {
  return name + " is " + std::to_string(value) + ", expected " + std::to_string(least) + " to " +
         std::to_string(most);
}

class PagedAttention : public Kernel {
 public:
  explicit PagedAttention(const KernelSpec& spec)
      : head_dim_(spec.attributes.Int("head_dim")),
        window_(spec.attributes.Int("window")),
        softcap_(static_cast<float>(spec.attributes.Float("softcap"))),
        alibi_bf16_(spec.attributes.String("alibi") == "bf16"),
        parts_(MaxThreads()) {
    const double scale = spec.attributes.Float("scale");
    scale_ =
        static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim_)));
    const int64_t keys = spec.inputs[kSequenceSlots].dims[0] + spec.inputs[kAncestorSlots].dims[0];
    part_floats_ = (keys + 15) / 16 * 16;
  }

  size_t workspace_bytes() const override { return parts_ * part_floats_ * sizeof(float); }

  KernelStatus Run(const KernelArgs& args) override {
    if (std::string error = CollectKeys(args); !error.empty()) return KernelStatus::Error(error);
    const int64_t rows = args.inputs[kQ].dims()[0], width = args.inputs[kK].dims()[1];
    const int64_t q_width = args.inputs[kQ].dims()[1];
    const int32_t* slots = args.inputs[kSlots].as<int32_t>();
    const float* k_cache = args.inputs[kKCache].as<float>();
    const float* v_cache = args.inputs[kVCache].as<float>();
    for (int64_t r = 0; r < rows; ++r) {
      for (const auto& [from, to] : {std::pair(kK, kKCache), std::pair(kV, kVCache)}) {
        std::memcpy(args.inputs[to].as<float>() + slots[r] * width,
                    args.inputs[from].as<float>() + r * width, width * sizeof(float));
      }
    }
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const int64_t kv_heads = width / head_dim_, group = q_width / width;
    const float* slopes = args.inputs.size() > kSlopes ? args.inputs[kSlopes].as<float>() : nullptr;
    ParallelParts(rows * kv_heads, work_per_row_ * group * head_dim_ / 4, parts_,
                  [&](int64_t begin, int64_t end, int part) {
                    float* scores = static_cast<float*>(args.workspace) + part * part_floats_;
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t row = i / kv_heads, kv = i % kv_heads;
                      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
                        const int64_t at = row * q_width + h * head_dim_;
                        Attend(row, {args.inputs[kQ].as<float>() + at, k_cache + kv * head_dim_,
                                     v_cache + kv * head_dim_, width, head_dim_, scale_, softcap_,
                                     slopes != nullptr ? slopes[h] : 0.0f, alibi_bf16_, scores,
                                     args.outputs[0].as<float>() + at});
                      }
                    }
                  });
    return KernelStatus::Ok();
  }

 private:
  void Attend(int64_t row, const Head& head) const {
    const Keys& keys = keys_[row];
    if (keys.size == 0) {
      std::fill(head.y, head.y + head.dim, 0.0f);
      return;
    }
    simd::Dispatch<AttendHead>(&keys, &head);
  }

  void KeepWindow(Keys* keys) const {
    if (window_ <= 0 || keys->size <= window_) return;
    keys->first = keys->size - window_;
    const int64_t of_prefix = std::min(keys->first, keys->prefix_size);
    keys->prefix += of_prefix;
    keys->prefix_size -= of_prefix;
    keys->ancestors += keys->first - of_prefix;
    keys->size = window_;
  }

  // Fills keys_ after checking every index that will be used; a sentence if one is out of range.
  std::string CollectKeys(const KernelArgs& args) {
    const auto data = [&](Input i) { return args.inputs[i].as<int32_t>(); };
    const auto size = [&](Input i) { return args.inputs[i].dims()[0]; };
    const int64_t rows = size(kQ), cache_slots = size(kKCache);
    const int64_t sequences = size(kSequenceStart) - 1;
    for (Input i : {kK, kV, kSlots, kRowSequence, kRowPrefix}) {
      if (size(i) < rows) return RowError(size(i), "the batch's row arrays are shorter than 'q'");
    }
    if (size(kAncestorStart) < rows + 1) {
      return RowError(rows, "'ancestor_start' has " + std::to_string(size(kAncestorStart)) +
                                " elements, expected " + std::to_string(rows + 1));
    }
    keys_.resize(rows);
    longest_.assign(std::max<int64_t>(sequences, 0), 0);
    work_per_row_ = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t slot = data(kSlots)[r], sequence = data(kRowSequence)[r];
      const int64_t prefix = data(kRowPrefix)[r];
      if (slot < 0 || slot >= cache_slots) {
        return RowError(r, OutOfRange("'slots'", slot, 0, cache_slots - 1));
      }
      if (sequence < 0 || sequence >= sequences) {
        return RowError(r, OutOfRange("'row_sequence'", sequence, 0, sequences - 1));
      }
      const int64_t start = data(kSequenceStart)[sequence];
      const int64_t end = data(kSequenceStart)[sequence + 1];
      if (start < 0 || end < start || end > size(kSequenceSlots)) {
        return RowError(r, "sequence " + std::to_string(sequence) + " covers sequence_slots[" +
                               std::to_string(start) + ", " + std::to_string(end) +
                               "), expected a part of [0, " + std::to_string(size(kSequenceSlots)) +
                               ")");
      }
      if (prefix < 0 || prefix > end - start) {
        return RowError(r, OutOfRange("'row_prefix'", prefix, 0, end - start));
      }
      const int64_t first = data(kAncestorStart)[r], last = data(kAncestorStart)[r + 1];
      if (first < 0 || last < first || last > size(kAncestorSlots)) {
        return RowError(r, "its ancestors are ancestor_slots[" + std::to_string(first) + ", " +
                               std::to_string(last) + "), expected a part of [0, " +
                               std::to_string(size(kAncestorSlots)) + ")");
      }
      for (int64_t i = first; i < last; ++i) {
        const int64_t ancestor = data(kAncestorSlots)[i];
        if (ancestor >= 0 && ancestor < cache_slots) continue;
        return RowError(r, OutOfRange("ancestor_slots[" + std::to_string(i) + "]", ancestor, 0,
                                      cache_slots - 1));
      }
      longest_[sequence] = std::max(longest_[sequence], prefix);
      keys_[r] = {data(kSequenceSlots) + start, prefix, data(kAncestorSlots) + first,
                  prefix + last - first};
      KeepWindow(&keys_[r]);
      work_per_row_ += keys_[r].size;
    }
    work_per_row_ = rows > 0 ? work_per_row_ / rows + 1 : 0;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t j = 0; j < longest_[s]; ++j) {
        const int64_t at = data(kSequenceStart)[s] + j, slot = data(kSequenceSlots)[at];
        if (slot >= 0 && slot < cache_slots) continue;
        return "paged_attention: sequence " + std::to_string(s) + ": " +
               OutOfRange("sequence_slots[" + std::to_string(at) + "]", slot, 0, cache_slots - 1);
      }
    }
    return "";
  }

  int64_t head_dim_;
  int64_t window_;
  float softcap_;
  bool alibi_bf16_;
  int parts_;
  float scale_;
  int64_t part_floats_;
  int64_t work_per_row_ = 0;
  std::vector<Keys> keys_;        // of each row
  std::vector<int64_t> longest_;  // prefix that is read of each sequence
};

}  // namespace

void RegisterPagedAttentionCpu(KernelRegistry& registry) {
  registry.Add("paged_attention",
               ViaF32([](const KernelSpec& spec,
                         std::string*) { return std::make_unique<PagedAttention>(spec); },
                      {kKCache, kVCache}));
}

}  // namespace espalier
