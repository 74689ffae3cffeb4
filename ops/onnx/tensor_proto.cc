#include "ops/onnx/tensor_proto.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/external_data.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kMaxInitializerElements = int64_t{1} << 31;

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

// Only checks the number of elements if `out` is null.
template <typename From, typename To, typename Field>
absl::Status Fill(const onnx::TensorProto& tensor, const Field& field, int64_t n, size_t width,
                  std::string* out) {
  if (tensor.has_raw_data()) {
    if (tensor.raw_data().size() != static_cast<size_t>(n) * width) {
      return absl::InvalidArgumentError(absl::StrCat("has ", tensor.raw_data().size(),
                                                     " bytes of raw data, its shape needs ",
                                                     n * static_cast<int64_t>(width)));
    }
    if (out != nullptr) Convert<From, To>(Raw<From>{tensor.raw_data().data()}, n, out);
    return absl::OkStatus();
  }
  if (field.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", field.size(), " elements, its shape needs ", n));
  }
  if (out != nullptr) Convert<From, To>(field, n, out);
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
      return absl::InternalError("has an element type that TypeOf refuses");
  }
}

absl::Status Annotate(const onnx::TensorProto& tensor, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("tensor '", tensor.name(), "' ", status.message()));
}

// Rounds the f64 elements that `read` reads.
ElementReader RoundedToF32(ElementReader read) {
  return [read = std::move(read)](int64_t offset, int64_t bytes, char* out) {
    constexpr int64_t kBlock = 1 << 16;  // elements
    const int64_t begin = offset / static_cast<int64_t>(sizeof(float));
    const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<double> block(static_cast<size_t>(std::min(n, kBlock)));
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t count = std::min(kBlock, n - done);
      constexpr int64_t kWidth = sizeof(double);
      absl::Status status =
          read((begin + done) * kWidth, count * kWidth, reinterpret_cast<char*>(block.data()));
      if (!status.ok()) return status;
      for (int64_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(block[static_cast<size_t>(i)]);
        std::memcpy(out + (done + i) * static_cast<int64_t>(sizeof(float)), &value, sizeof value);
      }
    }
    return absl::OkStatus();
  };
}

// The place of the elements in the model's file; null if they are not there.
const ElementsInFile* FindInFile(const onnx::TensorProto& tensor, const ModelFile* file) {
  if (file == nullptr) return nullptr;
  const auto found = file->left.find(&tensor);
  return found == file->left.end() ? nullptr : &found->second;
}

// Returns what reads the elements of a tensor if they lie in a file, null if `tensor` holds them.
// Checks their number. `file` may be null.
absl::StatusOr<ElementReader> ReaderOf(const onnx::TensorProto& tensor, const TensorType& type,
                                       const ModelFile* file, const std::string& folder) {
  const bool rounded = tensor.data_type() == onnx::TensorProto::DOUBLE;
  const int64_t width = rounded ? 8 : static_cast<int64_t>(SizeOf(type.dtype));
  const int64_t bytes = type.num_elements() * width;
  ElementReader read;
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    absl::StatusOr<ExternalData> data = FindExternalData(tensor, folder, bytes);
    if (!data.ok()) return data.status();
    read = [data = *std::move(data)](int64_t offset, int64_t count, char* out) {
      return ReadExternalData(data, offset, count, out);
    };
  } else if (const ElementsInFile* found = FindInFile(tensor, file); found != nullptr) {
    if (found->bytes != bytes) {
      return absl::InvalidArgumentError(
          found->raw
              ? absl::StrCat("has ", found->bytes, " bytes of raw data, its shape needs ", bytes)
              : absl::StrCat("has ", found->bytes / width, " elements, its shape needs ",
                             type.num_elements()));
    }
    read = [source = file->file, begin = found->offset](int64_t offset, int64_t count, char* out) {
      return source->Read(begin + offset, count, out);
    };
  }
  return read != nullptr && rounded ? RoundedToF32(std::move(read)) : std::move(read);
}

absl::StatusOr<HostTensor> ReadFrom(const onnx::TensorProto& tensor, const ModelFile* file,
                                    const std::string& folder) {
  absl::StatusOr<TensorType> type = TypeOf(tensor);
  if (!type.ok()) return type.status();
  HostTensor tensor_read{*std::move(type), {}};
  absl::StatusOr<ElementReader> read = ReaderOf(tensor, tensor_read.type, file, folder);
  if (!read.ok()) return Annotate(tensor, read.status());
  absl::Status status;
  if (*read == nullptr) {
    status = FillAs(tensor, tensor_read.type.num_elements(), &tensor_read.bytes);
  } else {
    tensor_read.bytes.resize(static_cast<size_t>(tensor_read.type.bytes()));
    status = (*read)(0, tensor_read.type.bytes(), tensor_read.bytes.data());
  }
  if (!status.ok()) return Annotate(tensor, status);
  return tensor_read;
}

std::string TypeName(int type) {
  return onnx::TensorProto::DataType_IsValid(type)
             ? onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(type))
             : absl::StrCat(type);
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

