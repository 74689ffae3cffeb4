// The "model" of tokenizer.json: encodes a word as token ids.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/json/json_reader.h"

namespace espalier {

// Exclusive upper bound of token ids.
inline constexpr int64_t kMaxTokenId = int64_t{1} << 24;

// Immutable once built.
class Vocabulary {
 public:
  // A later entry replaces earlier ones with the same spelling or id.
  void Add(std::string spelling, int id);

  // Returns -1 if there is none.
  int Find(absl::string_view spelling) const {
    const auto found = ids_.find(spelling);
    return found == ids_.end() ? -1 : found->second;
  }
  // Returns null if there is none.
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
  // Appends the tokens of a word. Returns InvalidArgument if a character has no token and the model
  // has no unknown token. REQUIRES: not empty; valid UTF-8 unless reads_bytes().
  virtual absl::Status Tokenize(absl::string_view word, std::vector<int>* tokens) const = 0;
  // Whether words are raw bytes that are not translated to the byte-level alphabet.
  virtual bool reads_bytes() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

// Reports errors to the reader and returns null for an unknown or malformed model. Types: BPE,
// Unigram, WordPiece, WordLevel. `byte_words`: words would arrive in the byte-level alphabet; a
// model that can read raw bytes instead will do so.
std::unique_ptr<TokenModel> MakeTokenModel(const JsonReader& json, bool byte_words);

// Called by MakeTokenModel; one file each: bpe.cc, unigram.cc, word_piece.cc, word_level.cc.
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
