// Attention over the paged KV cache. One block per row and query head; key number j of the row's
// list (prefix, then ancestors) always falls to the same warp at the same place of the same sums:
// the bits do not depend on the batch, on the slots, or on whether a key comes through the sequence
// or as an ancestor in a tree. Softmax is computed online (Milakov and Gimelshein 2018), the warps'
// parts merged in order.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"
#include "ops/kernel/paged_attention_inputs.h"

namespace espalier {
namespace cuda_paged_attention {

using namespace paged_attention;

constexpr int kWarps = 4;
constexpr int kKeysAtOnce = 4;  // of one warp
constexpr int kMostDim = 256;

// What happens to scaled products.
struct Scores {
  float scale, softcap;  // softcap 0: none
  const float* slopes;   // null: no ALiBi
  bool alibi_bf16;
  int64_t window;  // 0: all keys

  // With key number j of `size`, before which `first` lie outside the window.
  __device__ float Of(float dot, int head, int64_t j, int64_t size, int64_t first) const {
    float score = dot * scale;
    if (softcap > 0) score = softcap * tanhf(score / softcap);
    if (slopes == nullptr) return score;
    const float slope = slopes[head];
    if (!alibi_bf16) return score + slope * static_cast<float>(j - (size - 1));
    const auto round = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
    return score + round(round(slope) * round(static_cast<float>(first + j))) * scale;
  }
};

// The batch's tables and their sizes.
struct Batch {
  const int32_t* slots;
  const int32_t* row_sequence;
  const int32_t* row_prefix;
  const int32_t* ancestor_start;
  const int32_t* ancestor_slots;
  const int32_t* sequence_start;
  const int32_t* sequence_slots;
  int64_t rows, cache_slots, sequences, ancestors, context;
  FaultSink faults;
};

// The keys that one row sees; none after a fault in the tables.
struct Keys {
  const int32_t* prefix;
  const int32_t* ancestors;
  int64_t prefix_size, size;
  int64_t first;  // position of key 0: how many lie before the window

  __device__ void KeepWindow(int64_t window) {
    if (window <= 0 || size <= window) return;
    first = size - window;
    const int64_t of_prefix = first < prefix_size ? first : prefix_size;
    prefix += of_prefix;
    prefix_size -= of_prefix;
    ancestors += first - of_prefix;
    size = window;
  }

  __device__ static Keys Of(const Batch& b, int64_t row) {
    const Keys none{nullptr, nullptr, 0, 0, 0};
    const int64_t sequence = b.row_sequence[row];
    if (sequence < 0 || sequence >= b.sequences) {
      b.faults.Report(FaultKind::kSequence, row, sequence, b.sequences);
      return none;
    }
    const int64_t start = b.sequence_start[sequence], end = b.sequence_start[sequence + 1];
    const int64_t prefix = b.row_prefix[row];
    if (start < 0 || end < start || end > b.context || prefix < 0 || prefix > end - start) {
      b.faults.Report(FaultKind::kSequence, row, prefix, end - start);
      return none;
    }
    const int64_t first = b.ancestor_start[row], last = b.ancestor_start[row + 1];
    if (first < 0 || last < first || last > b.ancestors) {
      b.faults.Report(FaultKind::kSequence, row, last, b.ancestors);
      return none;
    }
    return {b.sequence_slots + start, b.ancestor_slots + first, prefix, prefix + last - first, 0};
  }

