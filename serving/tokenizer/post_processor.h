// The "post_processor" of tokenizer.json, reduced to the tokens that it puts around a text.
#pragma once

#include <vector>

#include "base/json/json_reader.h"

namespace espalier {

class PostProcessor {
 public:
  // Reports errors to the reader. Types: TemplateProcessing, BertProcessing, RobertaProcessing,
  // ByteLevel, Sequence.
  void Read(const JsonReader& json);

  // Replaces what was read by these tokens around a text.
  void Set(std::vector<int> before, std::vector<int> behind);

  bool empty() const { return templates_.empty(); }
  // Whether this token is added around texts.
  bool Adds(int token) const;
  std::vector<int> Apply(std::vector<int> tokens) const;

 private:
  struct Piece {
    bool text = false;  // the text goes here
    std::vector<int> tokens;
  };
  std::vector<std::vector<Piece>> templates_;  // each is applied to the result of the one before it
};

}  // namespace espalier
