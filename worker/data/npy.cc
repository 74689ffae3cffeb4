#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"
#include "worker/data/npz.h"

static_assert(std::endian::native == std::endian::little);

namespace espalier {
namespace {

constexpr int64_t kMaxHeader = 65536;
constexpr int kMaxRank = 8;

struct Header {
  char kind = 0;  // 'f', 'i', 'u', 'b'
  int size = 0;   // bytes per element
  bool swap = false;
  bool fortran = false;
  Dims shape;
};

absl::Status Bad(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

// Finds `'key': ` in the header's Python dictionary and returns what follows.
std::optional<std::string> After(const std::string& text, const std::string& key) {
  for (char quote : {'\'', '"'}) {
    const std::string quoted = quote + key + quote;
    const size_t at = text.find(quoted);
    if (at == std::string::npos) continue;
    size_t next = at + quoted.size();
    while (next < text.size() && std::isspace(static_cast<unsigned char>(text[next]))) ++next;
    if (next >= text.size() || text[next] != ':') continue;
    ++next;
    while (next < text.size() && std::isspace(static_cast<unsigned char>(text[next]))) ++next;
    return text.substr(next);
  }
  return std::nullopt;
}

absl::Status ParseDescr(const std::string& name, const std::string& value, Header* header) {
  const std::string accepted =
      "; accepted: bool, int8 to int64, uint8 to uint64, float16, float32, float64";
  if (value.size() < 2 || (value[0] != '\'' && value[0] != '"')) {
    return Bad(
        name, absl::StrCat("'descr' is no simple type (structured arrays are not read)", accepted));
  }
  const size_t end = value.find(value[0], 1);
  if (end == std::string::npos) return Bad(name, "'descr' does not end");
  const std::string descr = value.substr(1, end - 1);
  if (descr.find('O') != std::string::npos) {
    return Bad(name, absl::StrCat("it holds Python objects, which are never unpickled", accepted));
  }
  int size = 0;
  if (descr.size() < 3 || std::string("<>|=").find(descr[0]) == std::string::npos ||
      !absl::SimpleAtoi(descr.substr(2), &size)) {
    return Bad(name, absl::StrCat("type '", descr, "' is not read", accepted));
  }
  header->kind = descr[1];
  header->size = size;
  header->swap = descr[0] == '>' && size > 1;
  const bool known = (header->kind == 'b' && size == 1) ||
                     ((header->kind == 'i' || header->kind == 'u') &&
                      (size == 1 || size == 2 || size == 4 || size == 8)) ||
                     (header->kind == 'f' && (size == 2 || size == 4 || size == 8));
  if (!known) return Bad(name, absl::StrCat("type '", descr, "' is not read", accepted));
  return absl::OkStatus();
}

absl::Status ParseShape(const std::string& name, const std::string& value, Header* header) {
  const size_t end = value.find(')');
  if (value.empty() || value[0] != '(' || end == std::string::npos) {
    return Bad(name, "'shape' is no tuple");
  }
  size_t at = 1;
  while (at < end) {
    if (value[at] == ' ' || value[at] == ',') {
      ++at;
      continue;
    }
    size_t stop = at;
    while (stop < end && std::isdigit(static_cast<unsigned char>(value[stop]))) ++stop;
    int64_t extent = 0;
    if (stop == at || !absl::SimpleAtoi(value.substr(at, stop - at), &extent)) {
      return Bad(name, "'shape' holds something that is no size");
    }
    header->shape.push_back(extent);
    at = stop;
  }
  if (header->shape.size() > kMaxRank) {
    return Bad(name,
               absl::StrCat("it has ", header->shape.size(), " dimensions; at most ", kMaxRank));
  }
  return absl::OkStatus();
}

template <typename From, typename To>
void Widen(const char* from, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To wide = static_cast<To>(value);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), &wide, sizeof(To));
  }
}

DType ResultType(const Header& header) {
  if (header.kind == 'b') return DType::kBool;
  if (header.kind == 'f') return DType::kF32;
  const bool wide = header.size == 8 || (header.kind == 'u' && header.size == 4);
  return wide ? DType::kI64 : DType::kI32;
}

