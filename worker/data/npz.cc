// The ZIP container of .npz, after PKWARE's APPNOTE.TXT 6.3: the central directory is what counts;
// of the local headers only the lengths of name and extra field are used.
#include "worker/data/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Locator = 0x07064b50, kEnd64 = 0x06064b50,
                   kCentralSignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr size_t kMaxMembers = 10000;
// Deflate cannot do better than 1032 to 1; a claim beyond that is a lie.
constexpr int64_t kMaxRatio = 1032;

struct Member {
  std::string name;
  int method = 0;
  uint32_t crc = 0;
  uint64_t packed = 0, size = 0, offset = 0;
};

absl::Status Bad(const std::string& what) {
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

absl::StatusOr<std::vector<Member>> ReadDirectory(absl::string_view bytes) {
  // The end record is 22 bytes and a comment of at most 65535.
  size_t end = std::string::npos;
  for (size_t back = 22; back <= bytes.size() && back <= 22 + 65535; ++back) {
    uint32_t signature;
    std::memcpy(&signature, bytes.data() + bytes.size() - back, 4);
    if (signature == kEndSignature) {
      end = bytes.size() - back;
      break;
    }
  }
  if (end == std::string::npos) {
    return Bad("no end of a ZIP directory: the file is cut off or no .npz");
  }
  Reader reader(bytes, end + 10);
  uint64_t count = reader.Take<uint16_t>();
  reader.Skip(4);
  uint64_t at = reader.Take<uint32_t>();
  if ((count == 0xffff || at == 0xffffffffu) && end >= 20) {
    Reader locator(bytes, end - 20);
    if (locator.Take<uint32_t>() == kEnd64Locator) {
      locator.Skip(4);
      Reader end64(bytes, locator.Take<uint64_t>());
      if (end64.Take<uint32_t>() != kEnd64) return Bad("its ZIP64 directory is not where it says");
      end64.Skip(28);
      count = end64.Take<uint64_t>();
      end64.Skip(8);
      at = end64.Take<uint64_t>();
      if (end64.failed) return Bad("its ZIP64 directory is cut off");
    }
  }
  if (count > kMaxMembers) {
    return Bad(absl::StrCat("it claims ", count, " members; at most ", kMaxMembers));
  }
  std::vector<Member> members;
  Reader central(bytes, at);
  for (uint64_t i = 0; i < count; ++i) {
    Member m;
    if (central.Take<uint32_t>() != kCentralSignature || central.failed) {
      return Bad(absl::StrCat("directory entry ", i, " is damaged"));
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
    if (central.failed) return Bad(absl::StrCat("directory entry ", i, " is cut off"));
    if (flags & 1) return Bad(absl::StrCat("member '", m.name, "' is encrypted"));
    members.push_back(std::move(m));
  }
  return members;
}

absl::StatusOr<std::string> Inflate(absl::string_view packed, uint64_t size) {
  std::string out(size, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::InternalError("zlib");
  size_t in = 0, done = 0;
  int code = Z_OK;
  char spare = 0;
  while (code == Z_OK) {
    // avail_* are 32 bits: at most 1 GiB at a time.
    const size_t in_now = std::min<size_t>(packed.size() - in, 1u << 30);
    const size_t out_now = std::min<size_t>(size - done, 1u << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + in));
    stream.avail_in = static_cast<uInt>(in_now);
    // One byte beyond the claimed size shows whether there is more.
    stream.next_out = reinterpret_cast<Bytef*>(out_now > 0 ? out.data() + done : &spare);
    stream.avail_out = static_cast<uInt>(out_now > 0 ? out_now : 1);
    const uInt room = stream.avail_out;
    code = inflate(&stream, Z_NO_FLUSH);
    in += in_now - stream.avail_in;
    if (out_now == 0 && stream.avail_out != room) {
      code = Z_DATA_ERROR;
      break;
    }
    done += out_now > 0 ? room - stream.avail_out : 0;
    if (code == Z_OK && in == packed.size() && stream.avail_out == room) break;
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END || done != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("its compressed data is damaged after ", done, " of ", size, " bytes"));
  }
  return out;
}

absl::StatusOr<std::string> Extract(absl::string_view bytes, const Member& m) {
  Reader local(bytes, m.offset);
  if (local.Take<uint32_t>() != kLocalSignature || local.failed) {
    return absl::InvalidArgumentError("its local header is not where the directory says");
  }
  local.Skip(22);
  const uint16_t name = local.Take<uint16_t>(), extra = local.Take<uint16_t>();
  local.Skip(uint64_t{name} + extra);
  const absl::string_view packed = local.Text(m.packed);
  if (local.failed) return absl::InvalidArgumentError("it is cut off");
  std::string data;
  if (m.method == 0) {
    if (m.packed != m.size) {
      return absl::InvalidArgumentError("stored size and real size differ");
    }
    data.assign(packed.data(), packed.size());
  } else if (m.method == 8) {
    absl::StatusOr<std::string> out = Inflate(packed, m.size);
    if (!out.ok()) return out.status();
    data = *std::move(out);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("compression method ", m.method, "; accepted: 0 (stored), 8 (deflate)"));
  }
  uint32_t crc = crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size());
  if (crc != m.crc) return absl::InvalidArgumentError("its checksum does not fit its data");
  return data;
}

}  // namespace

absl::StatusOr<std::map<std::string, Array>> ParseNpz(absl::string_view bytes, int64_t limit) {
  absl::StatusOr<std::vector<Member>> members = ReadDirectory(bytes);
  if (!members.ok()) return members.status();
  uint64_t total = 0;
  std::map<std::string, Array> arrays;
  for (const Member& m : *members) {
    const std::string place = absl::StrCat("member '", m.name, "'");
    const uint64_t bound = static_cast<uint64_t>(limit);
    if (m.size > bound || (total += m.size) > bound) {
      return Bad(
          absl::StrCat(place, " claims ", m.size, " bytes; all members together may have ", limit));
    }
    if (m.packed > bytes.size() || m.size > m.packed * kMaxRatio + 64) {
      return Bad(absl::StrCat(place, " claims ", m.size, " bytes from ", m.packed, " compressed"));
    }
    absl::StatusOr<std::string> data = Extract(bytes, m);
    if (!data.ok()) return Bad(absl::StrCat(place, ": ", std::string(data.status().message())));
    const std::string suffix = ".npy";
    if (m.name.size() <= suffix.size() ||
        m.name.compare(m.name.size() - suffix.size(), suffix.size(), suffix) != 0) {
      return Bad(absl::StrCat(place, " is no .npy array"));
    }
    const std::string column = m.name.substr(0, m.name.size() - suffix.size());
    absl::StatusOr<Array> array = ParseNpy(*data, absl::StrCat("npz: column '", column, "'"));
    if (!array.ok()) return array.status();
    if (!arrays.emplace(column, *std::move(array)).second) {
      return Bad(absl::StrCat("column '", column, "' is there twice"));
    }
  }
  if (arrays.empty()) return Bad("it has no members");
  return arrays;
}

}  // namespace espalier
