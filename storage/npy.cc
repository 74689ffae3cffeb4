#include "storage/npy.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/dtype/convert.h"

static_assert(std::endian::native == std::endian::little);

namespace espalier {
namespace {

constexpr int64_t kMaxNpyHeader = 65536;
constexpr int kMaxNpyRank = 8;

struct Header {
  char kind = 0;  // 'f', 'i', 'u', 'b'
  int size = 0;   // bytes per element
  bool swap = false;
  bool fortran = false;
  Dims shape;
  int64_t begin = 0;  // offset of the data in the file
  int64_t count = 0;  // elements
};

absl::Status BadNpy(const std::string& name, const std::string& what) {
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
    return BadNpy(
        name, absl::StrCat("'descr' is no simple type (structured arrays are not read)", accepted));
  }
  const size_t end = value.find(value[0], 1);
  if (end == std::string::npos) return BadNpy(name, "'descr' does not end");
  const std::string descr = value.substr(1, end - 1);
  if (descr.find('O') != std::string::npos) {
    return BadNpy(name,
                  absl::StrCat("it holds Python objects, which are never unpickled", accepted));
  }
  int size = 0;
  if (descr.size() < 3 || std::string("<>|=").find(descr[0]) == std::string::npos ||
      !absl::SimpleAtoi(descr.substr(2), &size)) {
    return BadNpy(name, absl::StrCat("type '", descr, "' is not read", accepted));
  }
  header->kind = descr[1];
  header->size = size;
  header->swap = descr[0] == '>' && size > 1;
  const bool known = (header->kind == 'b' && size == 1) ||
                     ((header->kind == 'i' || header->kind == 'u') &&
                      (size == 1 || size == 2 || size == 4 || size == 8)) ||
                     (header->kind == 'f' && (size == 2 || size == 4 || size == 8));
  if (!known) return BadNpy(name, absl::StrCat("type '", descr, "' is not read", accepted));
  return absl::OkStatus();
}

absl::Status ParseShape(const std::string& name, const std::string& value, Header* header) {
  const size_t end = value.find(')');
  if (value.empty() || value[0] != '(' || end == std::string::npos) {
    return BadNpy(name, "'shape' is no tuple");
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
      return BadNpy(name, "'shape' holds something that is no size");
    }
    header->shape.push_back(extent);
    at = stop;
  }
  if (header->shape.size() > kMaxNpyRank) {
    return BadNpy(
        name, absl::StrCat("it has ", header->shape.size(), " dimensions; at most ", kMaxNpyRank));
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

constexpr int Key(char kind, int size) { return kind * 16 + size; }

bool KeepsBytes(const Header& header) {
  switch (Key(header.kind, header.size)) {
    case Key('f', 4):
    case Key('i', 4):
    case Key('i', 8):
    case Key('u', 8):
      return true;
    default:
      return false;
  }
}

void Convert(const Header& header, const char* from, int64_t n, char* to) {
  const int key = Key(header.kind, header.size);
  switch (key) {
    case Key('f', 8):
      return Widen<double, float>(from, n, to);
    case Key('f', 2):
      for (int64_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, from + 2 * i, 2);
        const float value = F16ToF32(half);
        std::memcpy(to + 4 * i, &value, 4);
      }
      return;
    case Key('i', 1):
      return Widen<int8_t, int32_t>(from, n, to);
    case Key('i', 2):
      return Widen<int16_t, int32_t>(from, n, to);
    case Key('u', 1):
      return Widen<uint8_t, int32_t>(from, n, to);
    case Key('u', 2):
      return Widen<uint16_t, int32_t>(from, n, to);
    case Key('u', 4):
      return Widen<uint32_t, int64_t>(from, n, to);
    case Key('b', 1):
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
      return;
    default:  // f4, i4, i8, u8 keep their bytes
      if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * header.size);
  }
}

// Appends n converted elements.
void Append(const Header& header, const char* from, int64_t n, std::vector<char>* to) {
  if (KeepsBytes(header)) {
    to->insert(to->end(), from, from + n * header.size);
    return;
  }
  const size_t at = to->size();
  to->resize(at + static_cast<size_t>(n) * SizeOf(ResultType(header)));
  Convert(header, from, n, to->data() + at);
}

// Reorders column-major to row-major.
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

