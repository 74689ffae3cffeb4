// Converts text to token ids and back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Incremental detokenizer for one answer. Every piece is valid UTF-8, and the pieces add up to the
// same text however the tokens arrive. Not thread-safe.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  // Returns the text that is certain after this token; often empty inside a character.
  virtual std::string Append(int token) = 0;
  // Ends the answer: an incomplete character becomes U+FFFD.
  virtual std::string Flush() = 0;
};

struct EncodeOptions {
  // Adds the tokens that the model's post-processor puts around a text, such as bos.
  bool add_special = false;
  // Text that spells a special token becomes that token. For prompts that a chat template wrote;
  // never for untrusted text.
  bool parse_special = false;
};

// Immutable and thus thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are in [0, vocabulary()).
  virtual int vocabulary() const = 0;
  // Tokens that end an answer; they have no text. May be empty.
  virtual const std::vector<int>& eos() const = 0;

  // Encodes without special tokens: text that spells one stays text. Returns no tokens where
  // TryEncode returns an error; prefer TryEncode where an error can be reported.
  virtual std::vector<int> Encode(absl::string_view text) const = 0;
  // Encodes with `options`. Ill-formed UTF-8 counts as U+FFFD. Returns ResourceExhausted if the
  // model's patterns backtrack too much on this text, InvalidArgument if a character has no token
  // and the model no unknown token. The default implementation knows no special tokens.
  virtual absl::StatusOr<std::vector<int>> TryEncode(absl::string_view text,
                                                     const EncodeOptions& options) const {
    return Encode(text);
  }
  // Special tokens have no text.
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder() const = 0;
  // Shows the special tokens in `shown`, or all of them if show_special.
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder(bool show_special,
                                                          const std::vector<int>& shown) const {
    return NewStreamDecoder();
  }

  // The token that begins a text; -1 if there is none.
  virtual int bos() const { return -1; }
  // The bytes of a token in the middle of a text, not necessarily whole characters; for a special
  // token its spelling. Empty for unused ids.
  virtual std::string TokenBytes(int token) const = 0;
  virtual bool IsSpecial(int token) const = 0;
  // The id of a vocabulary entry, special or not; -1 if there is none.
  virtual int TokenId(absl::string_view spelling) const { return -1; }

  // Decodes all tokens with a stream decoder. Ids outside the vocabulary have no text.
  std::string Decode(const std::vector<int>& tokens) const {
    const std::unique_ptr<StreamDecoder> decoder = NewStreamDecoder();
    std::string text;
    for (const int token : tokens) text += decoder->Append(token);
    return text + decoder->Flush();
  }
};

}  // namespace espalier
