#include <cmath>

#include "ops/cpu/testing/op_runner.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 72;
constexpr DType kFormats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

// A batch of rows; q, k and v of a row are a function of `token`, so that a token may appear in any
// batch.
struct Row {
  int token;
  int slot;
  int sequence;
  int prefix;
  std::vector<int> ancestors;
};

TestTensor Rows(const std::vector<Row>& rows, int64_t width, int seed) {
  TestTensor tensor = Zeros(DType::kF32, {static_cast<int64_t>(rows.size()), width});
  for (size_t r = 0; r < rows.size(); ++r) {
    const TestTensor row = Random({width}, seed + 10 * rows[r].token);
    std::memcpy(tensor.as<float>() + r * width, row.bytes.data(), row.bytes.size());
  }
  return tensor;
}

class PagedAttention : public ::testing::Test {
 protected:
  static constexpr int kSlots = 64;
  TestTensor k_cache_ = Zeros(DType::kF32, {kSlots, kKvHeads* kDim});
  TestTensor v_cache_ = k_cache_;
  TestTensor k_scale_, v_scale_;  // of a cache of i8

  void UseCacheOf(DType format) {
    k_cache_ = v_cache_ = Zeros(format, {kSlots, kKvHeads * kDim});
    k_scale_ = v_scale_ = {};
    if (format != DType::kI8) return;
    k_scale_ = v_scale_ =
        Zeros(DType::kF32, {kSlots, kKvHeads * kDim / attributes_.Int("head_dim")});
  }

  // Returns keys or values as a cache of that format stores them: each head is rounded by itself.
  static void Round(DType format, TestTensor* rows) {
    for (int64_t head = 0; head < rows->size() / kDim; ++head) {
      float* x = rows->as<float>() + head * kDim;
      float largest = 0;
      for (int64_t d = 0; d < kDim; ++d) largest = std::max(largest, std::fabs(x[d]));
      for (int64_t d = 0; d < kDim; ++d) {
        if (format == DType::kBF16) x[d] = BF16ToF32(F32ToBF16(x[d]));
        if (format == DType::kF16) x[d] = F16ToF32(F32ToF16(x[d]));
        if (format == DType::kI8 && largest > 0) {
          x[d] = std::nearbyint(x[d] / (largest / 127)) * (largest / 127);
        }
      }
    }
  }

  std::vector<TestTensor> Batch(const std::vector<Row>& rows,
                                const std::vector<std::vector<int>>& sequences) {
    std::vector<int32_t> slots, sequence, prefix, start = {0}, ancestors, sequence_start = {0},
                                                  sequence_slots;
    for (const Row& row : rows) {
      slots.push_back(row.slot);
      sequence.push_back(row.sequence);
      prefix.push_back(row.prefix);
      ancestors.insert(ancestors.end(), row.ancestors.begin(), row.ancestors.end());
      start.push_back(static_cast<int>(ancestors.size()));
    }
    for (const std::vector<int>& list : sequences) {
      sequence_slots.insert(sequence_slots.end(), list.begin(), list.end());
      sequence_start.push_back(static_cast<int>(sequence_slots.size()));
    }
    const auto ints = [](const std::vector<int32_t>& values) {
      return I32({static_cast<int64_t>(values.size())}, values);
    };
    return {Rows(rows, kHeads * kDim, 1),
            Rows(rows, kKvHeads * kDim, 2),
            Rows(rows, kKvHeads * kDim, 3),
            k_cache_,
            v_cache_,
            ints(slots),
            ints(sequence),
            ints(prefix),
            ints(start),
            ints(ancestors),
            ints(sequence_start),
            ints(sequence_slots)};
  }

  Attributes attributes_ = {{"head_dim", kDim}};
  std::vector<float> slopes_;

  KernelStatus TryStep(std::vector<TestTensor> inputs, TestTensor* y) {
    std::vector<TestTensor> outputs;
    if (!slopes_.empty()) inputs.push_back(F32({kHeads}, slopes_));
    const bool scaled = k_scale_.present();
    if (scaled) {
      inputs.resize(13);
      inputs.push_back(k_scale_);
      inputs.push_back(v_scale_);
    }
    const KernelStatus status =
        Ops().TryRun("paged_attention", attributes_, &inputs, &outputs, {.batch_invariant = true});
    k_cache_ = inputs[3];
    v_cache_ = inputs[4];
    if (scaled) k_scale_ = inputs[13];
    if (scaled) v_scale_ = inputs[14];
    if (status.ok()) *y = outputs[0];
    return status;
  }

