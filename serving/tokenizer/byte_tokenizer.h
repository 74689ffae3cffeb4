// Token i is byte i; ids from 256 on are special tokens without text.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class ByteTokenizer : public Tokenizer {
 public:
  // Returns InvalidArgument if the vocabulary is smaller than 256 or an eos id is outside it.
  static absl::StatusOr<std::unique_ptr<ByteTokenizer>> Create(int vocabulary = 256,
                                                               std::vector<int> eos = {});

  int vocabulary() const override { return vocabulary_; }
  const std::vector<int>& eos() const override { return eos_; }
  std::vector<int> Encode(absl::string_view text) const override;
  std::unique_ptr<StreamDecoder> NewStreamDecoder() const override;
  std::string TokenBytes(int token) const override;
  bool IsSpecial(int token) const override { return token > 255 && token < vocabulary_; }

 private:
  ByteTokenizer(int vocabulary, std::vector<int> eos)
      : vocabulary_(vocabulary), eos_(std::move(eos)) {}

  int vocabulary_;
  std::vector<int> eos_;
};

}  // namespace espalier
