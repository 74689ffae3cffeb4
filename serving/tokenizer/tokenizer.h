// Text to token ids and back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Turns the tokens of one answer into text as they come. Every piece is valid UTF-8, and the pieces
// together are the same however often Append was called. Not thread-safe.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  // The text that is certain once this token is there; often empty in the middle of a character.
  virtual std::string Append(int token) = 0;
  // The end of the answer: an unfinished character becomes U+FFFD.
  virtual std::string Flush() = 0;
};

// Immutable, hence usable from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are in [0, vocabulary()).
  virtual int vocabulary() const = 0;
  // Tokens that end an answer; they have no text. May be empty.
  virtual const std::vector<int>& eos() const = 0;

  // Never yields a special token: text that spells one is text.
  virtual std::vector<int> Encode(absl::string_view text) const = 0;
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder() const = 0;

  // Everything at once, by the stream decoder. Ids outside the vocabulary have no text.
  std::string Decode(const std::vector<int>& tokens) const {
    const std::unique_ptr<StreamDecoder> decoder = NewStreamDecoder();
    std::string text;
    for (const int token : tokens) text += decoder->Append(token);
    return text + decoder->Flush();
  }
};

}  // namespace espalier
