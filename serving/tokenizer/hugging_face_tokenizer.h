// A tokenizer as described by tokenizer.json of Hugging Face's `tokenizers`: splits off added
// tokens, normalizes the rest, splits it into words and encodes each word with a model. Decoding
// processes the spellings of tokens.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "serving/tokenizer/added_tokens.h"
#include "serving/tokenizer/decoder.h"
#include "serving/tokenizer/normalizer.h"
#include "serving/tokenizer/post_processor.h"
#include "serving/tokenizer/pre_tokenizer.h"
#include "serving/tokenizer/token_model.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class HuggingFaceTokenizer : public Tokenizer {
 public:
  // `json`: the text of tokenizer.json. Omits added tokens with ids from `limit` on that are not in
  // the vocabulary. `special`: spellings to be special tokens, too, if the vocabulary has them.
  // Returns InvalidArgument or Unimplemented naming the field.
  static absl::StatusOr<std::unique_ptr<HuggingFaceTokenizer>> Parse(
      absl::string_view json, int64_t limit = kMaxTokenId,
      absl::Span<const std::string> special = {});

  // Call before the tokenizer is shared. REQUIRES: ids in the vocabulary.
  void SetBosAndEos(int bos, std::vector<int> eos);
  // Replaces the tokens that add_special puts around a text. REQUIRES: as for SetBosAndEos.
  void SetPrefixAndSuffix(std::vector<int> before, std::vector<int> behind) {
    post_processor_.Set(std::move(before), std::move(behind));
  }
  // Whether the file defines what add_special puts around a text.
  bool has_post_processor() const { return !post_processor_.empty(); }

  int vocabulary() const override { return vocabulary_; }
  const std::vector<int>& eos() const override { return eos_; }
  int bos() const override { return bos_; }
  std::vector<int> Encode(absl::string_view text) const override;
  absl::StatusOr<std::vector<int>> TryEncode(absl::string_view text,
                                             const EncodeOptions& options) const override;
  std::unique_ptr<StreamDecoder> NewStreamDecoder() const override;
  std::unique_ptr<StreamDecoder> NewStreamDecoder(bool show_special,
                                                  const std::vector<int>& shown) const override;
  std::string TokenBytes(int token) const override;
  bool IsSpecial(int token) const override { return added_.IsSpecial(token); }
  int TokenId(absl::string_view spelling) const override;
  const std::map<int, std::string>& omitted_added_tokens() const {
    return added_.omitted_added_tokens();
  }

 private:
  class Stream;

  HuggingFaceTokenizer() = default;

  // Null if the id is unused.
  const std::string* Spelling(int token) const;
  // Encodes a text without tokens that are found before normalization.
  absl::Status EncodeText(absl::string_view text, bool at_start, bool special,
                          std::vector<int>* tokens) const;
  absl::Status EncodeNormalized(absl::string_view text, bool at_start,
                                std::vector<int>* tokens) const;

  std::unique_ptr<Normalizer> normalizer_;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer_;  // may be null
  std::unique_ptr<TokenModel> model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  Decoder decoder_;
  int vocabulary_ = 0;
  int bos_ = -1;
  std::vector<int> eos_;
};

}  // namespace espalier
