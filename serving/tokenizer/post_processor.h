// The "post_processor" of tokenizer.json, of which the tokens around a text concern us.
#pragma once

#include <vector>

#include "base/json/json_reader.h"

namespace espalier {

class PostProcessor {
 public:
  // Errors go to the reader: types TemplateProcessing, BertProcessing, RobertaProcessing,
  // ByteLevel, Sequence.
  void Read(const JsonReader& json);

  // In the place of what was read: these tokens around a text.
  void Set(std::vector<int> before, std::vector<int> behind);

  bool empty() const { return templates_.empty(); }
  // Whether this token comes around texts.
  bool Adds(int token) const;
  std::vector<int> Apply(std::vector<int> tokens) const;

 private:
  struct Piece {
    bool text = false;  // where the text goes; else:
    std::vector<int> tokens;
  };
  std::vector<std::vector<Piece>> templates_;  // one around the other
};

}  // namespace espalier