// Returns the row-major index of element `i` of a column-major array.
int64_t RowMajor(int64_t i, const Dims& shape) {
  Dims index;
  for (const int64_t extent : shape) {
    index.push_back(i % extent);
    i /= extent;
  }
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

// Swaps the bytes of big-endian elements.
void SwapBytes(const Header& header, int64_t n, char* data) {
  for (int64_t i = 0; i < n * header.size; i += header.size) {
    std::reverse(data + i, data + i + header.size);
  }
}

// Notes the first non-finite value among converted elements that start at element `first` of the
// array.
absl::Status CheckSigns(const std::string& name, const Header& header, const char* data, int64_t n,
                        int64_t first) {
  if (header.kind != 'u' || header.size != 8) return absl::OkStatus();
  for (int64_t i = 0; i < n; ++i) {
    int64_t value;
    std::memcpy(&value, data + 8 * i, 8);
    if (value < 0) return BadNpy(name, absl::StrCat("element ", first + i, " is beyond 2^63"));
  }
  return absl::OkStatus();
}

// `bytes` are the start of a file of `total` bytes and must hold its header.
absl::StatusOr<Header> ReadHeader(absl::string_view bytes, int64_t total, const std::string& name,
                                  int64_t limit) {
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    return BadNpy(name, "it is no .npy array (it does not begin with \\x93NUMPY)");
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) {
    return BadNpy(name, absl::StrCat("format version ", version, "; accepted: 1, 2, 3"));
  }
  const size_t prefix = version == 1 ? 10 : 12;
  uint32_t length = 0;
  if (bytes.size() < prefix) return BadNpy(name, "it is cut off inside its header");
  std::memcpy(&length, bytes.data() + 8, version == 1 ? 2 : 4);
  if (length > kMaxNpyHeader || length > bytes.size() - prefix) {
    return BadNpy(name, absl::StrCat("its header claims ", length, " bytes; the file has ",
                                     static_cast<size_t>(total) - prefix, " more, and at most ",
                                     kMaxNpyHeader, " are accepted"));
  }
  const std::string text(bytes.data() + prefix, length);
  Header header;
  const std::optional<std::string> descr = After(text, "descr"), shape = After(text, "shape"),
                                   order = After(text, "fortran_order");
  if (!descr || !shape || !order) {
    return BadNpy(name, "its header lacks 'descr', 'fortran_order' or 'shape'");
  }
  if (absl::Status s = ParseDescr(name, *descr, &header); !s.ok()) return s;
  if (absl::Status s = ParseShape(name, *shape, &header); !s.ok()) return s;
  header.fortran = order->rfind("True", 0) == 0;
  int64_t count = 1, size = 0, wide = 0;
  for (int64_t extent : header.shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return BadNpy(name, "'shape' overflows");
  }
  if (__builtin_mul_overflow(count, int64_t{header.size}, &size) ||
      __builtin_mul_overflow(count, int64_t{8}, &wide)) {
    return BadNpy(name, "'shape' overflows");
  }
  header.begin = static_cast<int64_t>(prefix + length);
  header.count = count;
  const int64_t have = total - header.begin;
  if (size != have) {
    return BadNpy(name, absl::StrCat("'shape' ", ToString(header.shape), " needs ", size,
                                     " bytes of data, the file holds ", have));
  }
  // Small integers are widened, so the file may be a quarter of the array's size.
  if (const int64_t values = TensorType{ResultType(header), header.shape}.bytes(); values > limit) {
    return BadNpy(name, absl::StrCat("its values take ", values, " bytes in memory, for which ",
                                     limit, " are left of the limit; split the dataset"));
  }
  return header;
}

}  // namespace

absl::StatusOr<Array> ParseNpy(absl::string_view bytes, const std::string& name, int64_t limit) {
  const absl::StatusOr<Header> read =
      ReadHeader(bytes, static_cast<int64_t>(bytes.size()), name, limit);
  if (!read.ok()) return read.status();
  const Header& header = *read;
  std::vector<char> swapped;
  const char* data = bytes.data() + header.begin;
  if (header.swap) {
    swapped.assign(data, data + header.count * header.size);
    SwapBytes(header, header.count, swapped.data());
    data = swapped.data();
  }
  Array array;
  array.type = {ResultType(header), header.shape};
  Append(header, data, header.count, &array.data);
  absl::Status signs = CheckSigns(name, header, array.data.data(), header.count, 0);
  if (!signs.ok()) return signs;
  if (header.fortran && header.shape.size() > 1) {
    array.data = Transposed(array.data, header.shape, SizeOf(array.type.dtype));
  }
  return array;
}