  TestTensor Step(const std::vector<Row>& rows, const std::vector<std::vector<int>>& sequences) {
    TestTensor y;
    const KernelStatus status = TryStep(Batch(rows, sequences), &y);
    EXPECT_TRUE(status.ok()) << status.error;
    return y;
  }

  // Returns the expected row r of y: ordinary attention of the last token of `path` over the path.
  static std::vector<float> FullAttention(const std::vector<int>& path) {
    std::vector<Row> rows;
    for (int token : path) rows.push_back({token, 0, 0, 0, {}});
    TestTensor q = Rows(rows, kHeads * kDim, 1), k = Rows(rows, kKvHeads * kDim, 2),
               v = Rows(rows, kKvHeads * kDim, 3);
    for (TestTensor* tensor : {&q, &k, &v}) {
      tensor->type.dims.insert(tensor->type.dims.begin(), 1);
    }
    const TestTensor y =
        Ops().Run("attention", {{"head_dim", kDim}, {"causal", true}}, {q, k, v})[0];
    const float* last = y.as<float>() + (path.size() - 1) * kHeads * kDim;
    return std::vector<float>(last, last + kHeads * kDim);
  }

  // The same from the definition, with scale, softcap, ALiBi and window.
  std::vector<double> ByDefinition(const std::vector<int>& path) const {
    std::vector<Row> rows;
    for (int token : path) rows.push_back({token, 0, 0, 0, {}});
    const TestTensor q = Rows(rows, kHeads * kDim, 1), k = Rows(rows, kKvHeads * kDim, 2),
                     v = Rows(rows, kKvHeads * kDim, 3);
    const int64_t n = static_cast<int64_t>(path.size()), window = attributes_.Int("window");
    const int64_t first = window > 0 ? std::max<int64_t>(0, n - window) : 0;
    const double cap = attributes_.Float("softcap");
    const double scale = attributes_.Float("scale", 1 / std::sqrt(static_cast<double>(kDim)));
    std::vector<double> y(kHeads * kDim);
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t kv = h / (kHeads / kKvHeads) * kDim;
      double total = 0;
      for (int64_t j = first; j < n; ++j) {
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d) {
          score += static_cast<double>(q.at((n - 1) * kHeads * kDim + h * kDim + d)) *
                   k.at(j * kKvHeads * kDim + kv + d);
        }
        score *= scale;
        if (cap > 0) score = cap * std::tanh(score / cap);
        if (!slopes_.empty() && attributes_.String("alibi") == "bf16") {
          score += BF16ToF32(F32ToBF16(BF16ToF32(F32ToBF16(slopes_[h])) *
                                       BF16ToF32(F32ToBF16(static_cast<float>(j))))) *
                   scale;
        } else if (!slopes_.empty()) {
          score += slopes_[h] * static_cast<double>(j - (n - 1));
        }
        total += std::exp(score);
        for (int64_t d = 0; d < kDim; ++d) {
          y[h * kDim + d] += std::exp(score) * v.at(j * kKvHeads * kDim + kv + d);
        }
      }
      for (int64_t d = 0; d < kDim; ++d) y[h * kDim + d] /= total;
    }
    return y;
  }

  static void ExpectRow(const TestTensor& y, int row, const std::vector<int>& path) {
    const std::vector<float> expected = FullAttention(path);
    for (int64_t i = 0; i < kHeads * kDim; ++i) {
      EXPECT_NEAR(y.at(row * kHeads * kDim + i), expected[i], 1e-5) << "row " << row;
    }
  }

  static bool SameRow(const TestTensor& a, int row_a, const TestTensor& b, int row_b) {
    const size_t bytes = kHeads * kDim * sizeof(float);
    return std::memcmp(a.bytes.data() + row_a * bytes, b.bytes.data() + row_b * bytes, bytes) == 0;
  }
};

TEST_F(PagedAttention, PromptEqualsCausalAttention) {
  const std::vector<int> slots = {9, 2, 30, 4, 17};
  std::vector<Row> rows;
  for (int i = 0; i < 5; ++i) rows.push_back({i, slots[i], 0, i + 1, {}});
  const TestTensor y = Step(rows, {slots});
  std::vector<int> path;
  for (int i = 0; i < 5; ++i) {
    path.push_back(i);
    ExpectRow(y, i, path);
  }
}

