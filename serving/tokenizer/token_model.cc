#include "serving/tokenizer/token_model.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

// The longest token that begins a word, then the longest that goes on, marked by a prefix.
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
      // No token is longer, so nothing longer need be looked up.
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
    if (unknown_ < 0) return MissingUnknown(unknown_spelling_);
    tokens->push_back(unknown_);
    return absl::OkStatus();
  }

  static absl::Status MissingUnknown(absl::string_view spelling) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has a word without a token, and the token for unknown ones, \"",
                     spelling, "\", is not in the vocabulary"));
  }

 private:
  std::string unknown_spelling_;
  std::string prefix_;
  int64_t max_characters_;
  int unknown_ = -1;
  size_t longest_ = 0;
};

class WordLevel : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown) : unknown_spelling_(std::move(unknown)) {
    vocabulary_ = std::move(vocabulary);
    unknown_ = vocabulary_.Find(unknown_spelling_);
  }

  absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const override {
    int id = vocabulary_.Find(word);
    if (id < 0) id = unknown_;
    if (id < 0) return WordPiece::MissingUnknown(unknown_spelling_);
    tokens->push_back(id);
    return absl::OkStatus();
  }

 private:
  std::string unknown_spelling_;
  int unknown_ = -1;
};

}  // namespace

void Vocabulary::Add(std::string spelling, int id) {
  max_id_ = std::max(max_id_, id);
  spellings_.insert_or_assign(id, spelling);
  ids_.insert_or_assign(std::move(spelling), id);
}

void ReadVocabulary(const JsonReader& json, Vocabulary* vocabulary) {
  if (!json.ok()) return;
  if (!json.IsObject()) {
    json.Invalid("expected an object of tokens and ids");
    return;
  }
  for (auto entry = json.value().begin(); entry != json.value().end() && json.ok(); ++entry) {
    const bool fits = entry->is_number_unsigned() && entry->get<uint64_t>() < kMaxTokenId;
    if (!fits) {
      json.Invalid(absl::StrCat("the id of \"", entry.key().substr(0, 60), "\" is ",
                                entry->dump(-1, ' ', true).substr(0, 60),
                                ", expected an integer from 0 to ", kMaxTokenId - 1));
      return;
    }
    vocabulary->Add(entry.key(), entry->get<int>());
  }
}

std::string ByteTokenSpelling(unsigned char byte) { return absl::StrFormat("<0x%02X>", byte); }

std::unique_ptr<TokenModel> MakeWordPiece(const JsonReader& json) {
  Vocabulary vocabulary;
  ReadVocabulary(json.Get("vocab"), &vocabulary);
  return std::make_unique<WordPiece>(std::move(vocabulary), json.String("unk_token"),
                                     json.String("continuing_subword_prefix", "##"),
                                     json.Int("max_input_chars_per_word", 0, INT64_MAX, 100));
}

std::unique_ptr<TokenModel> MakeWordLevel(const JsonReader& json) {
  Vocabulary vocabulary;
  ReadVocabulary(json.Get("vocab"), &vocabulary);
  return std::make_unique<WordLevel>(std::move(vocabulary), json.String("unk_token"));
}

std::unique_ptr<TokenModel> MakeTokenModel(const JsonReader& json, bool byte_words) {
  std::string type = json.String("type", "");
  // Files of old versions do not say; their fields do.
  if (type.empty() && json.ok()) {
    const bool list = json.Has("vocab") && json.value()["vocab"].is_array();
    type = json.Has("merges")                      ? "BPE"
           : list                                  ? "Unigram"
           : json.Has("continuing_subword_prefix") ? "WordPiece"
                                                   : "WordLevel";
  }
  if (type == "BPE") return MakeBpe(json, byte_words);
  if (type == "Unigram") return MakeUnigram(json);
  if (type == "WordPiece") return MakeWordPiece(json);
  if (type == "WordLevel") return MakeWordLevel(json);
  json.Unknown(absl::StrCat("type \"", type, "\" is not known"));
  return nullptr;
}

}  // namespace espalier
