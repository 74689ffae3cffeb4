// How the files of a copied checkpoint are compressed.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/byte_shuffle.h"
#include "base/zstd.h"

namespace espalier {

enum class CopyEncoding {
  kPlain,  // the file itself
  kZstd,   // a Zstandard frame with the same bytes
  // 16 bytes that say what follows, then a Zstandard frame with the bytes shuffled in blocks
  // (base/byte_shuffle.h). The 16 bytes are "ESPSHUF1", and the size of an element, 4, and of a
  // block as integers of 32 bits, little endian.
  kShuffled,
};
inline constexpr std::array kCopyEncodings = {CopyEncoding::kPlain, CopyEncoding::kZstd,
                                              CopyEncoding::kShuffled};

// What an object's name has behind the file's.
absl::string_view SuffixOf(CopyEncoding encoding);

// Returns the encoding in which the bytes, a part of a file, become smallest; kPlain unless that is
// smaller by a twentieth.
absl::StatusOr<CopyEncoding> ChooseEncoding(absl::string_view part);

class CopyEncoder {
 public:
  explicit CopyEncoder(CopyEncoding encoding);
  // Adds bytes of the file, and appends to `out` what is ready of the object.
  absl::Status Add(absl::string_view bytes, std::string* out);
  // Appends the rest. Once, after all bytes.
  absl::Status Finish(std::string* out);

 private:
  absl::Status CompressShuffled(std::string* out);

  std::optional<ByteShuffler> shuffler_;
  std::optional<ZstdCompressor> compressor_;
  bool begun_ = false;
  std::string shuffled_;
};

class CopyDecoder {
 public:
  explicit CopyDecoder(CopyEncoding encoding);
  // Appends to `out` what the object's next bytes give, some MiB at most, and removes those that it
  // has read. Returns whether there may be more without other bytes. DataLoss if they are damaged.
  absl::StatusOr<bool> Add(absl::string_view* bytes, std::string* out);
  // After all bytes: appends the rest. DataLoss if some are missing.
  absl::Status Finish(std::string* out);

 private:
  // Takes what is missing of the 16 bytes; complete, they must be those of this version.
  absl::Status ReadHeader(absl::string_view* bytes);

  const CopyEncoding encoding_;
  std::string header_;
  std::optional<ZstdDecompressor> decompressor_;
  std::optional<ByteShuffler> shuffler_;  // once the header is read
  std::string shuffled_;
};

}  // namespace espalier
