// The "normalizer" of tokenizer.json: what happens to a text before it is cut.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/json/json_reader.h"

namespace espalier {

// Immutable.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Sets *moved if the text no longer begins with what came from its first character.
  // ResourceExhausted if a text grows beyond kMaxTextBytes or a pattern backtracks without end.
  // REQUIRES and keeps: valid UTF-8.
  virtual absl::Status Apply(std::string* text, bool* moved) const = 0;
};

// Texts may have so many bytes, before and after normalisation.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

// Null and an error in the reader for what is unknown or malformed. Types as the library names
// them: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt,
// BertNormalizer, Precompiled, ByteLevel.
std::unique_ptr<Normalizer> MakeNormalizer(const JsonReader& json);

}  // namespace espalier
