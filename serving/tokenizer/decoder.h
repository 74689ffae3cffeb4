// The "decoder" of tokenizer.json: from the spellings of tokens to text, token by token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/json/json_reader.h"

namespace espalier {

// One step of a decoder, immutable. A step takes a list of strings and gives one; here the strings
// come one after the other and leave as soon as they are certain. After a step that fuses all
// strings into one, the next step sees that one in parts.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;

  class State {
   public:
    virtual ~State() = default;
    virtual void Push(std::string text, std::vector<std::string>* out) = 0;
    virtual void End(std::vector<std::string>* out) {}
  };
  // `fused`: what is pushed are parts of one string. Null if the step must see that as a whole.
  virtual std::unique_ptr<State> Start(bool fused) const = 0;
  virtual bool fuses() const { return false; }
  // What becomes of a string in the middle of others, in bytes.
  virtual std::string DecodeMidText(std::string text, bool fused) const = 0;
};

// Immutable.
class Decoder {
 public:
  // Without a decoder a blank stands between tokens. Errors go to the reader: types Sequence,
  // ByteLevel, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, Replace, CTC.
  static Decoder Make(const JsonReader* json);

  // One answer on its way. The decoder must outlive it.
  class Stream {
   public:
    explicit Stream(const Decoder& decoder);
    std::string Push(std::string token);
    std::string End();

   private:
    std::vector<std::string> Through(size_t step, std::vector<std::string> texts);
    std::vector<std::unique_ptr<DecodeStep::State>> states_;
  };

  // What a token adds in the middle of a text, in bytes.
  std::string DecodeMidText(std::string token) const;

 private:
  struct Step {
    std::unique_ptr<DecodeStep> step;
    bool fused;  // what comes in
  };
  void Add(const JsonReader& json);
  void Append(std::unique_ptr<DecodeStep> step);

  std::vector<Step> steps_;
};

}  // namespace espalier
