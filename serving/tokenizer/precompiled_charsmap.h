// SentencePiece's precompiled_charsmap normalization: a double-array trie from byte strings to
// replacements (Aoe, "An efficient digital search algorithm by using a double-array structure",
// 1989) in the format of Darts-clone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class PrecompiledCharsmap {
 public:
  // `blob`: size of the trie in bytes (32 bits, little endian), the trie, NUL-terminated
  // replacements. Returns InvalidArgument if it is inconsistent.
  static absl::StatusOr<PrecompiledCharsmap> Parse(absl::string_view blob);

  // The replacement for the shortest key that is a prefix of `text`.
  std::optional<absl::string_view> Find(absl::string_view text) const;

  // Normalizes as Hugging Face's library does: replaces grapheme clusters of up to 5 bytes as a
  // whole if there is a replacement, and single characters otherwise.
  std::string Apply(absl::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace espalier