  __device__ int64_t Slot(const Batch& b, int64_t row, int64_t j) const {
    const int64_t slot = j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
    if (slot >= 0 && slot < b.cache_slots) return slot;
    b.faults.Report(FaultKind::kCacheSlot, row, slot, b.cache_slots);
    return 0;
  }
};

template <typename C>
__device__ __forceinline__ float Wide(C x) {
  if constexpr (std::is_same_v<C, int8_t>) {
    return static_cast<float>(x);
  } else {
    return ToFloat(x);
  }
}

// Element i is element i of k and of v.
template <typename T, typename C>
struct StoreKeyValue {
  const T* k;
  const T* v;
  C* k_cache;
  C* v_cache;
  int64_t width;
  Batch batch;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / width, slot = batch.slots[row];
    if (slot < 0 || slot >= batch.cache_slots) {
      batch.faults.Report(FaultKind::kCacheSlot, row, slot, batch.cache_slots);
      return;
    }
    const int64_t at = slot * width + i % width;
    k_cache[at] = FromFloat<C>(ToFloat(k[i]));
    v_cache[at] = FromFloat<C>(ToFloat(v[i]));
  }
};

// Item i is head i % heads of row i / heads. Each is divided by its scale, a 127th of its largest
// magnitude, and rounded; one that is not finite, or too small for that, is zeros.
template <typename T>
struct StoreScaled {
  const T* x;
  int8_t* cache;
  float* scales;
  int64_t heads;
  int dim;
  Batch batch;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / heads, head = i % heads, slot = batch.slots[row];
    if (slot < 0 || slot >= batch.cache_slots) {
      batch.faults.Report(FaultKind::kCacheSlot, row, slot, batch.cache_slots);
      return;
    }
    const T* from = x + i * dim;
    float largest = 0;
    for (int d = 0; d < dim; ++d) {
      const float magnitude = fabsf(ToFloat(from[d]));
      if (!(magnitude <= largest)) largest = magnitude;
      if (isnan(magnitude)) break;
    }
    const float scale = largest / 127;
    const bool usable = isfinite(largest) && scale >= FLT_MIN;
    const float inverse = usable ? 1 / scale : 0.0f;
    scales[slot * heads + head] = scale;
    int8_t* to = cache + (slot * heads + head) * dim;
    for (int d = 0; d < dim; ++d) {
      to[d] = usable ? static_cast<int8_t>(rintf(ToFloat(from[d]) * inverse)) : int8_t{0};
    }
  }
};

// What the numbers of a slot's head are multiplied by, if the cache has scales; null: it has none.
struct CacheScales {
  const float* k;
  const float* v;
};

// The elements of a head that one lane holds: kPerLane neighbours.
template <typename C, int kPerLane>
struct alignas(sizeof(C) * kPerLane < 16 ? sizeof(C) * kPerLane : 16) LaneElements {
  C value[kPerLane];
};

// `whole`: dim is 32 * kPerLane and rows are aligned, so that a lane reads its elements at once.
template <typename C, int kPerLane, bool whole>
__device__ __forceinline__ void LoadLane(const C* head, int lane, int dim, float* out) {
  if constexpr (whole) {
    const auto elements = reinterpret_cast<const LaneElements<C, kPerLane>*>(head)[lane];
#pragma unroll
    for (int c = 0; c < kPerLane; ++c) out[c] = Wide(elements.value[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kPerLane; ++c) {
      const int d = lane * kPerLane + c;
      out[c] = d < dim ? Wide(head[d]) : 0.0f;
    }
  }
}

template <typename T, typename C, int kPerLane, bool whole>
__global__ void __launch_bounds__(32 * kWarps)
    AttendKernel(const T* q, const C* k_cache, const C* v_cache, CacheScales scales, T* y,
                 Batch batch, int heads, int kv_heads, int dim, Scores how) {
  __shared__ float part_most[kWarps], part_sum[kWarps];
  __shared__ float part_values[kWarps][kMostDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x / heads;
  const int head = static_cast<int>(blockIdx.x % heads);
  const int kv = head / (heads / kv_heads);
  const int64_t width = static_cast<int64_t>(kv_heads) * dim;
  const int64_t q_at = (row * heads + head) * dim;
  Keys keys = Keys::Of(batch, row);
  keys.KeepWindow(how.window);

  float query[kPerLane];
  LoadLane<T, kPerLane, false>(q + q_at, lane, dim, query);
  float most = -INFINITY, sum = 0;
  float values[kPerLane] = {};
  for (int64_t j0 = warp * kKeysAtOnce; j0 < keys.size; j0 += kWarps * kKeysAtOnce) {
    int64_t at[kKeysAtOnce];
    float scores[kKeysAtOnce], value_scale[kKeysAtOnce];
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      // Beyond the last key the first one is read again and given no weight.
      const int64_t j = j0 + u < keys.size ? j0 + u : j0;
      const int64_t slot = keys.Slot(batch, row, j);
      at[u] = slot * width + kv * dim;
      float key[kPerLane];
      LoadLane<C, kPerLane, whole>(k_cache + at[u], lane, dim, key);
      float dot = 0;
#pragma unroll
      for (int c = 0; c < kPerLane; ++c) dot = fmaf(query[c], key[c], dot);
      if constexpr (std::is_same_v<C, int8_t>) {
        dot *= scales.k[slot * kv_heads + kv];
        value_scale[u] = scales.v[slot * kv_heads + kv];
      } else {
        value_scale[u] = 1;
      }
      scores[u] = dot;
    }
    float next = most;
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      scores[u] = how.Of(WarpReduce<SumOp>(scores[u]), head, j0 + u, keys.size, keys.first);
      if (j0 + u >= keys.size) scores[u] = -INFINITY;
      next = fmaxf(next, scores[u]);
    }
    const float shrink = expf(most - next);
    most = next;
    sum *= shrink;
#pragma unroll
    for (int c = 0; c < kPerLane; ++c) values[c] *= shrink;
#pragma unroll
    for (int u = 0; u < kKeysAtOnce; ++u) {
      const float weight = expf(scores[u] - most);
      sum += weight;
      float value[kPerLane];
      LoadLane<C, kPerLane, whole>(v_cache + at[u], lane, dim, value);
      // A key beyond the last has weight 0, but 0 times an infinity would be NaN.
      if (j0 + u < keys.size) {
#pragma unroll
        for (int c = 0; c < kPerLane; ++c) {
          values[c] = fmaf(weight * value_scale[u], value[c], values[c]);
        }
      }
    }
  }

  if (lane == 0) {
    part_most[warp] = most;
    part_sum[warp] = sum;
  }
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) {
    const int d = lane * kPerLane + c;
    if (d < dim) part_values[warp][d] = values[c];
  }
  __syncthreads();
  float top = -INFINITY;
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, part_most[w]);
  for (int d = threadIdx.x; d < dim; d += 32 * kWarps) {
    float total = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w * kKeysAtOnce >= keys.size) break;  // this warp had no key
      const float weight = expf(part_most[w] - top);
      total = fmaf(weight, part_sum[w], total);
      value = fmaf(weight, part_values[w][d], value);
    }
    y[q_at + d] = FromFloat<T>(keys.size > 0 ? value / total : 0.0f);
  }
}

