#include "storage/npz_writer.h"

#include <zlib.h>

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

const char* Descr(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "<f4";
    case DType::kF16:
      return "<f2";
    case DType::kI32:
      return "<i4";
    case DType::kI64:
      return "<i8";
    case DType::kI8:
      return "|i1";
    case DType::kU8:
      return "|u1";
    case DType::kBool:
      return "|b1";
    default:
      return nullptr;
  }
}

void AppendInt(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// .npy header version 1.0, padded to start the data at a multiple of 64.
std::string NpyHeader(const TensorType& type) {
  std::string shape;
  for (const int64_t extent : type.dims) absl::StrAppend(&shape, extent, ", ");
  std::string text = absl::StrCat("{'descr': '", Descr(type.dtype),
                                  "', 'fortran_order': False, 'shape': (", shape, "), }");
  constexpr size_t kBefore = 10, kAlign = 64;
  text.append(kAlign - 1 - (kBefore + text.size()) % kAlign, ' ');
  text.push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  AppendInt(text.size(), 2, &header);
  return header + text;
}

uint64_t BytesOf(const ArrayPieces& array) {
  uint64_t bytes = 0;
  for (const absl::string_view piece : array.pieces) bytes += piece.size();
  return bytes;
}

// About the size of the file, and not less.
uint64_t FileBytes(const std::map<std::string, ArrayPieces>& arrays) {
  uint64_t bytes = 64;
  for (const auto& [name, array] : arrays) bytes += BytesOf(array) + 2 * name.size() + 1024;
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> WriteNpz(const std::map<std::string, Array>& arrays) {
  std::map<std::string, ArrayPieces> views;
  for (const auto& [name, array] : arrays) {
    views[name] = {array.type, {absl::string_view(array.data.data(), array.data.size())}};
  }
  return WriteNpz(views);
}

absl::StatusOr<std::string> WriteNpz(const std::map<std::string, ArrayPieces>& arrays) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  std::string file, central;
  file.reserve(FileBytes(arrays));
  for (const auto& [name, array] : arrays) {
    const uint64_t bytes = BytesOf(array);
    if (Descr(array.type.dtype) == nullptr || static_cast<int64_t>(bytes) != array.type.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("npz: array '", name, "' is ", ToString(array.type), " with ", bytes,
                       " bytes; expected a type of NumPy and its bytes"));
    }
    const std::string member = name + ".npy";
    const std::string header = NpyHeader(array.type);
    const uint64_t size = header.size() + bytes;
    if (file.size() + size + central.size() + 1024 > kMost || member.size() > 0xFFFF) {
      return absl::InvalidArgumentError("npz: more than 4 GiB; write several files");
    }
    uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
    for (const absl::string_view piece : array.pieces) {
      if (piece.empty()) continue;  // crc32_z takes a null pointer for the start of a sum
      sum = crc32_z(sum, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    }
    std::string common;                 // shared by both headers of a member
    AppendInt(20, 2, &common);          // version needed to extract
    AppendInt(0, 2, &common);           // flags
    AppendInt(0, 2, &common);           // stored
    AppendInt(0x21 << 16, 4, &common);  // midnight, the first of January 1980
    AppendInt(sum, 4, &common);
    AppendInt(size, 4, &common);
    AppendInt(size, 4, &common);
    AppendInt(member.size(), 2, &common);
    AppendInt(0, 2, &common);  // extra
    AppendInt(0x02014b50, 4, &central);
    AppendInt(20, 2, &central);  // made by
    central += common;
    AppendInt(0, 2, &central);  // comment
    AppendInt(0, 2, &central);  // disk
    AppendInt(0, 2, &central);
    AppendInt(0, 4, &central);
    AppendInt(file.size(), 4, &central);
    central += member;
    AppendInt(0x04034b50, 4, &file);
    file += common;
    file += member;
    file += header;
    for (const absl::string_view piece : array.pieces) file.append(piece.data(), piece.size());
  }
  const size_t start = file.size();
  file += central;
  AppendInt(0x06054b50, 4, &file);
  AppendInt(0, 4, &file);
  AppendInt(arrays.size(), 2, &file);
  AppendInt(arrays.size(), 2, &file);
  AppendInt(central.size(), 4, &file);
  AppendInt(start, 4, &file);
  AppendInt(0, 2, &file);
  return file;
}

}  // namespace espalier