void Convert(const Header& header, const char* from, int64_t n, char* to) {
  const int key = header.kind * 16 + header.size;
  switch (key) {
    case 'f' * 16 + 8:
      return Widen<double, float>(from, n, to);
    case 'f' * 16 + 2:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, from + 2 * i, 2);
        const float value = F16ToF32(half);
        std::memcpy(to + 4 * i, &value, 4);
      }
      return;
    case 'i' * 16 + 1:
      return Widen<int8_t, int32_t>(from, n, to);
    case 'i' * 16 + 2:
      return Widen<int16_t, int32_t>(from, n, to);
    case 'u' * 16 + 1:
      return Widen<uint8_t, int32_t>(from, n, to);
    case 'u' * 16 + 2:
      return Widen<uint16_t, int32_t>(from, n, to);
    case 'u' * 16 + 4:
      return Widen<uint32_t, int64_t>(from, n, to);
    case 'b' * 16 + 1:
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
      return;
    default:  // f4, i4, i8, u8 keep their bytes
      if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * header.size);
  }
}

// Column-major to row-major.
std::vector<char> Transposed(const std::vector<char>& data, const Dims& shape, size_t element) {
  std::vector<char> out(data.size());
  const int rank = static_cast<int>(shape.size());
  Dims stride(rank, 1), index(rank, 0);
  for (int d = 1; d < rank; ++d) stride[d] = stride[d - 1] * shape[d - 1];
  const int64_t count = NumElements(shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t from = 0;
    for (int d = 0; d < rank; ++d) from += index[d] * stride[d];
    std::memcpy(out.data() + i * element, data.data() + from * element, element);
    for (int d = rank - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
  return out;
}

}  // namespace

absl::StatusOr<Array> ParseNpy(absl::string_view bytes, const std::string& name) {
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    return Bad(name, "it is no .npy array (it does not begin with \\x93NUMPY)");
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) {
    return Bad(name, absl::StrCat("format version ", version, "; accepted: 1, 2, 3"));
  }
  const size_t prefix = version == 1 ? 10 : 12;
  uint32_t length = 0;
  if (bytes.size() < prefix) return Bad(name, "it is cut off inside its header");
  std::memcpy(&length, bytes.data() + 8, version == 1 ? 2 : 4);
  if (length > kMaxHeader || length > bytes.size() - prefix) {
    return Bad(name, absl::StrCat("its header claims ", length, " bytes; the file has ",
                                  bytes.size() - prefix, " more, and at most ", kMaxHeader,
                                  " are accepted"));
  }
  const std::string text(bytes.data() + prefix, length);
  Header header;
  const std::optional<std::string> descr = After(text, "descr"), shape = After(text, "shape"),
                                   order = After(text, "fortran_order");
  if (!descr || !shape || !order) {
    return Bad(name, "its header lacks 'descr', 'fortran_order' or 'shape'");
  }
  if (absl::Status s = ParseDescr(name, *descr, &header); !s.ok()) return s;
  if (absl::Status s = ParseShape(name, *shape, &header); !s.ok()) return s;
  header.fortran = order->rfind("True", 0) == 0;
  int64_t count = 1, size = 0, wide = 0;
  for (int64_t extent : header.shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return Bad(name, "'shape' overflows");
  }
  if (__builtin_mul_overflow(count, int64_t{header.size}, &size) ||
      __builtin_mul_overflow(count, int64_t{8}, &wide)) {
    return Bad(name, "'shape' overflows");
  }
  const size_t have = bytes.size() - prefix - length;
  if (static_cast<uint64_t>(size) != have) {
    return Bad(name, absl::StrCat("'shape' ", ToString(header.shape), " needs ", size,
                                  " bytes of data, the file holds ", have));
  }
  std::vector<char> swapped;
  const char* data = bytes.data() + prefix + length;
  if (header.swap) {
    swapped.assign(data, data + size);
    for (int64_t i = 0; i < size; i += header.size) {
      std::reverse(swapped.begin() + i, swapped.begin() + i + header.size);
    }
    data = swapped.data();
  }
  Array array;
  array.type = {ResultType(header), header.shape};
  array.data.resize(static_cast<size_t>(array.type.bytes()));
  Convert(header, data, count, array.data.data());
  if (header.kind == 'u' && header.size == 8) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t value;
      std::memcpy(&value, array.data.data() + 8 * i, 8);
      if (value < 0) return Bad(name, absl::StrCat("element ", i, " is beyond 2^63"));
    }
  }
  if (header.fortran && header.shape.size() > 1) {
    array.data = Transposed(array.data, header.shape, SizeOf(array.type.dtype));
  }
  return array;
}

}  // namespace espalier
