#include <cub/device/device_segmented_sort.cuh>
#include <limits>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"
#include "ops/cuda/top_k.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace {

// An unsigned key that sorts as the element does, NaN as the largest and -0 as 0.
__device__ __forceinline__ uint32_t KeyOf(float value) {
  if (value != value) return 0xffffffffu;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
template <typename T>
__device__ __forceinline__ uint32_t KeyOf(T value) {
  return KeyOf(ToFloat(value));
}
template <>
__device__ __forceinline__ uint32_t KeyOf<int32_t>(int32_t value) {
  return static_cast<uint32_t>(value) ^ 0x80000000u;
}
__device__ __forceinline__ uint64_t KeyOf(int64_t value) {
  return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63);
}

// The keys of a line one after the other; the first ones are wanted.
template <typename T, typename Key>
struct MakeKeys {
  const T* x;
  Key* keys;
  uint32_t* places;
  int64_t length, inner;
  bool largest;
  __device__ void operator()(int64_t i) const {
    const int64_t line = i / length, place = i % length;
    const Key key = KeyOf(x[(line / inner * length + place) * inner + line % inner]);
    keys[i] = largest ? ~key : key;
    places[i] = static_cast<uint32_t>(place);
  }
};

struct LineStart {
  int32_t* starts;
  int64_t length;
  __device__ void operator()(int64_t line) const {
    starts[line] = static_cast<int32_t>(line * length);
  }
};

template <typename T, typename Place>
struct TakeFirst {
  const T* x;
  const uint32_t* sorted;
  T* values;
  Place* places;
  int64_t length, inner, k;
  __device__ void operator()(int64_t i) const {
    const int64_t outer = i / (k * inner), column = i % inner, rank = i / inner % k;
    const uint32_t place = sorted[(outer * inner + column) * length + rank];
    if (values != nullptr) values[i] = x[(outer * length + place) * inner + column];
    if (places != nullptr) places[i] = static_cast<Place>(place);
  }
};

template <typename Key>
cudaError_t SortSegments(void* temporary, size_t* bytes, const Key* keys, Key* sorted_keys,
                         const uint32_t* places, uint32_t* sorted_positions, int64_t count,
                         int64_t lines, const int32_t* starts, cudaStream_t stream) {
  return cub::DeviceSegmentedSort::StableSortPairs(
      temporary, *bytes, keys, sorted_keys, places, sorted_positions, static_cast<int>(count),
      static_cast<int>(lines), starts, starts + 1, stream);
}

}  // namespace

namespace cuda_top_k_sort {

// Indices of a line are distinct.
template <typename T>
struct PutBack {
  const int64_t* places;
  const T* dy;
  T* dx;
  int64_t length, inner, k;
  __device__ void operator()(int64_t i) const {
    dx[(i / (k * inner) * length + places[i]) * inner + i % inner] = dy[i];
  }
};

KernelStatus Gradient(const KernelArgs& args, int64_t axis, const char* op) {
  const TensorView &places = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0, StreamOf(args)));
  if (!dy.present()) return KernelStatus::Ok();
  const AxisLines lines(dx.dims(), axis);
  const int64_t k = AxisLines(dy.dims(), axis).length;
  return DispatchFloat(dx.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        dy.num_elements(),
        PutBack<T>{places.as<int64_t>(), dy.as<T>(), dx.as<T>(), lines.length, lines.inner, k},
        StreamOf(args), op);
  });
}

}  // namespace cuda_top_k_sort

void AddTopKGradient(KernelRegistry& registry, const char* op) {
  registry.Add(op, [op](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([axis = spec.attributes.Int("axis"), op](const KernelArgs& args) {
      return cuda_top_k_sort::Gradient(args, axis, op);
    });
  });
}

std::shared_ptr<TopKSort> TopKSort::Make(const KernelSpec& spec, std::string* refusal) {
  const Attributes& attributes = spec.attributes;
  return Make(spec.inputs[0], attributes.Int("axis"), attributes.Int("k"),
              attributes.Bool("largest"), refusal);
}

std::shared_ptr<TopKSort> TopKSort::MakeWhole(const KernelSpec& spec, std::string* refusal) {
  const int64_t axis = spec.attributes.Int("axis");
  return Make(spec.inputs[0], axis, AxisLines(spec.inputs[0].dims, axis).length,
              spec.attributes.Bool("descending"), refusal);
}

