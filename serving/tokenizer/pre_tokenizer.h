// The "pre_tokenizer" of tokenizer.json: cuts a text into the words that a model encodes each by
// itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json/json_reader.h"

namespace espalier {

// A text and where its words are: in order, not empty, none overlapping.
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
  // ResourceExhausted if a pattern backtracks without end. REQUIRES and keeps: valid UTF-8.
  virtual absl::Status Apply(Words* words) const = 0;
};

// Null and an error in the reader for what is unknown or malformed. With `raw_bytes` a ByteLevel
// writes no alphabet of characters but leaves the bytes as they are, for a model that reads bytes:
// REQUIRES EndsInByteLevel.
std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonReader& json, bool raw_bytes);

// True if the last step is ByteLevel and no other is.
bool EndsInByteLevel(const nlohmann::json& json);

}  // namespace espalier
