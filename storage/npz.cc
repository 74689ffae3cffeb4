// The ZIP container of .npz, after PKWARE's APPNOTE.TXT 6.3. Uses the central directory; of local
// headers only the lengths of name and extra field.
#include "storage/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/npy.h"

namespace espalier {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Locator = 0x07064b50, kEnd64 = 0x06064b50,
                   kCentralSignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr absl::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kMaxMembers = 10000;
constexpr uint64_t kMaxDirectory = 16 << 20;            // bytes
constexpr uint64_t kLocalBytes = 30, kEnd64Bytes = 56;  // sizes of the records' fixed parts
constexpr uint64_t kPiece = 1 << 20;                    // larger than the header of an .npy
// Deflate compresses at most 1032:1; larger claims are false.
constexpr int64_t kMaxRatio = 1032;

struct Member {
  std::string name;
  int method = 0;
  uint32_t crc = 0;
  uint64_t packed = 0, size = 0, offset = 0;
};

absl::Status BadNpz(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("npz: ", what));
}

// Little-endian fields; reads past the end set `failed` and give 0.
class Reader {
 public:
  Reader(absl::string_view bytes, uint64_t at) : bytes_(bytes), at_(at) {}

  template <typename T>
  T Take() {
    T value{};
    if (at_ > bytes_.size() || bytes_.size() - at_ < sizeof(T)) {
      failed = true;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  absl::string_view Text(uint64_t length) {
    if (at_ > bytes_.size() || bytes_.size() - at_ < length) {
      failed = true;
      return {};
    }
    absl::string_view text = bytes_.substr(at_, length);
    at_ += length;
    return text;
  }
  void Skip(uint64_t n) { at_ += n; }
  bool failed = false;

 private:
  absl::string_view bytes_;
  uint64_t at_;
};

void ApplyZip64(absl::string_view extra, Member* member) {
  Reader reader(extra, 0);
  while (!reader.failed) {
    const uint16_t id = reader.Take<uint16_t>();
    const uint16_t length = reader.Take<uint16_t>();
    Reader field(reader.Text(length), 0);
    if (reader.failed || id != 1) continue;
    if (member->size == 0xffffffffu) member->size = field.Take<uint64_t>();
    if (member->packed == 0xffffffffu) member->packed = field.Take<uint64_t>();
    if (member->offset == 0xffffffffu) member->offset = field.Take<uint64_t>();
  }
}

ByteSource SourceOf(absl::string_view bytes) {
  return {static_cast<int64_t>(bytes.size()), [bytes](int64_t at, int64_t n, char* to) {
            std::copy_n(bytes.data() + at, n, to);
            return absl::OkStatus();
          }};
}

bool IsWithin(const ByteSource& file, uint64_t at, uint64_t n) {
  const uint64_t size = static_cast<uint64_t>(file.size);
  return at <= size && n <= size - at;
}

// A view of bytes within the file.
absl::StatusOr<std::string> ReadPart(const ByteSource& file, uint64_t at, uint64_t n) {
  std::string part(n, '\0');
  absl::Status status = file.read(static_cast<int64_t>(at), static_cast<int64_t>(n), part.data());
  if (!status.ok()) return status;
  return part;
}

absl::StatusOr<std::vector<Member>> ReadDirectory(const ByteSource& file) {
  // The end record is 22 bytes and a comment of at most 65535; a ZIP64 locator of 20 bytes may
  // precede it.
  const uint64_t size = static_cast<uint64_t>(file.size);
  const uint64_t tail_at = size - std::min<uint64_t>(size, 20 + 22 + 65535);
  const absl::StatusOr<std::string> read = ReadPart(file, tail_at, size - tail_at);
  if (!read.ok()) return read.status();
  const std::string& tail = *read;
  size_t end = std::string::npos;
  for (size_t back = 22; back <= tail.size() && back <= 22 + 65535; ++back) {
    uint32_t signature;
    std::memcpy(&signature, tail.data() + tail.size() - back, 4);
    if (signature == kEndSignature) {
      end = tail.size() - back;
      break;
    }
  }
  if (end == std::string::npos) {
    return BadNpz("no end of a ZIP directory: the file is cut off or no .npz");
  }
  Reader reader(tail, end + 10);
  uint64_t count = reader.Take<uint16_t>();
  reader.Skip(4);
  uint64_t at = reader.Take<uint32_t>();
  if ((count == 0xffff || at == 0xffffffffu) && end >= 20) {
    Reader locator(tail, end - 20);
    if (locator.Take<uint32_t>() == kEnd64Locator) {
      locator.Skip(4);
      const uint64_t end64_at = locator.Take<uint64_t>();
      if (!IsWithin(file, end64_at, kEnd64Bytes)) return BadNpz("its ZIP64 directory is cut off");
      const absl::StatusOr<std::string> record = ReadPart(file, end64_at, kEnd64Bytes);
      if (!record.ok()) return record.status();
      Reader end64(*record, 0);
      if (end64.Take<uint32_t>() != kEnd64)
        return BadNpz("its ZIP64 directory is not where it says");
      end64.Skip(28);
      count = end64.Take<uint64_t>();
      end64.Skip(8);
      at = end64.Take<uint64_t>();
    }
  }
  if (count > kMaxMembers) {
    return BadNpz(absl::StrCat("it claims ", count, " members; at most ", kMaxMembers));
  }
  const uint64_t behind = tail_at + end;
  if (at > behind) return BadNpz("its directory is not where it says");
  if (behind - at > kMaxDirectory) {
    return BadNpz(
        absl::StrCat("its directory has ", behind - at, " bytes; at most ", kMaxDirectory));
  }
  const absl::StatusOr<std::string> directory = ReadPart(file, at, behind - at);
  if (!directory.ok()) return directory.status();
  std::vector<Member> members;
  Reader central(*directory, 0);
  for (uint64_t i = 0; i < count; ++i) {
    Member m;
    if (central.Take<uint32_t>() != kCentralSignature || central.failed) {
      return BadNpz(absl::StrCat("directory entry ", i, " is damaged"));
    }
    central.Skip(4);
    const uint16_t flags = central.Take<uint16_t>();
    m.method = central.Take<uint16_t>();
    central.Skip(4);
    m.crc = central.Take<uint32_t>();
    m.packed = central.Take<uint32_t>();
    m.size = central.Take<uint32_t>();
    const uint16_t name = central.Take<uint16_t>(), extra = central.Take<uint16_t>(),
                   comment = central.Take<uint16_t>();
    central.Skip(8);
    m.offset = central.Take<uint32_t>();
    const absl::string_view text = central.Text(name);
    m.name.assign(text.data(), text.size());
    ApplyZip64(central.Text(extra), &m);
    central.Skip(comment);
    if (central.failed) return BadNpz(absl::StrCat("directory entry ", i, " is cut off"));
    if (flags & 1) return BadNpz(absl::StrCat("member '", m.name, "' is encrypted"));
    members.push_back(std::move(m));
  }
  return members;
}

using Sink = std::function<absl::Status(absl::string_view piece)>;

// Passes on pieces of kPiece bytes and the remainder.
absl::Status Inflate(const ByteSource& file, uint64_t at, const Member& m, const Sink& sink) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::InternalError("zlib");
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  std::string in(kPiece, '\0'), out(kPiece, '\0');
  uint64_t taken = 0, done = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(kPiece);
    while (code == Z_OK && stream.avail_out > 0) {
      if (stream.avail_in == 0 && taken < m.packed) {
        const uint64_t n = std::min<uint64_t>(kPiece, m.packed - taken);
        absl::Status status =
            file.read(static_cast<int64_t>(at + taken), static_cast<int64_t>(n), in.data());
        if (!status.ok()) return status;
        taken += n;
        stream.next_in = reinterpret_cast<Bytef*>(in.data());
        stream.avail_in = static_cast<uInt>(n);
      }
      // At the end of the input inflate returns another code for lack of progress.
      code = inflate(&stream, Z_NO_FLUSH);
    }
    const uint64_t got = kPiece - stream.avail_out;
    const bool good = code == Z_OK || code == Z_STREAM_END;
    if (!good || got > m.size - done) break;  // or more than the header claims
    done += got;
    absl::Status status = sink(absl::string_view(out.data(), got));
    if (!status.ok()) return status;
    if (code == Z_STREAM_END && done == m.size) return absl::OkStatus();
  }
  return BadNpz(absl::StrCat("member '", m.name, "': its compressed data is damaged after ", done,
                             " of ", m.size, " bytes"));
}

