#include "ops/cpu/layout/copy_box.h"

#include <cstring>

#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

template <typename T>
void AddRow(void* destination, const void* source, int64_t count) {
  T* out = static_cast<T*>(destination);
  const T* in = static_cast<const T*>(source);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] + in[i]);
}

template <float (*Load)(uint16_t), uint16_t (*Store)(float)>
void AddHalfRow(void* destination, const void* source, int64_t count) {
  uint16_t* out = static_cast<uint16_t*>(destination);
  const uint16_t* in = static_cast<const uint16_t*>(source);
  for (int64_t i = 0; i < count; ++i) out[i] = Store(Load(out[i]) + Load(in[i]));
}

void AccumulateRow(DType dtype, void* destination, const void* source, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return AddRow<float>(destination, source, count);
    case DType::kI32:
      return AddRow<uint32_t>(destination, source, count);  // wraps, as on the GPU
    case DType::kI64:
      return AddRow<uint64_t>(destination, source, count);
    case DType::kBF16:
      return AddHalfRow<BF16ToF32, F32ToBF16>(destination, source, count);
    case DType::kF16:
      return AddHalfRow<F16ToF32, F32ToF16>(destination, source, count);
    case DType::kI8:
    case DType::kU8:
      return AddRow<uint8_t>(destination, source, count);
    case DType::kBool:
    case DType::kInvalid:
      return;
  }
}

}  // namespace

void CopyBoxOnHost(const BoxCopy& copy) {
  const int rank = static_cast<int>(copy.size.size());
  const int64_t element = static_cast<int64_t>(SizeOf(copy.dtype));
  for (int64_t extent : copy.size) {
    if (extent <= 0) return;
  }
  // Trailing dimensions that the box covers whole on both sides join into one row.
  int64_t row = 1;
  int inner = rank;
  while (inner > 0) {
    --inner;
    row *= copy.size[inner];
    if (copy.size[inner] != copy.source_dims[inner] ||
        copy.size[inner] != copy.destination_dims[inner]) {
      break;
    }
  }
  Dims source_stride(rank, 1), destination_stride(rank, 1);
  for (int d = rank - 2; d >= 0; --d) {
    source_stride[d] = source_stride[d + 1] * copy.source_dims[d + 1];
    destination_stride[d] = destination_stride[d + 1] * copy.destination_dims[d + 1];
  }
  int64_t from = 0, to = 0;
  for (int d = 0; d < rank; ++d) {
    from += copy.source_start[d] * source_stride[d];
    to += copy.destination_start[d] * destination_stride[d];
  }
  const char* source = static_cast<const char*>(copy.source) + from * element;
  char* destination = static_cast<char*>(copy.destination) + to * element;
  Dims index(inner, 0);
  while (true) {
    if (copy.accumulate) {
      AccumulateRow(copy.dtype, destination, source, row);
    } else {
      std::memcpy(destination, source, static_cast<size_t>(row * element));
    }
    int d = inner - 1;
    for (; d >= 0; --d) {
      source += source_stride[d] * element;
      destination += destination_stride[d] * element;
      if (++index[d] < copy.size[d]) break;
      source -= source_stride[d] * element * copy.size[d];
      destination -= destination_stride[d] * element * copy.size[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace espalier
