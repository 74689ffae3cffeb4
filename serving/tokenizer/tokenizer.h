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

struct EncodeOptions {
  // Adds what the model's post-processor puts around a text, such as a token that begins it.
  bool add_special = false;
  // Text that spells a special token is that token. For prompts that a template wrote; never for
  // text of strangers.
  bool parse_special = false;
};

// Immutable, hence usable from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are in [0, vocabulary()).
  virtual int vocabulary() const = 0;
  // Tokens that end an answer; they have no text. May be empty.
  virtual const std::vector<int>& eos() const = 0;

  // Never yields a special token: text that spells one is text. No tokens at all where TryEncode
  // gives an error; who can report one calls that.
  virtual std::vector<int> Encode(absl::string_view text) const = 0;
  // The same by choice of special tokens. ResourceExhausted if the model's own patterns backtrack
  // without end on this text, InvalidArgument if a character has no token and the model none for
  // unknown ones. Bytes that are no UTF-8 count as U+FFFD. The default knows no special tokens.
  virtual absl::StatusOr<std::vector<int>> TryEncode(absl::string_view text,
                                                     const EncodeOptions& options) const {
    return Encode(text);
  }
  // Special tokens have no text, unless they are asked for.
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder() const = 0;
  // Only those of `shown`, or all.
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder(bool show_special,
                                                          const std::vector<int>& shown) const {
    return NewStreamDecoder();
  }

  // The token that begins a text, -1 if the model has none.
  virtual int bos() const { return -1; }
  // What a token stands for in the middle of a text, in bytes, which need not be whole characters;
  // for a special token its spelling. Empty for ids that stand for nothing.
  virtual std::string TokenBytes(int token) const = 0;
  virtual bool IsSpecial(int token) const = 0;
  // The id of the token spelled so in the vocabulary (special or not), -1 if there is none.
  virtual int TokenId(absl::string_view spelling) const { return -1; }

  // Everything at once, by the stream decoder. Ids outside the vocabulary have no text.
  std::string Decode(const std::vector<int>& tokens) const {
    const std::unique_ptr<StreamDecoder> decoder = NewStreamDecoder();
    std::string text;
    for (const int token : tokens) text += decoder->Append(token);
    return text + decoder->Flush();
  }
};

}  // namespace espalier
