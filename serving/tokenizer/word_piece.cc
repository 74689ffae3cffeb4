// WordPiece, the model of BERT's tokenizers.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/token_model.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// Greedy longest match: the longest token that starts the word, then the longest continuation
// token, spelled with the prefix ("##" in BERT), until the word ends.
class WordPiece : public TokenModel {
 public:
  WordPiece(Vocabulary vocabulary, std::string unknown, std::string prefix, int64_t max_characters)
      : unknown_spelling_(std::move(unknown)),
        prefix_(std::move(prefix)),
        max_characters_(max_characters) {
    vocabulary_ = std::move(vocabulary);
    unknown_ = vocabulary_.Find(unknown_spelling_);
    for (const auto& [spelling, id] : vocabulary_.ids())
      longest_ = std::max(longest_, spelling.size());
  }

  absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const override {
    const size_t before = tokens->size();
    const int64_t characters =
        std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
    bool known = characters <= max_characters_;
    std::string piece;
    for (size_t begin = 0; known && begin < word.size();) {
      size_t end = word.size();
      // Longer candidates cannot be in the vocabulary.
      if (end - begin > longest_) {
        end = begin + longest_;
        while (end > begin && (word[end] & 0xC0) == 0x80) --end;
      }
      int id = -1;
      for (; end > begin; end = PreviousCharacter(word, end)) {
        piece = begin > 0 ? prefix_ : "";
        absl::StrAppend(&piece, word.substr(begin, end - begin));
        id = vocabulary_.Find(piece);
        if (id >= 0) break;
      }
      known = id >= 0;
      if (known) tokens->push_back(id);
      begin = end;
    }
    if (known) return absl::OkStatus();
    tokens->resize(before);
    if (unknown_ < 0) return MissingUnknownToken(unknown_spelling_);
    tokens->push_back(unknown_);
    return absl::OkStatus();
  }

 private:
  std::string unknown_spelling_;
  std::string prefix_;
  int64_t max_characters_;
  int unknown_ = -1;
  size_t longest_ = 0;
};

}  // namespace

std::unique_ptr<TokenModel> MakeWordPiece(const JsonReader& json) {
  Vocabulary vocabulary;
  ReadVocabulary(json.Get("vocab"), &vocabulary);
  return std::make_unique<WordPiece>(std::move(vocabulary), json.String("unk_token"),
                                     json.String("continuing_subword_prefix", "##"),
                                     json.Int("max_input_chars_per_word", 0, INT64_MAX, 100));
}

}  // namespace espalier