std::shared_ptr<TopKSort> TopKSort::Make(const TensorSpec& x, int64_t axis, int64_t k, bool largest,
                                         std::string* refusal) {
  if (!TakesNumber(x.dtype, refusal)) return nullptr;
  const int64_t count = x.num_elements();
  if (count >= std::numeric_limits<int32_t>::max()) {
    *refusal = "more than 2^31 elements to choose from";
    return nullptr;
  }
  auto sort = std::make_shared<TopKSort>();
  sort->axis_ = axis;
  sort->k_ = k;
  sort->largest_ = largest;
  const int64_t lines = AxisLines(x.dims, sort->axis_).count();
  const bool wide = x.dtype == DType::kI64;
  const cudaError_t asked =
      wide ? SortSegments<uint64_t>(nullptr, &sort->temporary_bytes_, nullptr, nullptr, nullptr,
                                    nullptr, count, lines, nullptr, nullptr)
           : SortSegments<uint32_t>(nullptr, &sort->temporary_bytes_, nullptr, nullptr, nullptr,
                                    nullptr, count, lines, nullptr, nullptr);
  if (asked != cudaSuccess) {
    *refusal = CudaStatus(asked, "size of the sort's workspace").error;
    return nullptr;
  }
  const size_t key_bytes = static_cast<size_t>(count) * (wide ? 8 : 4);
  const size_t place_bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  sort->keys_ = sort->layout_.Add(key_bytes);
  sort->sorted_keys_ = sort->layout_.Add(key_bytes);
  sort->places_ = sort->layout_.Add(place_bytes);
  sort->sorted_positions_ = sort->layout_.Add(place_bytes);
  sort->starts_ = sort->layout_.Add(static_cast<size_t>(lines + 1) * sizeof(int32_t));
  sort->temporary_ = sort->layout_.Add(sort->temporary_bytes_);
  return sort;
}

template <typename Key>
KernelStatus TopKSort::Sort(int64_t count, int64_t lines, const KernelArgs& args) const {
  int32_t* starts = WorkspaceAt<int32_t>(args, starts_);
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      ForEach(lines + 1, LineStart{starts, count / lines}, StreamOf(args), "top_k"));
  size_t bytes = temporary_bytes_;
  return CudaStatus(
      SortSegments(WorkspaceAt(args, temporary_), &bytes, WorkspaceAt<const Key>(args, keys_),
                   WorkspaceAt<Key>(args, sorted_keys_), WorkspaceAt<const uint32_t>(args, places_),
                   WorkspaceAt<uint32_t>(args, sorted_positions_), count, lines, starts,
                   StreamOf(args)),
      "top_k: sort");
}

template <typename Key>
KernelStatus TopKSort::RunAs(const TensorView& x, const TensorView& values,
                             const TensorView& places, const KernelArgs& args) const {
  const AxisLines lines(x.dims(), axis_);
  return DispatchNumber(x.dtype(), "top_k", [&](auto type) {
    using T = typename decltype(type)::T;
    if constexpr (std::is_same_v<T, int64_t> != (sizeof(Key) == 8)) {
      return UnsupportedType("top_k", x.dtype());
    } else {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          ForEach(x.num_elements(),
                  MakeKeys<T, Key>{x.as<T>(), WorkspaceAt<Key>(args, keys_),
                                   WorkspaceAt<uint32_t>(args, places_), lines.length, lines.inner,
                                   largest_},
                  StreamOf(args), "top_k"));
      ESPALIER_KERNEL_RETURN_IF_ERROR(Sort<Key>(x.num_elements(), lines.count(), args));
      const auto take = [&](auto place) {
        using Place = decltype(place);
        return ForEach(
            lines.count() * k_,
            TakeFirst<T, Place>{x.as<T>(), WorkspaceAt<const uint32_t>(args, sorted_positions_),
                                values.as<T>(), places.as<Place>(), lines.length, lines.inner, k_},
            StreamOf(args), "top_k");
      };
      return places.dtype() == DType::kI32 ? take(int32_t{}) : take(int64_t{});
    }
  });
}

KernelStatus TopKSort::Run(const TensorView& x, const TensorView& values, const TensorView& places,
                           const KernelArgs& args) const {
  if (x.num_elements() == 0 || k_ == 0) return KernelStatus::Ok();
  return x.dtype() == DType::kI64 ? RunAs<uint64_t>(x, values, places, args)
                                  : RunAs<uint32_t>(x, values, places, args);
}

}  // namespace espalier
