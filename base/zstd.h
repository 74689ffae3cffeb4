// Compression of streams by Zstandard. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class ZstdCompressor {
 public:
  explicit ZstdCompressor(int level);
  ~ZstdCompressor();

  // Adds bytes, and appends to `out` what is ready of the frame.
  absl::Status Add(absl::string_view bytes, std::string* out);
  // Appends the rest of the frame, with a checksum. Once, after all bytes.
  absl::Status Finish(std::string* out);

 private:
  struct Stream;
  absl::Status Run(absl::string_view bytes, bool last, std::string* out);

  std::unique_ptr<Stream> stream_;
};

class ZstdDecompressor {
 public:
  ZstdDecompressor();
  ~ZstdDecompressor();

  // Appends to `out` what the next compressed bytes give, until that is `most` bytes or a block
  // more: few of them may give much. Removes those that it has read. Returns whether there may be
  // more without other bytes; DataLoss if they are damaged.
  absl::StatusOr<bool> Add(absl::string_view* compressed, size_t most, std::string* out);
  // After all bytes: DataLoss if the frame has not ended.
  absl::Status Finish() const;

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace espalier
