// WordLevel: each word is one token.
#include <utility>

#include "serving/tokenizer/token_model.h"

namespace espalier {
namespace {

class WordLevel : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown) : unknown_spelling_(std::move(unknown)) {
    vocabulary_ = std::move(vocabulary);
    unknown_ = vocabulary_.Find(unknown_spelling_);
  }

  absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const override {
    int id = vocabulary_.Find(word);
    if (id < 0) id = unknown_;
    if (id < 0) return MissingUnknownToken(unknown_spelling_);
    tokens->push_back(id);
    return absl::OkStatus();
  }

 private:
  std::string unknown_spelling_;
  int unknown_ = -1;
};

}  // namespace

std::unique_ptr<TokenModel> MakeWordLevel(const JsonReader& json) {
  Vocabulary vocabulary;
  ReadVocabulary(json.Get("vocab"), &vocabulary);
  return std::make_unique<WordLevel>(std::move(vocabulary), json.String("unk_token"));
}

}  // namespace espalier
