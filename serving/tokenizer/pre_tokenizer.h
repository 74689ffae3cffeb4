// The "pre_tokenizer" of tokenizer.json: splits a text into words, which the model encodes one by
// one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json/json_reader.h"

namespace espalier {

// A text and the ranges of its words: ascending, disjoint, not empty.
struct Words {
  struct Span {
    size_t begin = 0, end = 0;
    bool at_start = false;  // begins where the whole input began
  };
  std::string text;
  std::vector<Span> spans;

  absl::string_view word(const Span& span) const {
    return absl::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

// Immutable.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Returns ResourceExhausted if a pattern backtracks too much. REQUIRES and ensures: valid UTF-8.
  virtual absl::Status Apply(Words* words) const = 0;
};

// Reports errors to the reader and returns null for an unknown or malformed pre-tokenizer. With
// `raw_bytes`, ByteLevel leaves bytes as they are instead of translating them to its alphabet, for
// a model that reads bytes. REQUIRES: EndsInByteLevel if raw_bytes.
std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonReader& json, bool raw_bytes);

// Whether the last step is ByteLevel and no other step is.
bool EndsInByteLevel(const nlohmann::json& json);

}  // namespace espalier
