// Runs the paged attention kernel without a GPU: tests its results, and that they do not depend on
// the batch or on how blocks split the keys.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/attention/paged_attention_kernel.cuh"
#include "tests/gpu/mixed_batch.h"

namespace espalier::gpu_check {
namespace {

using namespace cuda_paged_attention;

template <typename C>
C Cached(float x) {
  if constexpr (std::is_same_v<C, int8_t>) {
    return static_cast<int8_t>(std::lround(100 * x));
  } else {
    return FromFloat<C>(x);
  }
}
template <typename C>
double ValueOf(C x) {
  if constexpr (std::is_same_v<C, int8_t>) {
    return x;
  } else {
    return ToFloat(x);
  }
}

// Queries, and a KV cache that holds all keys and values.
template <typename C>
struct Inputs {
  MixedAttention how;
  std::vector<float> q, k_scale, v_scale;  // scales only for int8
  std::vector<C> k, v;

  Inputs(const MixedAttention& attention, const MixedBatch& batch) : how(attention) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto slots = static_cast<size_t>(batch.cache_slots);
    const auto kv_heads = static_cast<size_t>(how.kv_heads);
    q.resize(static_cast<size_t>(batch.rows() * how.heads * how.dim));
    for (float& x : q) x = uniform(random);
    for (std::vector<C>* cache : {&k, &v}) {
      cache->resize(slots * kv_heads * static_cast<size_t>(how.dim));
      for (C& x : *cache) x = Cached<C>(uniform(random));
    }
    if (!std::is_same_v<C, int8_t>) return;
    for (std::vector<float>* scales : {&k_scale, &v_scale}) {
      scales->resize(slots * kv_heads);
      for (float& x : *scales) x = 0.01f * (1.5f + uniform(random));
    }
  }
};

struct Result {
  std::string error;
  std::vector<float> y;
  FaultRecord fault;
};

// Runs attention of the batch's rows, whose queries begin at index `first`, with `parts` blocks per
// tile.
template <typename C>
Result Attend(const Inputs<C>& in, const MixedBatch& batch, int first, int parts) {
  const MixedAttention& how = in.how;
  const int64_t rows = batch.rows(), groups = 8;
  Result result;
  result.y.assign(static_cast<size_t>(rows * how.heads * how.dim), -7e30f);
  std::vector<float> partials(static_cast<size_t>(rows * how.heads * groups * (how.dim + 2)));
  int32_t claimed = 0;
  const auto heads =
      QueryTile::Heads::Of(static_cast<int>(how.heads), static_cast<int>(how.kv_heads));
  std::vector<uint32_t> arrivals(static_cast<size_t>(rows * heads.TilesOfRow()));
  const Attention<float, C> attention{
      in.q.data() + first * how.heads * how.dim,
      in.k.data(),
      in.v.data(),
      {in.k_scale.data(), in.v_scale.data()},
      result.y.data(),
      {partials.data(), groups, arrivals.data()},
      {batch.slots.data(), batch.row_sequence.data(), batch.row_prefix.data(),
       batch.ancestor_start.data(), batch.ancestor_slots.data(), batch.sequence_start.data(),
       batch.sequence_slots.data(), rows, batch.cache_slots,
       static_cast<int64_t>(batch.sequence_start.size()) - 1,
       static_cast<int64_t>(batch.ancestor_slots.size()),
       static_cast<int64_t>(batch.sequence_slots.size()), FaultSink{&claimed, &result.fault}},
      heads,
      static_cast<int>(how.kv_heads),
      static_cast<int>(how.dim),
      {1 / std::sqrt(static_cast<float>(how.dim)), how.softcap, nullptr, false, how.window}};
  const auto launch = [&](auto dim, auto whole) {
    constexpr int kDim = decltype(dim)::value;
    result.error = emulation::Launch(
        {static_cast<uint32_t>(arrivals.size()), static_cast<uint32_t>(parts), 1}, kBlock,
        SharedMemoryLayout<kDim>::kAll,
        [&] { PagedAttentionKernel<float, C, kDim, decltype(whole)::value>(attention); });
  };
  if (how.dim % 8 != 0) {
    launch(std::integral_constant<int, kMaxDim>(), std::false_type());
  } else if (how.dim <= 64) {
    launch(std::integral_constant<int, 64>(), std::true_type());
  } else if (how.dim <= 128) {
    launch(std::integral_constant<int, 128>(), std::true_type());
  } else {
    launch(std::integral_constant<int, kMaxDim>(), std::true_type());
  }
  for (uint32_t count : arrivals) EXPECT_EQ(count, 0u) << "counters are to be zeros again";
  return result;
}

// The reference, in double, from the definition of the tables.
template <typename C>
std::vector<double> Reference(const Inputs<C>& in, const MixedBatch& b) {
  const MixedAttention& how = in.how;
  std::vector<double> y;
  for (size_t r = 0; r < b.slots.size(); ++r) {
    const auto sequence = b.sequence_slots.begin() + b.sequence_start[b.row_sequence[r]];
    std::vector<int32_t> slots(sequence, sequence + b.row_prefix[r]);
    slots.insert(slots.end(), b.ancestor_slots.begin() + b.ancestor_start[r],
                 b.ancestor_slots.begin() + b.ancestor_start[r + 1]);
    if (how.window > 0 && static_cast<int64_t>(slots.size()) > how.window) {
      slots.erase(slots.begin(), slots.end() - how.window);
    }
    for (int64_t h = 0; h < how.heads; ++h) {
      const int64_t kv = h / (how.heads / how.kv_heads);
      const float* const q = in.q.data() + (static_cast<int64_t>(r) * how.heads + h) * how.dim;
      std::vector<double> sums(static_cast<size_t>(how.dim));
      double total = 0;
      for (int32_t slot : slots) {
        const int64_t head = slot * how.kv_heads + kv;
        double dot = 0;
        for (int64_t d = 0; d < how.dim; ++d) dot += q[d] * ValueOf(in.k[head * how.dim + d]);
        if (!in.k_scale.empty()) dot *= in.k_scale[head];
        dot /= std::sqrt(static_cast<double>(how.dim));
        if (how.softcap > 0) dot = how.softcap * std::tanh(dot / how.softcap);
        const double weight = std::exp(dot);
        total += weight;
        const double scale = in.v_scale.empty() ? 1 : in.v_scale[head];
        for (int64_t d = 0; d < how.dim; ++d) {
          sums[d] += weight * scale * ValueOf(in.v[head * how.dim + d]);
        }
      }
      for (double sum : sums) y.push_back(sum / total);
    }
  }
  return y;
}

template <typename C>
void Check(const MixedAttention& how) {
  const MixedBatch batch = MixedBatch::Make();
  Inputs<C> in(how, batch);
  const Result together = Attend(in, batch, 0, 1);
  ASSERT_EQ(together.error, "");
  EXPECT_EQ(together.fault.kind, FaultKind::kNone);
  const std::vector<double> reference = Reference(in, batch);
  for (size_t i = 0; i < reference.size(); ++i) {
    ASSERT_NEAR(together.y[i], reference[i], 2e-6) << "element " << i;
  }
  // Split-KV, also with more blocks than groups of keys.
  const Result shared = Attend(in, batch, 0, 3);
  ASSERT_EQ(shared.error, "");
  ASSERT_EQ(shared.y, together.y);
  const auto row_size = static_cast<size_t>(how.heads * how.dim);
  const auto row_of = [&](const Result& result, int i) {
    const auto begin = result.y.begin() + static_cast<std::ptrdiff_t>(row_size) * i;
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(row_size));
  };
  for (int i = 0; i < batch.rows(); i += 9) {
    const Result alone = Attend(in, batch.Row(i), i, 1);
    ASSERT_EQ(alone.error, "");
    ASSERT_EQ(alone.y, row_of(together, i)) << "row " << i;
  }
  if constexpr (std::is_same_v<C, int8_t>) return;
  // Only the last of the first sequence's 37 rows sees its own value.
  const auto width = static_cast<size_t>(how.kv_heads * how.dim);
  for (size_t e = 0; e < width; ++e) {
    in.v[static_cast<size_t>(batch.slots[36]) * width + e] =
        Cached<C>(std::numeric_limits<float>::infinity());
  }
  const Result spoilt = Attend(in, batch, 0, 1);
  for (int i = 0; i < batch.rows(); ++i) {
    if (i == 36) continue;
    ASSERT_EQ(row_of(spoilt, i), row_of(together, i)) << "row " << i;
  }
  EXPECT_FALSE(std::isfinite(spoilt.y[36 * row_size]));
}

