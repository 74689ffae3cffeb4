#include "worker/collective/message_stream.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr int64_t kMostMessageBytes = int64_t{1} << 46;

}  // namespace

absl::StatusOr<int64_t> MessageWriter::Push(ByteStream& stream, uint64_t tag, const char* data,
                                            int64_t bytes, int64_t done) {
  const int64_t beginning = std::min(bytes, kFirstWriteBytes - kMessageHeaderBytes);
  if (done == 0) {
    if (first_.empty()) {
      const uint64_t header[] = {htobe64(tag), htobe64(static_cast<uint64_t>(bytes))};
      first_.resize(static_cast<size_t>(kMessageHeaderBytes + beginning));
      std::memcpy(first_.data(), header, sizeof(header));
      std::memcpy(first_.data() + kMessageHeaderBytes, data, static_cast<size_t>(beginning));
      first_done_ = 0;
    }
    while (first_done_ < static_cast<int64_t>(first_.size())) {
      absl::StatusOr<int64_t> written = stream.Write(
          first_.data() + first_done_, static_cast<int64_t>(first_.size()) - first_done_);
      if (!written.ok()) return written;
      if (*written == 0) return done;
      first_done_ += *written;
    }
    first_.clear();
    done = beginning;
  }
  while (done < bytes) {
    absl::StatusOr<int64_t> written = stream.Write(data + done, bytes - done);
    if (!written.ok()) return written;
    if (*written == 0) break;
    done += *written;
  }
  return done;
}

absl::StatusOr<std::optional<MessageReader::Message>> MessageReader::Next(ByteStream& stream) {
  while (!message_.has_value()) {
    absl::StatusOr<int64_t> got =
        stream.Read(header_.data() + header_done_, kMessageHeaderBytes - header_done_);
    if (!got.ok()) return got.status();
    if (*got == 0) return std::optional<Message>();
    header_done_ += *got;
    if (header_done_ < kMessageHeaderBytes) continue;
    uint64_t words[2];
    std::memcpy(words, header_.data(), sizeof(words));
    const uint64_t bytes = be64toh(words[1]);
    if (bytes < 1 || bytes > kMostMessageBytes) {
      return absl::InternalError(absl::StrCat("it announces a message of ", bytes, " bytes"));
    }
    message_ = {be64toh(words[0]), static_cast<int64_t>(bytes)};
    header_done_ = 0;
  }
  return message_;
}

absl::StatusOr<int64_t> MessageReader::Pop(ByteStream& stream, char* data, int64_t most,
                                           int64_t done) {
  while (done < most) {
    absl::StatusOr<int64_t> got = stream.Read(data + done, most - done);
    if (!got.ok()) return got;
    if (*got == 0) return done;
    done += *got;
  }
  if (done == message_->bytes) message_.reset();
  return done;
}

}  // namespace espalier