// Passes on a stored member in pieces of kPiece bytes.
absl::Status Copy(const ByteSource& file, uint64_t at, const Member& m, const Sink& sink) {
  for (uint64_t done = 0; done < m.size;) {
    const uint64_t n = std::min<uint64_t>(kPiece, m.size - done);
    const absl::StatusOr<std::string> piece = ReadPart(file, at + done, n);
    if (!piece.ok()) return piece.status();
    if (absl::Status status = sink(*piece); !status.ok()) return status;
    done += n;
  }
  return absl::OkStatus();
}

absl::Status BadMember(const Member& m, absl::string_view what) {
  return BadNpz(absl::StrCat("member '", m.name, "': ", what));
}

// Returns where the packed data of a member begins. It is within the file.
absl::StatusOr<uint64_t> Locate(const ByteSource& file, const Member& m) {
  if (!IsWithin(file, m.offset, kLocalBytes)) {
    return BadMember(m, "its local header is not where the directory says");
  }
  const absl::StatusOr<std::string> header = ReadPart(file, m.offset, kLocalBytes);
  if (!header.ok()) return header.status();
  Reader local(*header, 0);
  if (local.Take<uint32_t>() != kLocalSignature) {
    return BadMember(m, "its local header is not where the directory says");
  }
  local.Skip(22);
  const uint16_t name = local.Take<uint16_t>(), extra = local.Take<uint16_t>();
  const uint64_t at = m.offset + kLocalBytes + name + extra;
  if (!IsWithin(file, at, m.packed)) return BadMember(m, "it is cut off");
  if (m.method == 0 && m.packed != m.size) return BadMember(m, "stored size and real size differ");
  return at;
}

