// Attention over the paged KV cache. Every row is computed by itself, with key number j of its list
// (prefix, then ancestors) always in the same place of the same sums: the bits do not depend on the
// batch, on the slots, or on whether a key comes through the sequence or as an ancestor in a tree.
// Keys and values are read in the form in which the cache holds them, and summed in f32.
#include <algorithm>
#include <cmath>

#include "ops/cpu/dot_tile.h"
#include "ops/cpu/kv_forms.h"
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
  kSlopes,
  kKScale,
  kVScale
};

using kv::LoadWide;
using kv::StoreHead;
using kv::Wide;

// The keys that one row sees.
struct Keys {
  const int32_t* prefix;
  int64_t prefix_size;
  const int32_t* ancestors;
  int64_t size;  // prefix and ancestors
  int64_t sequence;
  int64_t first = 0;  // position of key 0: how many lie before the window

  ESPALIER_INLINE int64_t Slot(int64_t j) const {
    return j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
  }
};

// C: an element of the cache.
template <typename C>
struct Head {
  const float* q;    // [dim]
  const C* k_cache;  // this head's part of slot 0
  const C* v_cache;
  const float* k_scale;  // likewise; null: none
  const float* v_scale;
  int64_t width;  // from one slot to the next
  int64_t heads;  // scales from one slot to the next
  int64_t dim;
  float scale;
  float softcap;  // 0: none
  float slope;    // 0: no ALiBi
  bool alibi_bf16;
  float* scores;  // keys.size rounded up to 16
  float* y;       // [dim]
};

// Asks memory for n elements. Slots lie anywhere, so the processor does not see what comes next.
template <typename C>
ESPALIER_INLINE void Fetch(const C* p, int64_t n) {
  const char* bytes = reinterpret_cast<const char*>(p);
  const int64_t size = n * static_cast<int64_t>(sizeof(C));
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at);
}

constexpr int64_t kValuesAhead = 8;  // keys whose values are asked for before they are needed

// Vectors d to d + P of the weighted sum of V. Even and odd keys add up apart: two chains of
// additions per vector hide their latency.
template <int W, int P, typename C>
ESPALIER_INLINE void WeightedSum(const Keys& keys, const Head<C>& h, int64_t d) {
  using namespace simd;
  Float<W> acc[2][P] = {};
  int64_t j = 0;
  for (; j + 2 <= keys.size; j += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int64_t ahead = std::min(j + odd + kValuesAhead, keys.size - 1);
      Fetch(h.v_cache + keys.Slot(ahead) * h.width + d, P * W);
      const C* v = h.v_cache + keys.Slot(j + odd) * h.width + d;
      const Float<W> weight = Splat<W>(h.scores[j + odd]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[odd][p] = weight * LoadWide<W>(v + p * W) + acc[odd][p];
    }
  }
  if (j < keys.size) {
    const C* v = h.v_cache + keys.Slot(j) * h.width + d;
    const Float<W> weight = Splat<W>(h.scores[j]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) acc[0][p] = weight * LoadWide<W>(v + p * W) + acc[0][p];
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) Store<W>(h.y + d + p * W, acc[0][p] + acc[1][p]);
}

ESPALIER_INLINE float RoundToBF16(float x) { return BF16ToF32(F32ToBF16(x)); }

// What ALiBi adds to the scaled product with key j.
template <typename C>
ESPALIER_INLINE float Alibi(const Keys& keys, const Head<C>& h, int64_t j) {
  if (!h.alibi_bf16) return h.slope * static_cast<float>(j - (keys.size - 1));
  return RoundToBF16(RoundToBF16(h.slope) * RoundToBF16(static_cast<float>(keys.first + j))) *
         h.scale;
}

template <typename C, int W>
struct AttendHead {
  static ESPALIER_INLINE void Run(const Keys* keys, const Head<C>* head) {
    using namespace simd;
    const Head<C>& h = *head;
    const int64_t n = keys->size;
    const float lowest = -__builtin_inff();
    Float<W> top = Splat<W>(lowest);
    for (int64_t j = 0; j < n; j += W) {
      const C* rows[W];
      Float<W> scales = {};
      for (int c = 0; c < W; ++c) {
        const int64_t slot = keys->Slot(std::min(j + c, n - 1));
        rows[c] = h.k_cache + slot * h.width;
        Fetch(h.k_cache + keys->Slot(std::min(j + W + c, n - 1)) * h.width, h.dim);
        scales[c] = h.k_scale == nullptr ? h.scale : h.scale * h.k_scale[slot * h.heads];
      }
      Float<W> scores = DotTile<W, 1, W>(&h.q, rows, h.dim) * scales;
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
    if (h.v_scale != nullptr) {
      for (int64_t j = 0; j < n; ++j) h.scores[j] *= h.v_scale[keys->Slot(j) * h.heads];
    }
    int64_t d = 0;
    for (; d + 4 * W <= h.dim; d += 4 * W) WeightedSum<W, 4>(*keys, h, d);
    for (; d + W <= h.dim; d += W) WeightedSum<W, 1>(*keys, h, d);
    for (; d < h.dim; ++d) {
      float value = 0;
      for (int64_t j = 0; j < n; ++j) {
        value += h.scores[j] * Wide(h.v_cache[keys->Slot(j) * h.width + d]);
      }
      h.y[d] = value;
    }
  }
};

template <typename C>
struct AttendOver {
  template <int W>
  using Head = AttendHead<C, W>;
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
    switch (args.inputs[kKCache].dtype()) {
      case DType::kF32:
        return RunOver<float>(args);
      case DType::kBF16:
        return RunOver<kv::BFloat>(args);
      case DType::kF16:
        return RunOver<kv::Half>(args);
      default:
        return RunOver<kv::Scaled8>(args);
    }
  }