struct Shape {
  int64_t rows, width;
  int heads, kv_heads, dim;
  Scores scores;
  CacheScales cache_scales;
};

template <typename T, typename C, int kPerLane, bool whole>
KernelStatus Launch(const KernelArgs& args, const Batch& batch, const Shape& s) {
  AttendKernel<T, C, kPerLane, whole>
      <<<static_cast<unsigned>(s.rows * s.heads), 32 * kWarps, 0, StreamOf(args)>>>(
          args.inputs[kQ].as<T>(), args.inputs[kKCache].as<C>(), args.inputs[kVCache].as<C>(),
          s.cache_scales, args.outputs[0].as<T>(), batch, s.heads, s.kv_heads, s.dim, s.scores);
  return LaunchStatus("paged_attention");
}

bool Aligned(const TensorView& view) { return reinterpret_cast<uintptr_t>(view.data) % 16 == 0; }

template <typename T, typename C>
KernelStatus Store(const KernelArgs& args, const Batch& batch, const Shape& s) {
  if constexpr (std::is_same_v<C, int8_t>) {
    const auto store = [&](Input from, Input to, Input scale) {
      const StoreScaled<T> each{args.inputs[from].as<T>(),
                                args.inputs[to].as<C>(),
                                args.inputs[scale].as<float>(),
                                s.kv_heads,
                                s.dim,
                                batch};
      return ForEach(s.rows * s.kv_heads, each, StreamOf(args), "paged_attention");
    };
    ESPALIER_KERNEL_RETURN_IF_ERROR(store(kK, kKCache, kKScale));
    return store(kV, kVCache, kVScale);
  } else {
    const StoreKeyValue<T, C> store{args.inputs[kK].as<T>(),
                                    args.inputs[kV].as<T>(),
                                    args.inputs[kKCache].as<C>(),
                                    args.inputs[kVCache].as<C>(),
                                    s.width,
                                    batch};
    return ForEach(s.rows * s.width, store, StreamOf(args), "paged_attention");
  }
}

template <typename T, typename C>
KernelStatus RunFor(const KernelArgs& args, const Batch& batch, const Shape& s) {
  ESPALIER_KERNEL_RETURN_IF_ERROR((Store<T, C>(args, batch, s)));
  if (!args.outputs[0].present() || s.rows == 0) return KernelStatus::Ok();
  const bool aligned = Aligned(args.inputs[kKCache]) && Aligned(args.inputs[kVCache]);
  if (s.dim == 64 && aligned) return Launch<T, C, 2, true>(args, batch, s);
  if (s.dim == 128 && aligned) return Launch<T, C, 4, true>(args, batch, s);
  if (s.dim <= 64) return Launch<T, C, 2, false>(args, batch, s);
  if (s.dim <= 128) return Launch<T, C, 4, false>(args, batch, s);
  return Launch<T, C, 8, false>(args, batch, s);
}

KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args, int64_t dim, Scores scores) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const auto table = [&](Input i) { return args.inputs[i].as<int32_t>(); };
  const auto size = [&](Input i) { return args.inputs[i].dims()[0]; };
  const Batch batch{
      table(kSlots),         table(kRowSequence),      table(kRowPrefix),     table(kAncestorStart),
      table(kAncestorSlots), table(kSequenceStart),    table(kSequenceSlots), size(kQ),
      size(kKCache),         size(kSequenceStart) - 1, size(kAncestorSlots),  size(kSequenceSlots),
      context->faults()};
  const int64_t q_width = args.inputs[kQ].dims()[1], width = args.inputs[kK].dims()[1];
  const auto optional = [&](Input i) -> const float* {
    return Has(args.inputs, i) ? args.inputs[i].as<float>() : nullptr;
  };
  scores.slopes = optional(kSlopes);
  const Shape shape{size(kQ),
                    width,
                    static_cast<int>(q_width / dim),
                    static_cast<int>(width / dim),
                    static_cast<int>(dim),
                    scores,
                    {optional(kKScale), optional(kVScale)}};
  for (Input i : {kSlots, kRowSequence, kRowPrefix}) {
    if (size(i) < shape.rows) {
      return KernelStatus::Error("paged_attention: the batch's row arrays are shorter than 'q'");
    }
  }
  if (size(kAncestorStart) < shape.rows + 1) {
    return KernelStatus::Error(
        "paged_attention: 'ancestor_start' is shorter than the rows of 'q' + 1");
  }
  const DType cache = args.inputs[kKCache].dtype();
  return DispatchFloat(args.inputs[kQ].dtype(), "paged_attention", [&](auto type) {
    using T = typename decltype(type)::T;
    if (args.inputs[kQ].dtype() == cache) return RunFor<T, T>(args, batch, shape);
    if constexpr (std::is_same_v<T, float>) {
      if (cache == DType::kBF16) return RunFor<T, __nv_bfloat16>(args, batch, shape);
      if (cache == DType::kF16) return RunFor<T, __half>(args, batch, shape);
      if (cache == DType::kI8) return RunFor<T, int8_t>(args, batch, shape);
    }
    return UnsupportedType("paged_attention: cache", cache);
  });
}

}  // namespace cuda_paged_attention

void RegisterPagedAttentionCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_paged_attention;
  registry.Add(
      "paged_attention",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const DType dtype = spec.inputs[kQ].dtype, cache = spec.inputs[kKCache].dtype;
        if (!TakesFloat(dtype, refusal)) return nullptr;
        if (cache != dtype && dtype != DType::kF32) {
          *refusal = std::string("a cache of ") + Name(cache) + " needs 'q' in it or in f32, not " +
                     Name(dtype);
          return nullptr;
        }
        const bool scaled = spec.inputs.size() > kVScale &&
                            spec.inputs[kKScale].dtype == DType::kF32 &&
                            spec.inputs[kVScale].dtype == DType::kF32;
        if (cache == DType::kI8 ? !scaled : !IsFloat(cache)) {
          *refusal = std::string("a cache of ") + Name(cache) +
                     " is not supported: f32, bf16 and f16 are, and i8 with scales";
          return nullptr;
        }
        const int64_t dim = spec.attributes.Int("head_dim");
        if (dim > kMostDim) {
          *refusal = "head_dim " + std::to_string(dim) + " is above " + std::to_string(kMostDim);
          return nullptr;
        }
        const double given = spec.attributes.Float("scale");
        const float scale =
            static_cast<float>(given > 0 ? given : 1.0 / std::sqrt(static_cast<double>(dim)));
        const Scores scores{scale, static_cast<float>(spec.attributes.Float("softcap")), nullptr,
                            spec.attributes.String("alibi") == "bf16",
                            spec.attributes.Int("window")};
        return MakeKernel([&contexts, dim, scores](const KernelArgs& args) {
          return Run(contexts, args, dim, scores);
        });
      });
}

}  // namespace espalier
