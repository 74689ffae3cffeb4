#include "server/http/content_coding.h"

#include <zlib.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr size_t kFirstBytes = 64 << 10;

enum class Coding { kIdentity, kGzip, kOther };

Coding CodingOf(const HttpRequest& request) {
  const auto found = request.headers.find("content-encoding");
  if (found == request.headers.end()) return Coding::kIdentity;
  const absl::string_view coding = absl::StripAsciiWhitespace(found->second);
  if (coding.empty() || absl::EqualsIgnoreCase(coding, "identity")) return Coding::kIdentity;
  const bool gzip =
      absl::EqualsIgnoreCase(coding, "gzip") || absl::EqualsIgnoreCase(coding, "x-gzip");
  return gzip ? Coding::kGzip : Coding::kOther;
}

absl::StatusOr<std::string> Gunzip(const std::string& body, size_t most_bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) {
    return absl::ResourceExhaustedError("there is no memory to decompress the body");
  }
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());
  std::string out;
  size_t size = 0;
  for (int result = Z_OK; result != Z_STREAM_END || stream.avail_in > 0;) {
    // A body may have several members.
    if (result == Z_STREAM_END) inflateReset(&stream);
    if (size == out.size()) {
      if (size > most_bytes) {
        return absl::OutOfRangeError(
            absl::StrCat("the decompressed body is larger than ", most_bytes, " bytes"));
      }
      out.resize(std::min(std::max(2 * size, kFirstBytes), most_bytes + 1));
    }
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + size);
    stream.avail_out = static_cast<uInt>(out.size() - size);
    result = inflate(&stream, Z_NO_FLUSH);
    size = out.size() - stream.avail_out;
    const bool cut = result == Z_BUF_ERROR && stream.avail_in == 0 && stream.avail_out > 0;
    if (cut || (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)) {
      return absl::InvalidArgumentError("the body is not what its Content-Encoding, gzip, says");
    }
  }
  if (size > most_bytes) {
    return absl::OutOfRangeError(
        absl::StrCat("the decompressed body is larger than ", most_bytes, " bytes"));
  }
  out.resize(size);
  return out;
}

}  // namespace

absl::Status CheckContentCoding(const HttpRequest& header) {
  if (CodingOf(header) != Coding::kOther) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("the Content-Encoding '", header.headers.at("content-encoding").substr(0, 40),
                   "' of the body is not understood: send it as it is, or with gzip"));
}

absl::Status DecodeBody(size_t most_bytes, HttpRequest* request) {
  if (absl::Status status = CheckContentCoding(*request); !status.ok()) return status;
  if (CodingOf(*request) == Coding::kGzip) {
    absl::StatusOr<std::string> body = Gunzip(request->body, most_bytes);
    if (!body.ok()) return body.status();
    request->body = *std::move(body);
  }
  request->headers.erase("content-encoding");
  return absl::OkStatus();
}

}  // namespace espalier
