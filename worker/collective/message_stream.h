// Messages with tags on a byte stream: tag and length (8 bytes each, in network byte order), then
// the contents.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collective/byte_stream.h"

namespace espalier {

constexpr int64_t kMessageHeaderBytes = 16;
// A record of TLS. Header and beginning of a message go together, so that a small one is one
// record.
constexpr int64_t kFirstWriteBytes = 16 << 10;

class MessageWriter {
 public:
  // Continues a message of which `done` bytes are sent. Returns the new count, less than `bytes` if
  // the stream takes no more now. The next message starts when all are sent. REQUIRES: bytes > 0.
  absl::StatusOr<int64_t> Push(ByteStream& stream, uint64_t tag, const char* data, int64_t bytes,
                               int64_t done);

 private:
  std::vector<char> first_;  // header and beginning of the present message
  int64_t first_done_ = 0;   // of these
};

class MessageReader {
 public:
  struct Message {
    uint64_t tag = 0;
    int64_t bytes = 0;
  };
  // Returns the next message, or the one being read; nullopt if it has not arrived. Returns
  // Internal for a length that no message has.
  absl::StatusOr<std::optional<Message>> Next(ByteStream& stream);
  // Reads more of the message after `done` bytes, up to `most`; returns the new count. REQUIRES:
  // Next has returned it, and `data` has place for `most` bytes.
  absl::StatusOr<int64_t> Pop(ByteStream& stream, char* data, int64_t most, int64_t done);

 private:
  std::array<char, kMessageHeaderBytes> header_{};
  int64_t header_done_ = 0;
  std::optional<Message> message_;
};

}  // namespace espalier
