#include "client/cli/history/thrift_compact.h"

#include <utility>

namespace espalier {
namespace {

enum ThriftType {
  kThriftI32 = 5,
  kThriftI64 = 6,
  kThriftBinary = 8,
  kThriftList = 9,
  kThriftStruct = 12
};

uint64_t ZigZag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

void AppendBinary(absl::string_view value, std::string* out) {
  AppendVarint(value.size(), out);
  out->append(value.data(), value.size());
}

}  // namespace

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    *out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out += static_cast<char>(value);
}

void ThriftStruct::Field(int id, int type) {
  const int delta = id - last_id_;
  if (delta >= 1 && delta <= 15) {
    bytes_ += static_cast<char>(delta << 4 | type);
  } else {
    bytes_ += static_cast<char>(type);
    AppendVarint(ZigZag(id), &bytes_);
  }
  last_id_ = id;
}

void ThriftStruct::ListHead(int id, int type, size_t size) {
  Field(id, kThriftList);
  if (size < 15) {
    bytes_ += static_cast<char>(size << 4 | static_cast<size_t>(type));
  } else {
    bytes_ += static_cast<char>(0xf0 | type);
    AppendVarint(size, &bytes_);
  }
}

void ThriftStruct::Int32(int id, int32_t value) {
  Field(id, kThriftI32);
  AppendVarint(ZigZag(value), &bytes_);
}

void ThriftStruct::Int64(int id, int64_t value) {
  Field(id, kThriftI64);
  AppendVarint(ZigZag(value), &bytes_);
}

void ThriftStruct::Text(int id, absl::string_view value) {
  Field(id, kThriftBinary);
  AppendBinary(value, &bytes_);
}

void ThriftStruct::Struct(int id, ThriftStruct value) {
  Field(id, kThriftStruct);
  bytes_ += value.Take();
}

void ThriftStruct::Int32List(int id, const std::vector<int32_t>& values) {
  ListHead(id, kThriftI32, values.size());
  for (const int32_t value : values) AppendVarint(ZigZag(value), &bytes_);
}

void ThriftStruct::TextList(int id, const std::vector<std::string>& values) {
  ListHead(id, kThriftBinary, values.size());
  for (const std::string& value : values) AppendBinary(value, &bytes_);
}

void ThriftStruct::StructList(int id, std::vector<ThriftStruct> values) {
  ListHead(id, kThriftStruct, values.size());
  for (ThriftStruct& value : values) bytes_ += value.Take();
}

std::string ThriftStruct::Take() {
  bytes_ += '\0';
  return std::move(bytes_);
}

}  // namespace espalier
