// The "added_tokens" of tokenizer.json: texts that are always one token, most of them special.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/byte_trie.h"
#include "serving/tokenizer/normalizer.h"
#include "serving/tokenizer/token_model.h"

namespace espalier {

class AddedTokens {
 public:
  // A part of a text: a token, or text that is still to be encoded (token -1).
  struct Piece {
    size_t begin, end;
    int token;
  };

  // Reports errors to the reader. As in Hugging Face's library, a token of the model keeps its id,
  // and others get the next free id, whatever the file says. Omits tokens that the model does not
  // have if their id is at least `limit`. `normalizer` may be null.
  void Read(const JsonReader& json, const Vocabulary& vocabulary, const Normalizer* normalizer,
            int64_t limit);
  // Makes those of `special` that are in the vocabulary, but were not read, special tokens. Call
  // once, after Read and before the methods below.
  void Build(absl::Span<const std::string> special, const Vocabulary& vocabulary);

  // Splits a text at the tokens to be found before normalization, or after it if `normalized`; at
  // each position the longest wins. Without `special`, special tokens are ordinary text. REQUIRES:
  // valid UTF-8.
  std::vector<Piece> Find(absl::string_view text, bool normalized, bool special) const;

  bool IsSpecial(int id) const { return special_.contains(id); }
  // The decoded text of a token; null if it is no added token.
  const std::string* Spelling(int id) const;
  int Id(absl::string_view content) const;
  int max_id() const { return max_id_; }
  const std::map<int, std::string>& omitted_added_tokens() const { return omitted_; }
  // The texts of the special tokens.
  const absl::flat_hash_set<std::string>& special_spellings() const { return special_spellings_; }

 private:
  struct Token {
    std::string content;
    std::string decoded;  // after normalization
    bool single_word = false, left_strip = false, right_strip = false;
    bool normalized = false, special = false;
  };

  void Add(Token token, const JsonReader& json, const Vocabulary& vocabulary,
           const Normalizer* normalizer, int64_t limit, int* next_id);

  absl::flat_hash_map<int, Token> tokens_;
  absl::flat_hash_map<std::string, int> ids_;
  absl::flat_hash_set<int> special_;
  absl::flat_hash_set<std::string> special_spellings_;
  ByteTrie plain_, normalized_;
  int max_id_ = -1;
  std::map<int, std::string> omitted_;
};

}  // namespace espalier