TEST_F(PagedAttention, TreeNodeSeesPrefixAndAncestorsOnly) {
  Step({{0, 5, 0, 1, {}}, {1, 6, 0, 2, {}}}, {{5, 6}});
  // 0 1 -> 2 -> {3 -> 5, 4}
  const TestTensor y = Step({{2, 10, 0, 2, {10}},
                             {3, 11, 0, 2, {10, 11}},
                             {4, 12, 0, 2, {10, 12}},
                             {5, 13, 0, 2, {10, 11, 13}}},
                            {{5, 6}});
  ExpectRow(y, 0, {0, 1, 2});
  ExpectRow(y, 1, {0, 1, 2, 3});
  ExpectRow(y, 2, {0, 1, 2, 4});
  ExpectRow(y, 3, {0, 1, 2, 3, 5});
}

TEST_F(PagedAttention, IsBatchInvariantForSequenceAndTreeKeys) {
  for (const DType format : kFormats) {
    UseCacheOf(format);
    // The path 0..39 + 50: token by token, as one prompt, and with its end as a tree branch.
    std::vector<int> sequence;
    TestTensor single;
    for (int i = 0; i <= 40; ++i) {
      sequence.push_back(i);
      single = Step({{i == 40 ? 50 : i, i, 0, i + 1, {}}}, {sequence});
    }
    std::vector<Row> prompt;
    for (int i = 0; i <= 40; ++i) prompt.push_back({i == 40 ? 50 : i, i, 0, i + 1, {}});
    const TestTensor together = Step(prompt, {sequence});
    EXPECT_TRUE(SameRow(single, 0, together, 40)) << Name(format);
    for (const int cut : {5, 17, 32, 39}) {
      std::vector<Row> tree = {{77, 60, 1, 1, {}}};  // a row of another sequence in the same batch
      std::vector<int> branch;
      for (int i = cut; i <= 40; ++i) {
        branch.push_back(i);
        tree.push_back({i == 40 ? 50 : i, i, 0, cut, branch});
      }
      const TestTensor y =
          Step(tree, {std::vector<int>(sequence.begin(), sequence.begin() + cut), {60}});
      EXPECT_TRUE(SameRow(single, 0, y, static_cast<int>(tree.size()) - 1))
          << Name(format) << ", cut at " << cut;
    }
  }
}

// Rows that share a prefix, and heads that share keys, form blocks.
TEST_F(PagedAttention, PromptAndTreeRowsEqualSingleRowsBitForBit) {
  const std::vector<std::pair<Attributes, std::vector<float>>> variants = {
      {{{"head_dim", kDim}}, {}},
      {{{"head_dim", 2 * kDim}}, {}},
      {{{"head_dim", kDim}, {"window", int64_t{9}}, {"softcap", 0.8}},
       {0.5f, 0.07f, 0.003f, 1.0f / 3}}};
  for (const auto& [attributes, slopes] : variants) {
    attributes_ = attributes;
    slopes_ = slopes;
    for (const DType format : kFormats) {
      constexpr int kPrompt = 37, kNodes = 13;
      std::vector<int> sequence;
      std::vector<Row> prompt;
      for (int i = 0; i < kPrompt; ++i) {
        sequence.push_back((i * 23 + 5) % kSlots);
        prompt.push_back({i, sequence.back(), 0, i + 1, {}});
      }
      // Node n hangs on node (n - 1) / 3.
      std::vector<Row> tree;
      for (int n = 0; n < kNodes; ++n) {
        const int slot = ((kPrompt + n) * 23 + 5) % kSlots;
        std::vector<int> ancestors = n == 0 ? std::vector<int>() : tree[(n - 1) / 3].ancestors;
        ancestors.push_back(slot);
        tree.push_back({kPrompt + n, slot, 0, kPrompt, ancestors});
      }
      UseCacheOf(format);
      const TestTensor prompts = Step(prompt, {sequence}), trees = Step(tree, {sequence});
      UseCacheOf(format);
      for (int r = 0; r < kPrompt + kNodes; ++r) {
        const Row& row = r < kPrompt ? prompt[r] : tree[r - kPrompt];
        const TestTensor alone = Step({row}, {sequence});
        const bool same =
            r < kPrompt ? SameRow(alone, 0, prompts, r) : SameRow(alone, 0, trees, r - kPrompt);
        EXPECT_TRUE(same) << Name(format) << ", row " << r;
      }
    }
  }
}

