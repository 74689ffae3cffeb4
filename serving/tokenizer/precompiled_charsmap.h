// SentencePiece's precompiled normalisation: a double-array trie from byte strings to replacements
// (Aoe, "An efficient digital search algorithm by using a double-array structure", 1989, in the
// layout of the Darts-clone library).
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
  // `blob`: length of the trie in bytes (32 bits, little endian), the trie, the replacements, each
  // ended by a NUL. InvalidArgument if that does not fit together.
  static absl::StatusOr<PrecompiledCharsmap> Parse(absl::string_view blob);

  // The replacement of the shortest key that `text` begins with, however long `text` is.
  std::optional<absl::string_view> Find(absl::string_view text) const;

  // As the Hugging Face library applies it: grapheme clusters of up to 5 bytes as a whole where
  // that finds something, else character by character.
  std::string Apply(absl::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace espalier