Array AsRead(const ArrayPieces& array) {
  Header header;
  header.kind = IsFloat(array.type.dtype)          ? 'f'
                : array.type.dtype == DType::kBool ? 'b'
                : array.type.dtype == DType::kU8   ? 'u'
                                                   : 'i';
  header.size = static_cast<int>(SizeOf(array.type.dtype));
  Array read;
  read.type = {ResultType(header), array.type.dims};
  read.data.reserve(static_cast<size_t>(read.type.bytes()));
  for (const absl::string_view piece : array.pieces) {
    Append(header, piece.data(), static_cast<int64_t>(piece.size()) / header.size, &read.data);
  }
  return read;
}

struct NpyScanner::State {
  std::string name;
  int64_t bytes = 0, limit = 0;
  std::optional<Header> header;
  std::string rest;          // partial element at the end of the last piece
  std::vector<char> values;  // of one piece, converted
  int64_t taken = 0;         // elements
  int64_t not_finite = -1;   // in the order of the file
  bool nan = false;
  IntegerExtremes extremes;

  absl::Status Begin() {
    absl::StatusOr<Header> read = ReadHeader(rest, bytes, name, limit);
    if (!read.ok()) return read.status();
    header = *std::move(read);
    rest.erase(0, static_cast<size_t>(header->begin));
    return absl::OkStatus();
  }

  template <typename T>
  void NoteExtremes(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      T value;
      std::memcpy(&value, values.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      extremes.Add(value, taken + i);
    }
  }

  void NoteIntegers(int64_t n) {
    if (ResultType(*header) == DType::kI32) NoteExtremes<int32_t>(n);
    if (ResultType(*header) == DType::kI64) NoteExtremes<int64_t>(n);
  }

  void NoteFirstNotFinite(int64_t n) {
    if (ResultType(*header) != DType::kF32) return;
    for (int64_t i = 0; i < n && not_finite < 0; ++i) {
      float value;
      std::memcpy(&value, values.data() + 4 * i, 4);
      if (std::isfinite(value)) continue;
      not_finite = taken + i;
      nan = std::isnan(value);
    }
  }
};

NpyScanner::NpyScanner(const std::string& name, int64_t bytes, int64_t limit)
    : state_(std::make_unique<State>()) {
  state_->name = name;
  state_->bytes = bytes;
  state_->limit = limit;
}

NpyScanner::~NpyScanner() = default;

absl::Status NpyScanner::Take(absl::string_view piece) {
  State& s = *state_;
  s.rest.append(piece.data(), piece.size());
  if (!s.header.has_value()) {
    if (absl::Status status = s.Begin(); !status.ok()) return status;
  }
  const Header& header = *s.header;
  const int64_t n = static_cast<int64_t>(s.rest.size()) / header.size;
  if (header.swap) SwapBytes(header, n, s.rest.data());
  s.values.resize(static_cast<size_t>(n) * SizeOf(ResultType(header)));
  Convert(header, s.rest.data(), n, s.values.data());
  absl::Status signs = CheckSigns(s.name, header, s.values.data(), n, s.taken);
  if (!signs.ok()) return signs;
  s.NoteFirstNotFinite(n);
  s.NoteIntegers(n);
  s.taken += n;
  s.rest.erase(0, static_cast<size_t>(n * header.size));
  return absl::OkStatus();
}

absl::StatusOr<ArraySummary> NpyScanner::Finish() {
  State& s = *state_;
  if (!s.header.has_value()) {
    if (absl::Status status = s.Begin(); !status.ok()) return status;
  }
  ArraySummary outline;
  outline.type = {ResultType(*s.header), s.header->shape};
  outline.nan = s.nan;
  outline.not_finite = s.not_finite;
  outline.extremes = s.extremes;
  if (s.header->fortran) {
    const auto row_major = [&](int64_t i) { return RowMajor(i, s.header->shape); };
    if (s.not_finite >= 0) outline.not_finite = row_major(s.not_finite);
    outline.extremes.MapIndices(row_major);
  }
  return outline;
}

}  // namespace espalier