// With windows, softcaps and ALiBi: rounding in the cache is the only difference.
TEST_F(PagedAttention, NarrowCacheEqualsAttentionOverRoundedKeysAndValues) {
  const std::vector<std::pair<Attributes, std::vector<float>>> variants = {
      {{{"head_dim", kDim}}, {}},
      {{{"head_dim", kDim}, {"window", int64_t{9}}, {"softcap", 0.8}},
       {0.5f, 0.07f, 0.003f, 1.0f / 3}}};
  for (const auto& [attributes, slopes] : variants) {
    attributes_ = attributes;
    slopes_ = slopes;
    std::vector<int> slots;
    std::vector<Row> prompt;
    for (int i = 0; i < 33; ++i) {
      slots.push_back((i * 23 + 5) % kSlots);
      prompt.push_back({i, slots.back(), 0, i + 1, {}});
    }
    UseCacheOf(DType::kF32);
    const TestTensor unrounded = Step(prompt, {slots});
    for (const DType format : kFormats) {
      UseCacheOf(DType::kF32);
      std::vector<TestTensor> batch = Batch(prompt, {slots});
      Round(format, &batch[1]);
      Round(format, &batch[2]);
      TestTensor expected;
      ASSERT_TRUE(TryStep(std::move(batch), &expected).ok());
      UseCacheOf(format);
      const TestTensor y = Step(prompt, {slots});
      for (int64_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y.at(i), expected.at(i), format == DType::kI8 ? 1e-6 : 0) << Name(format);
      }
      EXPECT_EQ(format != DType::kF32, y.bytes != unrounded.bytes) << Name(format);
    }
  }
}

// NaN propagates, even through an int8 cache, and only to rows that see it.
TEST_F(PagedAttention, ZerosStayAndNanReachesOnlyRowsThatSeeIt) {
  for (const DType format : kFormats) {
    UseCacheOf(format);
    std::vector<TestTensor> batch =
        Batch({{0, 5, 0, 1, {}}, {1, 6, 0, 2, {}}, {2, 7, 1, 1, {}}}, {{5, 6}, {7}});
    std::fill_n(batch[1].as<float>(), kKvHeads * kDim, 0.0f);
    std::fill_n(batch[2].as<float>(), kKvHeads * kDim, 0.0f);
    batch[2].as<float>()[kKvHeads * kDim + 3] = std::nanf("");  // row 1, head 0, element 3
    TestTensor y;
    ASSERT_TRUE(TryStep(std::move(batch), &y).ok());
    for (int64_t i = 0; i < kHeads * kDim; ++i) {
      EXPECT_EQ(y.at(i), 0) << Name(format);
      EXPECT_FALSE(std::isnan(y.at(2 * kHeads * kDim + i))) << Name(format);
    }
    EXPECT_TRUE(std::isnan(y.at(kHeads * kDim + 3))) << Name(format);
    EXPECT_FALSE(std::isnan(y.at(kHeads * kDim + kHeads / kKvHeads * kDim))) << Name(format);
  }
}

TEST_F(PagedAttention, OnlyInt8CachesHaveScales) {
  std::vector<TestTensor> inputs = Batch({{0, 5, 0, 1, {}}}, {{5}});
  inputs[3] = inputs[4] = Zeros(DType::kI8, {kSlots, kKvHeads * kDim});
  EXPECT_EQ(Ops().InferError("paged_attention", attributes_, inputs),
            "paged_attention: input 'k_scale' is missing; a cache of i8 has scales");
  inputs.resize(13);
  inputs.push_back(Zeros(DType::kF32, {kSlots, kKvHeads}));
  inputs.push_back(Zeros(DType::kF32, {kSlots, kKvHeads + 1}));
  EXPECT_EQ(Ops().InferError("paged_attention", attributes_, inputs),
            "paged_attention: input 'v_scale' has shape [64, 3], expected [64, 2] because "
            "'k_cache' has 64 slots of 2 heads");
  inputs[3] = inputs[4] = Zeros(DType::kF16, {kSlots, kKvHeads * kDim});
  EXPECT_EQ(Ops().InferError("paged_attention", attributes_, inputs),
            "paged_attention: input 'k_scale' is given; a cache of f16 has no scales");
}

