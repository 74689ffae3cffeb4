// A tokenizer over the first letters of the alphabet, for tests with tiny vocabularies.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class LetterTokenizer : public Tokenizer {
 public:
  explicit LetterTokenizer(int vocabulary, std::vector<int> eos = {})
      : vocabulary_(vocabulary), eos_(std::move(eos)) {}

  int vocabulary() const override { return vocabulary_; }
  const std::vector<int>& eos() const override { return eos_; }
  std::vector<int> Encode(absl::string_view text) const override {
    std::vector<int> tokens;
    for (const char c : text) tokens.push_back(c - 'a');
    return tokens;
  }
  std::unique_ptr<StreamDecoder> NewStreamDecoder() const override {
    return std::make_unique<Decoder>();
  }
  std::string TokenBytes(int token) const override {
    return token >= 0 && token < vocabulary_ ? std::string(1, static_cast<char>('a' + token)) : "";
  }
  bool IsSpecial(int token) const override {
    return std::find(eos_.begin(), eos_.end(), token) != eos_.end();
  }

 private:
  class Decoder : public StreamDecoder {
   public:
    std::string Append(int token) override {
      return std::string(1, static_cast<char>('a' + token));
    }
    std::string Flush() override { return ""; }
  };

  int vocabulary_;
  std::vector<int> eos_;
};

}  // namespace espalier