absl::Status CheckSum(const Member& m, uLong crc) {
  if (static_cast<uint32_t>(crc) == m.crc) return absl::OkStatus();
  return BadMember(m, "its checksum does not fit its data");
}

absl::Status Extract(const ByteSource& file, const Member& m, const Sink& sink) {
  const absl::StatusOr<uint64_t> at = Locate(file, m);
  if (!at.ok()) return at.status();
  uLong crc = 0;
  const Sink summed = [&](absl::string_view piece) {
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    return sink(piece);
  };
  absl::Status status;
  if (m.method == 0) {
    status = Copy(file, *at, m, summed);
  } else if (m.method == 8) {
    status = Inflate(file, *at, m, summed);
  } else {
    return BadMember(
        m, absl::StrCat("compression method ", m.method, "; accepted: 0 (stored), 8 (deflate)"));
  }
  return status.ok() ? CheckSum(m, crc) : status;
}

// Returns a member of a file in memory: a view of it if it is stored, else of `inflated`.
absl::StatusOr<absl::string_view> ExtractView(absl::string_view bytes, const Member& m,
                                              std::string* inflated) {
  const ByteSource file = SourceOf(bytes);
  if (m.method == 0) {
    const absl::StatusOr<uint64_t> at = Locate(file, m);
    if (!at.ok()) return at.status();
    const absl::string_view data = bytes.substr(*at, m.size);
    const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size());
    if (absl::Status s = CheckSum(m, crc); !s.ok()) return s;
    return data;
  }
  inflated->reserve(m.size);
  const absl::Status status = Extract(file, m, [&](absl::string_view piece) {
    inflated->append(piece.data(), piece.size());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return absl::string_view(*inflated);
}

std::string PlaceOf(const std::string& column) {
  return absl::StrCat("npz: column '", column, "'");
}

// Returns all columns by name, read by `read` after their headers are checked. `read` receives the
// rest of `limit` for the values of its column.
template <typename T, typename Read>
absl::StatusOr<std::map<std::string, T>> ReadColumns(const ByteSource& file, int64_t limit,
                                                     const Read& read) {
  absl::StatusOr<std::vector<Member>> members = ReadDirectory(file);
  if (!members.ok()) return members.status();
  uint64_t total = 0;
  int64_t left = limit;
  std::map<std::string, T> columns;
  for (const Member& m : *members) {
    const std::string place = absl::StrCat("member '", m.name, "'");
    const uint64_t bound = static_cast<uint64_t>(limit);
    if (m.size > bound || (total += m.size) > bound) {
      return BadNpz(
          absl::StrCat(place, " claims ", m.size, " bytes; all members together may have ", limit));
    }
    if (m.packed > static_cast<uint64_t>(file.size) || m.size > m.packed * kMaxRatio + 64) {
      return BadNpz(
          absl::StrCat(place, " claims ", m.size, " bytes from ", m.packed, " compressed"));
    }
    const std::string suffix = ".npy";
    if (m.name.size() <= suffix.size() ||
        m.name.compare(m.name.size() - suffix.size(), suffix.size(), suffix) != 0) {
      return BadNpz(absl::StrCat(place, " is no .npy array"));
    }
    const std::string column = m.name.substr(0, m.name.size() - suffix.size());
    if (columns.count(column) > 0)
      return BadNpz(absl::StrCat("column '", column, "' is there twice"));
    absl::StatusOr<T> made = read(column, m, left);
    if (!made.ok()) return made.status();
    left -= made->type.bytes();
    columns.emplace(column, *std::move(made));
  }
  if (columns.empty()) return BadNpz("it has no members");
  return columns;
}

absl::StatusOr<ArraySummary> SummarizeNpy(const ByteSource& file, const std::string& name,
                                          int64_t limit) {
  NpyScanner scan(PlaceOf(name), file.size, limit);
  const uint64_t size = static_cast<uint64_t>(file.size);
  for (uint64_t at = 0; at < size; at += kPiece) {
    const absl::StatusOr<std::string> piece = ReadPart(file, at, std::min(kPiece, size - at));
    if (!piece.ok()) return piece.status();
    if (absl::Status status = scan.Take(*piece); !status.ok()) return status;
  }
  return scan.Finish();
}

}  // namespace