class EmulatedAttention : public testing::TestWithParam<MixedAttention> {};

TEST_P(EmulatedAttention, MatchesReferenceAndIsBatchInvariant) {
  switch (GetParam().cache) {
    case DType::kBF16:
      return Check<__nv_bfloat16>(GetParam());
    case DType::kF16:
      return Check<__half>(GetParam());
    case DType::kI8:
      return Check<int8_t>(GetParam());
    default:
      return Check<float>(GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(All, EmulatedAttention, testing::ValuesIn(kMixedAttentions));

TEST(EmulatedAttentionFaults, TablesThatAreOutOfRangeAreReported) {
  const MixedAttention how{DType::kF32, 4, 2, 64, 0};
  const MixedBatch good = MixedBatch::Make();
  const Inputs<float> in(how, good);
  MixedBatch batch = good;
  batch.sequence_slots[3] = batch.cache_slots;
  Result result = Attend(in, batch, 0, 1);
  EXPECT_EQ(result.fault.kind, FaultKind::kCacheSlot);
  EXPECT_EQ(result.fault.value, batch.cache_slots);
  batch = good;
  batch.row_prefix[5] = 10000;
  result = Attend(in, batch, 0, 1);
  EXPECT_EQ(result.fault.kind, FaultKind::kSequence);
  EXPECT_EQ(result.fault.row, 5);
  // That row sees no key; the other rows are unchanged.
  const Result right = Attend(in, good, 0, 1);
  for (size_t i = 0; i < right.y.size(); ++i) {
    ASSERT_EQ(result.y[i], i / (4 * 64) == 5 ? 0.0f : right.y[i]) << "element " << i;
  }
}

TEST(SimtEmulator, DivergentBarrierIsAnError) {
  EXPECT_EQ(emulation::Launch({1, 1, 1}, 64, 0, [] { __syncthreads(); }), "");
  // A barrier does not wait for threads that have returned.
  EXPECT_EQ(emulation::Launch({1, 1, 1}, 64, 0,
                              [] {
                                if (threadIdx.x < 32) __syncthreads();
                              }),
            "");
  EXPECT_NE(emulation::Launch({1, 1, 1}, 32, 0,
                              [] {
                                if (threadIdx.x == 0) {
                                  __syncthreads();
                                } else {
                                  __syncwarp();
                                }
                              }),
            "");
}

}  // namespace
}  // namespace espalier::gpu_check