 private:
  template <typename C>
  KernelStatus RunOver(const KernelArgs& args) {
    const int64_t width = args.inputs[kK].dims()[1];
    const int64_t q_width = args.inputs[kQ].dims()[1];
    const int64_t kv_heads = width / head_dim_, group = q_width / width;
    StoreRows<C>(args, kK, kKCache, kKScale);
    StoreRows<C>(args, kV, kVCache, kVScale);
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const C* k_cache = args.inputs[kKCache].as<C>();
    const C* v_cache = args.inputs[kVCache].as<C>();
    const float* slopes = Optional(args, kSlopes);
    const float* k_scale = Optional(args, kKScale);
    const float* v_scale = Optional(args, kVScale);
    OrderWork(kv_heads);
    // By keys: sequences are of any length.
    ParallelParts(work_, group * head_dim_ / 4, parts_, [&](int64_t begin, int64_t end, int part) {
      float* scores = static_cast<float*>(args.workspace) + part * part_floats_;
      const auto at_key = [](const Item& item, int64_t key) { return item.start < key; };
      auto item = std::lower_bound(items_.begin(), items_.end(), begin, at_key);
      for (; item != items_.end() && item->start < end; ++item) {
        const int64_t kv = item->kv_head;
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
          const int64_t at = item->row * q_width + h * head_dim_;
          const Head<C> head = {args.inputs[kQ].as<float>() + at,
                                k_cache + kv * head_dim_,
                                v_cache + kv * head_dim_,
                                k_scale != nullptr ? k_scale + kv : nullptr,
                                v_scale != nullptr ? v_scale + kv : nullptr,
                                width,
                                kv_heads,
                                head_dim_,
                                scale_,
                                softcap_,
                                slopes != nullptr ? slopes[h] : 0.0f,
                                alibi_bf16_,
                                scores,
                                args.outputs[0].as<float>() + at};
          Attend(item->row, head);
        }
      }
    });
    return KernelStatus::Ok();
  }

  // Sequence by sequence, whose keys and values are then read from memory once; in it head by head,
  // of which the rows of a tree see the same.
  void OrderWork(int64_t kv_heads) {
    items_.clear();
    work_ = 0;
    const int64_t rows = static_cast<int64_t>(keys_.size());
    for (int64_t first = 0; first < rows;) {
      int64_t last = first + 1;
      while (last < rows && keys_[last].sequence == keys_[first].sequence) ++last;
      for (int64_t kv = 0; kv < kv_heads; ++kv) {
        for (int64_t row = first; row < last; ++row) {
          items_.push_back({work_, row, kv});
          work_ += keys_[row].size + 1;
        }
      }
      first = last;
    }
  }

  static float* Optional(const KernelArgs& args, Input i) {
    return args.inputs.size() > i ? args.inputs[i].as<float>() : nullptr;
  }

  // Every row of `from` to its slot.
  template <typename C>
  void StoreRows(const KernelArgs& args, Input from, Input to, Input scale) const {
    const int64_t rows = args.inputs[kQ].dims()[0], width = args.inputs[kK].dims()[1];
    const int64_t heads = width / head_dim_;
    float* scales = Optional(args, scale);
    ParallelRanges(rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t slot = args.inputs[kSlots].as<int32_t>()[r];
        for (int64_t h = 0; h < heads; ++h) {
          StoreHead(args.inputs[from].as<float>() + r * width + h * head_dim_, head_dim_,
                    args.inputs[to].as<C>() + slot * width + h * head_dim_,
                    scales != nullptr ? scales + slot * heads + h : nullptr);
        }
      }
    });
  }

  template <typename C>
  void Attend(int64_t row, const Head<C>& head) const {
    const Keys& keys = keys_[row];
    if (keys.size == 0) {
      std::fill(head.y, head.y + head.dim, 0.0f);
      return;
    }
    simd::Dispatch<AttendOver<C>::template Head>(&keys, &head);
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
                  prefix + last - first, sequence};
      KeepWindow(&keys_[r]);
    }
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
  struct Item {
    int64_t start;  // keys of those before it, and one for each of them
    int64_t row, kv_head;
  };
  std::vector<Item> items_;
  int64_t work_ = 0;              // where the next one would start
  std::vector<Keys> keys_;        // of each row
  std::vector<int64_t> longest_;  // prefix that is read of each sequence
};

}  // namespace

void RegisterPagedAttentionCpu(KernelRegistry& registry) {
  const KernelFactory make = [](const KernelSpec& spec,
                                std::string* refusal) -> std::unique_ptr<Kernel> {
    const DType cache = spec.inputs[kKCache].dtype;
    const bool scales = spec.inputs.size() > kVScale && spec.inputs[kKScale].dtype == DType::kF32 &&
                        spec.inputs[kVScale].dtype == DType::kF32;
    if (cache == DType::kI8 ? !scales : !IsFloat(cache)) {
      *refusal = std::string("a cache of ") + Name(cache) +
                 " is not supported: f32, bf16 and f16 are, and i8 with scales";
      return nullptr;
    }
    return std::make_unique<PagedAttention>(spec);
  };
  // Where only the cache is narrow it is read as it is: a copy in f32 would be all of it.
  registry.Add("paged_attention", [make, in_f32 = ViaF32(make, {kKCache, kVCache})](
                                      const KernelSpec& spec, std::string* refusal) {
    return spec.inputs[kQ].dtype == DType::kF32 ? make(spec, refusal) : in_f32(spec, refusal);
  });
}

}  // namespace espalier
