// Batch-invariant attention over the paged KV cache. Every row is computed by itself; key number j
// of its list (prefix, then ancestors) always has the same position in the same sums. So a result
// does not depend on the batch, on the slots, or on whether a key is of the sequence or an ancestor
// in a token tree. Keys and values are read in the cache's format and summed in f32; query heads
// that share them, and rows behind one prefix, are computed together (attention/attention_block.h).
#include <algorithm>
#include <cmath>

#include "ops/cpu/attention/attention_block.h"
#include "ops/cpu/attention/kv_cache_formats.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/paged_attention_inputs.h"

namespace espalier {
namespace {

using namespace paged_attention;

using attention_block::Block;
using attention_block::Keys;
using attention_block::Query;
using kv::StoreHead;

constexpr int64_t kMaxScores = 1 << 20;  // of a thread, where that leaves one query's

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
    scores_row_ = attention_block::ScoresOf(keys);
    most_queries_ = std::clamp(kMaxScores / scores_row_, int64_t{1}, attention_block::kMaxQueries);
    part_floats_ = most_queries_ * (scores_row_ + 2 * head_dim_);
  }

  size_t workspace_bytes() const override { return parts_ * part_floats_ * sizeof(float); }

  KernelStatus Run(const KernelArgs& args) override {
    if (std::string error = CollectKeys(args); !error.empty()) return KernelStatus::Error(error);
    switch (args.inputs[kKCache].dtype()) {
      case DType::kF32:
        return RunOver<float>(args);
      case DType::kBF16:
        return RunOver<kv::BFloat16>(args);
      case DType::kF16:
        return RunOver<kv::Half>(args);
      default:
        return RunOver<kv::ScaledInt8>(args);
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
    OrderWork(args, kv_heads, group, slopes);
    // Balanced by keys: sequences have any length.
    ParallelParts(work_, head_dim_ / 4, parts_, [&](int64_t begin, int64_t end, int part) {
      float* scores = static_cast<float*>(args.workspace) + part * part_floats_;
      const auto at_key = [](const Item& item, int64_t key) { return item.start < key; };
      auto item = std::lower_bound(items_.begin(), items_.end(), begin, at_key);
      for (; item != items_.end() && item->start < end; ++item) {
        const int64_t kv = item->kv_head;
        const Block<C> block = {queries_.data() + item->first,
                                item->count,
                                item->shared,
                                k_cache + kv * head_dim_,
                                v_cache + kv * head_dim_,
                                k_scale != nullptr ? k_scale + kv : nullptr,
                                v_scale != nullptr ? v_scale + kv : nullptr,
                                width,
                                kv_heads,
                                head_dim_,
                                scale_,
                                softcap_,
                                alibi_bf16_,
                                scores,
                                scores_row_,
                                scores + most_queries_ * scores_row_};
        simd::Dispatch<attention_block::AttendOver<C>::template Blocks>(&block);
      }
    });
    return KernelStatus::Ok();
  }

  // Orders work by sequence, so that its keys and values are read from memory once, then by head.
  void OrderWork(const KernelArgs& args, int64_t kv_heads, int64_t group, const float* slopes) {
    items_.clear();
    queries_.clear();
    work_ = 0;
    const int64_t rows = static_cast<int64_t>(keys_.size());
    // Occupying all threads has priority.
    const int64_t most =
        std::clamp<int64_t>(rows * kv_heads * group / (2 * parts_), 1, most_queries_);
    for (int64_t first = 0; first < rows;) {
      int64_t last = first + 1;
      while (last < rows && keys_[last].sequence == keys_[first].sequence) ++last;
      for (int64_t kv = 0; kv < kv_heads; ++kv) {
        for (int64_t row = first; row < last; ++row) {
          for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
            const int64_t at = (row * kv_heads * group + h) * head_dim_;
            const Query query = {args.inputs[kQ].as<float>() + at, args.outputs[0].as<float>() + at,
                                 &keys_[row], slopes != nullptr ? slopes[h] : 0.0f};
            if (keys_[row].size == 0) {
              std::fill(query.y, query.y + head_dim_, 0.0f);
            } else {
              Add(query, kv, most);
            }
          }
        }
      }
      first = last;
    }
  }

  // Adds the query to the last block if that reads the same keys.
  void Add(const Query& query, int64_t kv_head, int64_t most) {
    const Keys& keys = *query.keys;
    bool joins = !items_.empty() && items_.back().kv_head == kv_head && items_.back().count < most;
    int64_t shared = keys.size;
    if (joins) {
      const Query& before = queries_.back();
      shared = items_.back().shared;
      if (before.keys != query.keys) {
        joins = before.keys->sequence == keys.sequence && before.keys->prefix == keys.prefix;
        shared = std::min({shared, before.keys->prefix_size, keys.prefix_size}) / 2 * 2;
      }
    }
    if (joins) {
      items_.back().shared = shared;
      ++items_.back().count;
    } else {
      items_.push_back({work_, static_cast<int64_t>(queries_.size()), 1, keys.size, kv_head});
    }
    queries_.push_back(query);
    work_ += keys.size + 1;
  }

  static float* Optional(const KernelArgs& args, Input i) {
    return args.inputs.size() > i ? args.inputs[i].as<float>() : nullptr;
  }

  // Stores every row of `from` in its slot.
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

  void KeepWindow(Keys* keys) const {
    if (window_ <= 0 || keys->size <= window_) return;
    keys->first = keys->size - window_;
    const int64_t of_prefix = std::min(keys->first, keys->prefix_size);
    keys->prefix += of_prefix;
    keys->prefix_size -= of_prefix;
    keys->ancestors += keys->first - of_prefix;
    keys->size = window_;
  }

  // Checks every index that will be used and fills keys_. Returns an error message if one is out of
  // range.
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
  int64_t scores_row_, most_queries_, part_floats_;
  // Queries computed together.
  struct Item {
    int64_t start;  // work of the blocks before it: their keys, plus one per block
    int64_t first, count;
    int64_t shared;  // keys
    int64_t kv_head;
  };
  std::vector<Item> items_;
  std::vector<Query> queries_;
  int64_t work_ = 0;              // `start` of the next block
  std::vector<Keys> keys_;        // of each row
  std::vector<int64_t> longest_;  // longest prefix read of each sequence
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
  // A cache in bf16 or f16 with f32 rows is read in place: converting would copy the whole cache.
  registry.Add("paged_attention", [make, in_f32 = ViaF32(make, {kKCache, kVCache})](
                                      const KernelSpec& spec, std::string* refusal) {
    return spec.inputs[kQ].dtype == DType::kF32 ? make(spec, refusal) : in_f32(spec, refusal);
  });
}

}  // namespace espalier
