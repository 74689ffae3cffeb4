#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"

namespace espalier {
namespace {

// Merged dimensions, innermost last.
struct Layout {
  int rank = 0;
  int64_t size[8] = {};
  int64_t source[8] = {};
  int64_t destination[8] = {};
};

template <typename Index>
struct Offsets {
  Layout layout;

  __device__ void At(int64_t i, int64_t* source, int64_t* destination) const {
    Index rest = static_cast<Index>(i);
    *source = 0;
    *destination = 0;
    for (int d = layout.rank - 1; d >= 0; --d) {
      const Index size = static_cast<Index>(layout.size[d]);
      const Index next = rest / size;
      const int64_t at = static_cast<int64_t>(rest - next * size);
      *source += at * layout.source[d];
      *destination += at * layout.destination[d];
      rest = next;
    }
  }
};

template <typename T, typename Index>
struct CopyElement {
  Offsets<Index> offsets;
  const T* source;
  T* destination;
  __device__ void operator()(int64_t i) const {
    int64_t from, to;
    offsets.At(i, &from, &to);
    destination[to] = source[from];
  }
};

template <typename T, typename Index>
struct AddElement {
  Offsets<Index> offsets;
  const T* source;
  T* destination;
  __device__ void operator()(int64_t i) const {
    int64_t from, to;
    offsets.At(i, &from, &to);
    destination[to] =
        Compute<T>::Store(Compute<T>::Load(destination[to]) + Compute<T>::Load(source[from]));
  }
};

// Drops dimensions of size 1 and merges adjacent ones that are contiguous on both sides.
Layout Merge(const StridedBlock& block) {
  Layout layout;
  for (size_t d = 0; d < block.size.size(); ++d) {
    if (block.size[d] == 1) continue;
    const int last = layout.rank - 1;
    if (last >= 0 && layout.source[last] == block.source_strides[d] * block.size[d] &&
        layout.destination[last] == block.destination_strides[d] * block.size[d]) {
      layout.size[last] *= block.size[d];
      layout.source[last] = block.source_strides[d];
      layout.destination[last] = block.destination_strides[d];
      continue;
    }
    layout.size[layout.rank] = block.size[d];
    layout.source[layout.rank] = block.source_strides[d];
    layout.destination[layout.rank] = block.destination_strides[d];
    ++layout.rank;
  }
  return layout;
}

// Returns the widest access, up to 16 bytes, that divides every run of the block; rewrites `layout`
// in units of it.
size_t Widen(const StridedBlock& block, size_t bytes, Layout* layout) {
  const int inner = layout->rank - 1;
  if (inner < 0 || layout->source[inner] != 1 || layout->destination[inner] != 1) return bytes;
  for (size_t width = 16; width > bytes; width /= 2) {
    const int64_t factor = static_cast<int64_t>(width / bytes);
    bool fits = reinterpret_cast<uintptr_t>(block.source) % width == 0 &&
                reinterpret_cast<uintptr_t>(block.destination) % width == 0 &&
                layout->size[inner] % factor == 0;
    for (int d = 0; d < inner; ++d) {
      fits = fits && layout->source[d] % factor == 0 && layout->destination[d] % factor == 0;
    }
    if (!fits) continue;
    layout->size[inner] /= factor;
    for (int d = 0; d < inner; ++d) {
      layout->source[d] /= factor;
      layout->destination[d] /= factor;
    }
    return width;
  }
  return bytes;
}

int64_t Elements(const Layout& layout) {
  int64_t n = 1;
  for (int d = 0; d < layout.rank; ++d) n *= layout.size[d];
  return n;
}

bool FitsInt32(int64_t n) { return n < std::numeric_limits<int32_t>::max(); }

template <typename T>
KernelStatus LaunchCopy(const StridedBlock& block, const Layout& layout, cudaStream_t stream,
                        const char* op) {
  const int64_t n = Elements(layout);
  const T* source = static_cast<const T*>(block.source);
  T* destination = static_cast<T*>(block.destination);
  if (FitsInt32(n)) {
    return ForEach(n, CopyElement<T, uint32_t>{{layout}, source, destination}, stream, op);
  }
  return ForEach(n, CopyElement<T, uint64_t>{{layout}, source, destination}, stream, op);
}

template <typename T>
struct FillElement {
  T* destination;
  T value;
  __device__ void operator()(int64_t i) const { destination[i] = value; }
};

}  // namespace

Dims DenseStrides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

KernelStatus CopyStrided(const StridedBlock& block, cudaStream_t stream, const char* op) {
  if (NumElements(block.size) == 0) return KernelStatus::Ok();
  Layout layout = Merge(block);
  const size_t bytes = SizeOf(block.dtype);
  if (layout.rank == 0 ||
      (layout.rank == 1 && layout.source[0] == 1 && layout.destination[0] == 1)) {
    return CudaStatus(cudaMemcpyAsync(block.destination, block.source,
                                      static_cast<size_t>(Elements(layout)) * bytes,
                                      cudaMemcpyDeviceToDevice, stream),
                      op);
  }
  switch (Widen(block, bytes, &layout)) {
    case 1:
      return LaunchCopy<uint8_t>(block, layout, stream, op);
    case 2:
      return LaunchCopy<uint16_t>(block, layout, stream, op);
    case 4:
      return LaunchCopy<uint32_t>(block, layout, stream, op);
    case 8:
      return LaunchCopy<uint2>(block, layout, stream, op);
    case 16:
      return LaunchCopy<uint4>(block, layout, stream, op);
    default:
      return UnsupportedType(op, block.dtype);
  }
}

KernelStatus AddStrided(const StridedBlock& block, cudaStream_t stream, const char* op) {
  if (NumElements(block.size) == 0) return KernelStatus::Ok();
  return DispatchNumber(block.dtype, op, [&](auto type) {
    using T = typename decltype(type)::T;
    const Layout layout = Merge(block);
    const int64_t n = Elements(layout);
    const T* source = static_cast<const T*>(block.source);
    T* destination = static_cast<T*>(block.destination);
    if (FitsInt32(n)) {
      return ForEach(n, AddElement<T, uint32_t>{{layout}, source, destination}, stream, op);
    }
    return ForEach(n, AddElement<T, uint64_t>{{layout}, source, destination}, stream, op);
  });
}

KernelStatus CopyBoxOnStream(const BoxCopy& copy, cudaStream_t stream) {
  StridedBlock block;
  block.dtype = copy.dtype;
  block.size = copy.size;
  block.source_strides = DenseStrides(copy.source_dims);
  block.destination_strides = DenseStrides(copy.destination_dims);
  int64_t from = 0, to = 0;
  for (size_t d = 0; d < copy.size.size(); ++d) {
    from += copy.source_start[d] * block.source_strides[d];
    to += copy.destination_start[d] * block.destination_strides[d];
  }
  const int64_t bytes = static_cast<int64_t>(SizeOf(copy.dtype));
  block.source = static_cast<const char*>(copy.source) + from * bytes;
  block.destination = static_cast<char*>(copy.destination) + to * bytes;
  return copy.accumulate ? AddStrided(block, stream, "copy of a box")
                         : CopyStrided(block, stream, "copy of a box");
}

KernelStatus FillOnStream(void* destination, DType dtype, int64_t count, double value,
                          cudaStream_t stream) {
  if (count <= 0) return KernelStatus::Ok();
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  if (value == 0 && !std::signbit(value)) {
    return CudaStatus(cudaMemsetAsync(destination, 0, bytes, stream), "fill");
  }
  const auto fill = [&](auto element) {
    using T = decltype(element);
    return ForEach(count, FillElement<T>{static_cast<T*>(destination), element}, stream, "fill");
  };
  switch (dtype) {
    case DType::kF32:
      return fill(static_cast<float>(value));
    case DType::kBF16:
      return fill(__float2bfloat16_rn(static_cast<float>(value)));
    case DType::kF16:
      return fill(__float2half_rn(static_cast<float>(value)));
    case DType::kI32:
      return fill(static_cast<int32_t>(value));
    case DType::kI64:
      return fill(static_cast<int64_t>(value));
    case DType::kBool:
      return fill(static_cast<uint8_t>(value != 0));
    case DType::kI8:
      return fill(static_cast<int8_t>(value));
    case DType::kU8:
      return fill(static_cast<uint8_t>(value));
    case DType::kInvalid:
      break;
  }
  return UnsupportedType("fill", dtype);
}

}  // namespace espalier
