// The "normalizer" of tokenizer.json: transforms a text before it is split.
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
  // Sets *moved if the text no longer begins with the result of its first character. Returns
  // ResourceExhausted if the text grows beyond kMaxTextBytes or a pattern backtracks too much.
  // REQUIRES and ensures: valid UTF-8.
  virtual absl::Status Apply(std::string* text, bool* moved) const = 0;
};

// Maximum size of a text before and after normalization.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;

// Reports errors to the reader and returns null for an unknown or malformed normalizer. Types:
// Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt,
// BertNormalizer, Precompiled, ByteLevel.
std::unique_ptr<Normalizer> MakeNormalizer(const JsonReader& json);

}  // namespace espalier
