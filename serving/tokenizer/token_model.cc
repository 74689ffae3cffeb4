#include "serving/tokenizer/token_model.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {

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

absl::Status MissingUnknownToken(absl::string_view spelling) {
  return absl::InvalidArgumentError(
      absl::StrCat("the text has a word without a token, and the token for unknown ones, \"",
                   spelling, "\", is not in the vocabulary"));
}

std::unique_ptr<TokenModel> MakeTokenModel(const JsonReader& json, bool byte_words) {
  std::string type = json.String("type", "");
  // Old files have no type; their fields determine it.
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