absl::StatusOr<std::map<std::string, Array>> ParseNpz(absl::string_view bytes, int64_t limit,
                                                      const std::string& npy_name) {
  if (absl::StartsWith(bytes, kNpyMagic)) {
    absl::StatusOr<Array> array = ParseNpy(bytes, PlaceOf(npy_name), limit);
    if (!array.ok()) return array.status();
    std::map<std::string, Array> columns;
    columns.emplace(npy_name, *std::move(array));
    return columns;
  }
  const ByteSource file = SourceOf(bytes);
  return ReadColumns<Array>(
      file, limit,
      [&](const std::string& column, const Member& m, int64_t left) -> absl::StatusOr<Array> {
        std::string inflated;
        const absl::StatusOr<absl::string_view> data = ExtractView(bytes, m, &inflated);
        if (!data.ok()) return data.status();
        return ParseNpy(*data, PlaceOf(column), left);
      });
}

absl::StatusOr<std::map<std::string, ArraySummary>> SummarizeNpz(const ByteSource& file,
                                                                 int64_t limit,
                                                                 const std::string& npy_name) {
  const absl::StatusOr<std::string> start =
      ReadPart(file, 0, std::min<uint64_t>(kNpyMagic.size(), static_cast<uint64_t>(file.size)));
  if (!start.ok()) return start.status();
  if (*start == kNpyMagic) {
    absl::StatusOr<ArraySummary> array = SummarizeNpy(file, npy_name, limit);
    if (!array.ok()) return array.status();
    return std::map<std::string, ArraySummary>{{npy_name, *array}};
  }
  return ReadColumns<ArraySummary>(
      file, limit,
      [&](const std::string& column, const Member& m,
          int64_t left) -> absl::StatusOr<ArraySummary> {
        NpyScanner scan(PlaceOf(column), static_cast<int64_t>(m.size), left);
        const absl::Status status =
            Extract(file, m, [&](absl::string_view piece) { return scan.Take(piece); });
        if (!status.ok()) return status;
        return scan.Finish();
      });
}

}  // namespace espalier
