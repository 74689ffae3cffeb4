// The "model" of tokenizer.json: from a word to token ids.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/json/json_reader.h"

namespace espalier {

// Token ids are below this.
inline constexpr int64_t kMaxTokenId = int64_t{1} << 24;

// Immutable once built.
class Vocabulary {
 public:
  // A later entry of the same spelling or id takes the place of an earlier one.
  void Add(std::string spelling, int id);

  // -1 if there is none.
  int Find(absl::string_view spelling) const {
    const auto found = ids_.find(spelling);
    return found == ids_.end() ? -1 : found->second;
  }
  // Null if there is none.
  const std::string* Spelling(int id) const {
    const auto found = spellings_.find(id);
    return found == spellings_.end() ? nullptr : &found->second;
  }
  size_t size() const { return ids_.size(); }
  int max_id() const { return max_id_; }
  const absl::flat_hash_map<std::string, int>& ids() const { return ids_; }

 private:
  absl::flat_hash_map<std::string, int> ids_;
  absl::flat_hash_map<int, std::string> spellings_;
  int max_id_ = -1;
};

// Immutable.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of a word. InvalidArgument if a character has no token and there is none for
  // what is unknown. REQUIRES: not empty; valid UTF-8 unless reads_bytes().
  virtual absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const = 0;
  // True if words come as bytes that are not yet in the byte alphabet of the vocabulary.
  virtual bool reads_bytes() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

// Null and an error in the reader for what is unknown or malformed: types BPE, Unigram, WordPiece,
// WordLevel. `byte_words`: the words would come in the byte alphabet; a model that can read the
// bytes themselves will.
std::unique_ptr<TokenModel> MakeTokenModel(const JsonReader& json, bool byte_words);

// One each, for MakeTokenModel.
std::unique_ptr<TokenModel> MakeBpe(const JsonReader& json, bool byte_words);
std::unique_ptr<TokenModel> MakeUnigram(const JsonReader& json);
std::unique_ptr<TokenModel> MakeWordPiece(const JsonReader& json);
std::unique_ptr<TokenModel> MakeWordLevel(const JsonReader& json);

// Reads {"spelling": id, ...}.
void ReadVocabulary(const JsonReader& json, Vocabulary* vocabulary);

// The error of a model whose unknown token, `spelling`, is not in its vocabulary.
absl::Status MissingUnknownToken(absl::string_view spelling);

// "<0x0A>" for 10.
std::string ByteTokenSpelling(unsigned char byte);

}  // namespace espalier