// Windows and ALiBi depend on positions, not on slots or on sequence versus tree.
TEST_F(PagedAttention, WindowSoftcapAndAlibiFollowTheirDefinitions) {
  const std::vector<float> slopes = {0.5f, 0.07f, 0.003f, 1.0f / 3};
  const std::vector<std::pair<Attributes, std::vector<float>>> variants = {
      {{{"head_dim", kDim}, {"window", int64_t{7}}}, {}},
      {{{"head_dim", kDim}, {"window", int64_t{1}}}, {}},
      {{{"head_dim", kDim}, {"softcap", 0.4}, {"scale", 0.9}}, {}},
      {{{"head_dim", kDim}}, slopes},
      {{{"head_dim", kDim}, {"alibi", std::string("bf16")}}, slopes},
      {{{"head_dim", kDim}, {"window", int64_t{20}}, {"softcap", 1.0}}, slopes},
      {{{"head_dim", kDim}, {"window", int64_t{5}}, {"alibi", std::string("bf16")}}, slopes},
  };
  for (const auto& [attributes, given] : variants) {
    attributes_ = attributes;
    slopes_ = given;
    std::vector<int> slots, path;
    std::vector<Row> prompt;
    for (int i = 0; i < 33; ++i) {
      slots.push_back((i * 23 + 5) % kSlots);
      prompt.push_back({i, slots.back(), 0, i + 1, {}});
    }
    const TestTensor whole = Step(prompt, {slots});
    for (int i = 0; i < 33; ++i) {
      path.push_back(i);
      const std::vector<double> expected = ByDefinition(path);
      for (int64_t e = 0; e < kHeads * kDim; ++e) {
        ASSERT_NEAR(whole.at(i * kHeads * kDim + e), expected[e], 1e-5) << "row " << i;
      }
    }
    // The window's start in the sequence, at its end, and within the branch.
    for (const int cut : {32, 28, 25, 13}) {
      std::vector<Row> tree;
      std::vector<int> branch;
      for (int i = cut; i < 33; ++i) {
        branch.push_back(slots[i]);
        tree.push_back({i, slots[i], 0, cut, branch});
      }
      const TestTensor y = Step(tree, {std::vector<int>(slots.begin(), slots.begin() + cut)});
      for (int i = cut; i < 33; ++i) EXPECT_TRUE(SameRow(whole, i, y, i - cut)) << cut;
    }
  }
}

TEST_F(PagedAttention, BadIndicesAreNamedAndLeaveTheCacheAlone) {
  const std::vector<Row> good = {{0, 5, 0, 1, {}}, {1, 6, 0, 1, {5, 6}}};
  const TestTensor before = k_cache_;
  const auto error_of = [&](int input, int element, int value) {
    std::vector<TestTensor> batch = Batch(good, {{5}});
    batch[input].as<int32_t>()[element] = value;
    TestTensor y;
    const std::string error = TryStep(std::move(batch), &y).error;
    EXPECT_EQ(k_cache_.bytes, before.bytes);
    return error;
  };
  EXPECT_EQ(error_of(5, 1, 64), "paged_attention: row 1: 'slots' is 64, expected 0 to 63");
  EXPECT_EQ(error_of(5, 0, -1), "paged_attention: row 0: 'slots' is -1, expected 0 to 63");
  EXPECT_EQ(error_of(6, 1, 1), "paged_attention: row 1: 'row_sequence' is 1, expected 0 to 0");
  EXPECT_EQ(error_of(7, 0, 2), "paged_attention: row 0: 'row_prefix' is 2, expected 0 to 1");
  EXPECT_EQ(
      error_of(8, 2, 3),
      "paged_attention: row 1: its ancestors are ancestor_slots[0, 3), expected a part of [0, 2)");
  EXPECT_EQ(error_of(9, 0, 99),
            "paged_attention: row 1: ancestor_slots[0] is 99, expected 0 to 63");
  EXPECT_EQ(
      error_of(10, 1, 7),
      "paged_attention: row 0: sequence 0 covers sequence_slots[0, 7), expected a part of [0, 1)");
  EXPECT_EQ(error_of(11, 0, -3),
            "paged_attention: sequence 0: sequence_slots[0] is -3, expected 0 to 63");
}

TEST_F(PagedAttention, RowWithoutKeysIsZeroAndEmptyBatchIsValid) {
  const TestTensor y = Step({{0, 5, 0, 0, {}}}, {{}});
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y.at(i), 0);
  EXPECT_EQ(Step({}, {}).size(), 0);
}

}  // namespace
}  // namespace espalier
