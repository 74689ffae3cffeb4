// paged_attention: writes keys and values to the KV cache, then computes attention
// (attention/paged_attention_kernel.cuh).
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/attention/paged_attention_kernel.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/paged_attention_inputs.h"

namespace espalier {
namespace cuda_paged_attention {

using namespace paged_attention;

// Thread i stores element i of k and of v.
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

// Stores k or v as int8. Thread i quantizes head i % heads of row i / heads: divides by the scale,
// a 127th of the largest magnitude, and rounds. A head that is not finite, or too small, becomes
// zeros.
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

struct Shape {
  int64_t rows, width;
  int heads, kv_heads, dim;
  ScoreMod scores;
  CacheScales cache_scales;
};

// Split-KV: how many blocks share the groups of keys of a row.
struct SplitKv {
  static constexpr int64_t kEnoughBlocks = 4 * 132;  // that saturate a GPU's memory bandwidth
  static constexpr int64_t kMaxBytes = int64_t{128} << 20;

  int64_t groups;  // of a row, at most
  int64_t rows;    // groups are shared in batches of at most this many rows

  static SplitKv Of(int64_t keys, int64_t rows, int64_t heads, int64_t dim) {
    const int64_t groups = (keys + kGroup - 1) / kGroup;
    const int64_t row_bytes = heads * groups * (dim + 2) * static_cast<int64_t>(sizeof(float));
    if (groups < 2) return {groups, 0};
    return {groups, std::min({rows, kEnoughBlocks, kMaxBytes / row_bytes})};
  }
  size_t Bytes(int64_t heads, int64_t dim) const {
    return static_cast<size_t>(rows * heads * groups * (dim + 2)) * sizeof(float);
  }
  // Returns the number of blocks per tile where there are at least `tiles` tiles.
  int64_t Parts(int64_t of_rows, int64_t tiles) const {
    if (of_rows > rows) return 1;
    return std::clamp<int64_t>((kEnoughBlocks + tiles - 1) / tiles, 1, groups);
  }
};

template <typename T, typename C, int kDim, bool kWhole>
KernelStatus Launch(const KernelArgs& args, const Batch& batch, const Shape& s,
                    const SplitKv& sharing, uint32_t* arrivals) {
  const auto heads = QueryTile::Heads::Of(s.heads, s.kv_heads);
  const Attention<T, C> attention{args.inputs[kQ].as<T>(),
                                  args.inputs[kKCache].as<C>(),
                                  args.inputs[kVCache].as<C>(),
                                  s.cache_scales,
                                  args.outputs[0].as<T>(),
                                  {static_cast<float*>(args.workspace), sharing.groups, arrivals},
                                  batch,
                                  heads,
                                  s.kv_heads,
                                  s.dim,
                                  s.scores};
  const int64_t blocks = s.rows * heads.TilesOfRow();
  // Rows of one sequence share tiles, so this is a lower bound.
  const int64_t least_tiles = std::max((s.rows + heads.MaxRows() - 1) / heads.MaxRows(),
                                       std::min(s.rows, batch.sequences)) *
                              heads.TilesOfRow();
  const int64_t parts = blocks > DeviceContext::kArrivals ? 1 : sharing.Parts(s.rows, least_tiles);
  const auto kernel = PagedAttentionKernel<T, C, kDim, kWhole>;
  constexpr int kBytes = SharedMemoryLayout<kDim>::kAll;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                 "paged_attention"));
  return LaunchWithPdl(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)),
                       kBlock, kBytes, StreamOf(args), "paged_attention", attention);
}

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
KernelStatus RunFor(const KernelArgs& args, const Batch& batch, const Shape& s,
                    const SplitKv& sharing, uint32_t* arrivals) {
  ESPALIER_KERNEL_RETURN_IF_ERROR((Store<T, C>(args, batch, s)));
  if (!args.outputs[0].present() || s.rows == 0) return KernelStatus::Ok();
  const auto aligned = [&](Input i) {
    return reinterpret_cast<uintptr_t>(args.inputs[i].data) % 16 == 0;
  };
  if (s.dim % 8 != 0 || !aligned(kKCache) || !aligned(kVCache)) {
    return Launch<T, C, kMaxDim, false>(args, batch, s, sharing, arrivals);
  }
  if (s.dim <= 64) return Launch<T, C, 64, true>(args, batch, s, sharing, arrivals);
  if (s.dim <= 128) return Launch<T, C, 128, true>(args, batch, s, sharing, arrivals);
  return Launch<T, C, kMaxDim, true>(args, batch, s, sharing, arrivals);
}

KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args, int64_t dim, ScoreMod scores,
                 const SplitKv& sharing) {
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
    if (args.inputs[kQ].dtype() == cache)
      return RunFor<T, T>(args, batch, shape, sharing, context->arrivals());
    if constexpr (std::is_same_v<T, float>) {
      if (cache == DType::kBF16)
        return RunFor<T, __nv_bfloat16>(args, batch, shape, sharing, context->arrivals());
      if (cache == DType::kF16)
        return RunFor<T, __half>(args, batch, shape, sharing, context->arrivals());
      if (cache == DType::kI8)
        return RunFor<T, int8_t>(args, batch, shape, sharing, context->arrivals());
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
        if (dim > kMaxDim) {
          *refusal = "head_dim " + std::to_string(dim) + " is above " + std::to_string(kMaxDim);
          return nullptr;
        }
        const double given = spec.attributes.Float("scale");
        const float scale =
            static_cast<float>(given > 0 ? given : 1.0 / std::sqrt(static_cast<double>(dim)));
        const ScoreMod scores{scale, static_cast<float>(spec.attributes.Float("softcap")), nullptr,
                              spec.attributes.String("alibi") == "bf16",
                              spec.attributes.Int("window")};
        const int64_t rows = spec.inputs[kQ].dims[0], heads = spec.inputs[kQ].dims[1] / dim;
        const SplitKv sharing =
            SplitKv::Of(spec.inputs[kSequenceSlots].dims[0] + spec.inputs[kAncestorSlots].dims[0],
                        rows, heads, dim);
        return MakeKernel(
            [&contexts, dim, scores, sharing](const KernelArgs& args) {
              return Run(contexts, args, dim, scores, sharing);
            },
            sharing.Bytes(heads, dim));
      });
}

}  // namespace espalier
