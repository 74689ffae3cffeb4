#include "ops/onnx/tensor_proto.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 31;

template <typename From, typename To, typename Source>
void Convert(const Source& source, int64_t n, std::string* out) {
  out->resize(n * sizeof(To));
  for (int64_t i = 0; i < n; ++i) {
    const To value = static_cast<To>(static_cast<From>(source[static_cast<int>(i)]));
    std::memcpy(out->data() + i * sizeof(To), &value, sizeof(To));
  }
}

// Unaligned array of T inside raw_data.
template <typename T>
struct Raw {
  const char* data;
  T operator[](int64_t i) const {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    return value;
  }
};

template <typename From, typename To, typename Field>
absl::Status Fill(const onnx::TensorProto& tensor, const Field& field, int64_t n, size_t width,
                  std::string* out) {
  if (tensor.has_raw_data()) {
    if (tensor.raw_data().size() != static_cast<size_t>(n) * width) {
      return absl::InvalidArgumentError(absl::StrCat("has ", tensor.raw_data().size(),
                                                     " bytes of raw data, its shape needs ",
                                                     n * static_cast<int64_t>(width)));
    }
    Convert<From, To>(Raw<From>{tensor.raw_data().data()}, n, out);
    return absl::OkStatus();
  }
  if (field.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", field.size(), " elements, its shape needs ", n));
  }
  Convert<From, To>(field, n, out);
  return absl::OkStatus();
}

absl::Status FillAs(const onnx::TensorProto& tensor, int64_t n, std::string* out) {
  switch (tensor.data_type()) {
    case onnx::TensorProto::FLOAT:
      return Fill<float, float>(tensor, tensor.float_data(), n, 4, out);
    case onnx::TensorProto::DOUBLE:
      return Fill<double, float>(tensor, tensor.double_data(), n, 8, out);
    case onnx::TensorProto::FLOAT16:
    case onnx::TensorProto::BFLOAT16:
      return Fill<uint16_t, uint16_t>(tensor, tensor.int32_data(), n, 2, out);
    case onnx::TensorProto::INT64:
      return Fill<int64_t, int64_t>(tensor, tensor.int64_data(), n, 8, out);
    case onnx::TensorProto::INT32:
      return Fill<int32_t, int32_t>(tensor, tensor.int32_data(), n, 4, out);
    case onnx::TensorProto::INT8:
      return Fill<int8_t, int8_t>(tensor, tensor.int32_data(), n, 1, out);
    case onnx::TensorProto::UINT8:
      return Fill<uint8_t, uint8_t>(tensor, tensor.int32_data(), n, 1, out);
    case onnx::TensorProto::BOOL:
      return Fill<uint8_t, uint8_t>(tensor, tensor.int32_data(), n, 1, out);
    default:
      return absl::UnimplementedError(absl::StrCat(
          "has element type ", tensor.data_type(),
          "; taken are float, double, float16, bfloat16, int8, uint8, int32, int64, bool"));
  }
}

}  // namespace

DType FromOnnx(int onnx_type) {
  switch (onnx_type) {
    case onnx::TensorProto::FLOAT:
    case onnx::TensorProto::DOUBLE:
      return DType::kF32;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::INT32:
      return DType::kI32;
    case onnx::TensorProto::INT8:
      return DType::kI8;
    case onnx::TensorProto::UINT8:
      return DType::kU8;
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    default:
      return DType::kInvalid;
  }
}

absl::StatusOr<Elements> ReadTensor(const onnx::TensorProto& tensor) {
  const auto annotate = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("tensor '", tensor.name(), "' ", status.message()));
  };
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    return annotate(absl::UnimplementedError(
        "keeps its data in another file; only weights inside the ONNX file are read so far"));
  }
  Elements elements;
  elements.type.dtype = FromOnnx(tensor.data_type());
  int64_t n = 1;
  for (int64_t dim : tensor.dims()) {
    if (dim < 0 || (dim > 0 && n > kMaxElements / dim)) {
      return annotate(absl::InvalidArgumentError(
          absl::StrCat("has a dimension of ", dim, ", or more than 2^31 elements")));
    }
    n *= dim;
    elements.type.dims.push_back(dim);
  }
  if (absl::Status status = FillAs(tensor, n, &elements.bytes); !status.ok()) {
    return annotate(status);
  }
  return elements;
}

}  // namespace espalier::onnx_import
