// The "decoder" of tokenizer.json: turns the spellings of tokens into text, as a stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/json/json_reader.h"

namespace espalier {

// One step of a decoder; immutable. In the library, a step maps a list of strings to a list. Here
// strings arrive one by one and leave as soon as they are final. A step that fuses all strings
// passes parts of that one string to the next step.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;

  class State {
   public:
    virtual ~State() = default;
    virtual void Push(std::string text, std::vector<std::string>* out) = 0;
    virtual void End(std::vector<std::string>* out) {}
  };
  // `fused`: the pushed strings are parts of one string. Returns null if the step needs that string
  // whole.
  virtual std::unique_ptr<State> Start(bool fused) const = 0;
  virtual bool fuses() const { return false; }
  // The bytes that a string becomes in the middle of others.
  virtual std::string DecodeMidText(std::string text, bool fused) const = 0;
};

// Immutable.
class Decoder {
 public:
  // Without a decoder, tokens are joined by blanks. Reports errors to the reader. Types: Sequence,
  // ByteLevel, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, Replace, CTC.
  static Decoder Make(const JsonReader* json);

  // The decoding of one answer. The decoder must outlive it.
  class Stream {
   public:
    explicit Stream(const Decoder& decoder);
    std::string Push(std::string token);
    std::string End();

   private:
    std::vector<std::string> Through(size_t step, std::vector<std::string> texts);
    std::vector<std::unique_ptr<DecodeStep::State>> states_;
  };

  // The bytes that a token adds in the middle of a text.
  std::string DecodeMidText(std::string token) const;

 private:
  struct Step {
    std::unique_ptr<DecodeStep> step;
    bool fused;  // the step's input is parts of one string
  };
  void Add(const JsonReader& json);
  void Append(std::unique_ptr<DecodeStep> step);

  std::vector<Step> steps_;
};

}  // namespace espalier