int ToOnnx(DType type) {
  switch (type) {
    case DType::kF32:
      return onnx::TensorProto::FLOAT;
    case DType::kF16:
      return onnx::TensorProto::FLOAT16;
    case DType::kBF16:
      return onnx::TensorProto::BFLOAT16;
    case DType::kI64:
      return onnx::TensorProto::INT64;
    case DType::kI32:
      return onnx::TensorProto::INT32;
    case DType::kI8:
      return onnx::TensorProto::INT8;
    case DType::kU8:
      return onnx::TensorProto::UINT8;
    case DType::kBool:
      return onnx::TensorProto::BOOL;
    case DType::kInvalid:
      break;
  }
  return onnx::TensorProto::UNDEFINED;
}

absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor) {
  TensorType type{FromOnnx(tensor.data_type()), {}};
  if (type.dtype == DType::kInvalid) {
    return Annotate(tensor,
                    absl::UnimplementedError(absl::StrCat(
                        "has element type ", TypeName(tensor.data_type()),
                        "; taken are float, double, float16, bfloat16, int8, uint8, int32, int64, "
                        "bool")));
  }
  int64_t n = 1;
  for (int64_t dim : tensor.dims()) {
    if (dim < 0 || (dim > 0 && n > kMaxInitializerElements / dim)) {
      return Annotate(tensor, absl::InvalidArgumentError(absl::StrCat(
                                  "has a dimension of ", dim, ", or more than 2^31 elements")));
    }
    n *= dim;
    type.dims.push_back(dim);
  }
  return type;
}

absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const ModelFile& file) {
  return ReadFrom(tensor, &file, file.folder);
}

absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const std::string& folder) {
  return ReadFrom(tensor, /*file=*/nullptr, folder);
}

absl::Status CheckTensor(const onnx::TensorProto& tensor, const ModelFile& file) {
  const absl::StatusOr<TensorType> type = TypeOf(tensor);
  if (!type.ok()) return type.status();
  const absl::StatusOr<ElementReader> read = ReaderOf(tensor, *type, &file, file.folder);
  absl::Status status = read.status();
  if (status.ok() && *read == nullptr) {
    status = FillAs(tensor, type->num_elements(), /*out=*/nullptr);
  }
  return status.ok() ? status : Annotate(tensor, status);
}

absl::StatusOr<InitialValue> DeferredTensor(const onnx::TensorProto& tensor,
                                            const ModelFile& file) {
  absl::StatusOr<TensorType> type = TypeOf(tensor);
  if (!type.ok()) return type.status();
  absl::StatusOr<ElementReader> read = ReaderOf(tensor, *type, &file, file.folder);
  if (!read.ok()) return Annotate(tensor, read.status());
  InitialValue value{tensor.name(), *std::move(type), nullptr};
  if (*read == nullptr) {
    absl::StatusOr<HostTensor> whole = ReadFrom(tensor, &file, file.folder);
    if (!whole.ok()) return whole.status();
    value.read = ReaderOfBytes(std::move(whole->bytes));
    return value;
  }
  value.read = [read = *std::move(read), name = tensor.name()](int64_t offset, int64_t bytes,
                                                               char* out) {
    absl::Status status = read(offset, bytes, out);
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("tensor '", name, "' ", status.message()));
  };
  return value;
}

namespace {

template <typename T>
std::vector<T> ReadAll(const TensorType& type, const std::string& bytes) {
  std::vector<T> values(type.num_elements());
  const auto read = [&](auto zero) {
    using Element = decltype(zero);
    const Raw<Element> raw{bytes.data()};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(raw[i]);
  };
  switch (type.dtype) {
    case DType::kF32:
      read(float{});
      break;
    case DType::kI64:
      read(int64_t{});
      break;
    case DType::kI32:
      read(int32_t{});
      break;
    case DType::kI8:
      read(int8_t{});
      break;
    case DType::kBool:
    case DType::kU8:
      read(uint8_t{});
      break;
    default:
      break;
  }
  return values;
}

template <typename T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::vector<double> NumbersOf(const TensorType& type, const std::string& bytes) {
  return ReadAll<double>(type, bytes);
}

std::vector<int64_t> IntegersOf(const TensorType& type, const std::string& bytes) {
  return IsFloat(type.dtype) ? std::vector<int64_t>() : ReadAll<int64_t>(type, bytes);
}

void AppendNumber(DType dtype, double value, std::string* bytes) {
  switch (dtype) {
    case DType::kF32:
      return Append(static_cast<float>(value), bytes);
    case DType::kI64:
      return Append(static_cast<int64_t>(value), bytes);
    case DType::kI32:
      return Append(static_cast<int32_t>(value), bytes);
    case DType::kI8:
      return Append(static_cast<int8_t>(value), bytes);
    case DType::kU8:
      return Append(static_cast<uint8_t>(value), bytes);
    case DType::kBool:
      return Append(static_cast<uint8_t>(value != 0), bytes);
    default:
      return;
  }
}

}  // namespace espalier::onnx_import
