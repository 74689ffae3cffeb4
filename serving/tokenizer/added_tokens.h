// The "added_tokens" of tokenizer.json: texts that are one token wherever they stand, most of them
// special.
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
#include "serving/tokenizer/byte_trie.h"
#include "base/json/json_reader.h"
#include "serving/tokenizer/normalizer.h"
#include "serving/tokenizer/token_model.h"

namespace espalier {

class AddedTokens {
 public:
  // A piece of a text: a token, or text (token -1) that is still to be encoded.
  struct Piece {
    size_t begin, end;
    int token;
  };

  // Errors go to the reader. As in the library a token that the model has keeps the model's id, and
  // others get the next free one, whatever the file says. `normalizer` may be null. Those that the
  // model does not have are left out if their ids are no less than `limit`.
  void Read(const JsonReader& json, const Vocabulary& vocabulary, const Normalizer* normalizer,
            int64_t limit);
  // Makes those of `special` that the vocabulary has, and that were not read, special tokens, too.
  // To be called once, behind Read and before the others below.
  void Build(absl::Span<const std::string> special, const Vocabulary& vocabulary);

  // Cuts a text at the tokens that are looked for before normalisation, or at those after it: at
  // each place the longest. Without `special` those that are special are text.
  // REQUIRES: valid UTF-8.
  std::vector<Piece> Find(absl::string_view text, bool normalized, bool special) const;

  bool IsSpecial(int id) const { return special_.contains(id); }
  // How a token decodes, null if it is not of these.
  const std::string* Spelling(int id) const;
  int Id(absl::string_view content) const;
  int max_id() const { return max_id_; }
  const std::map<int, std::string>& omitted_added_tokens() const { return omitted_; }
  // By what they are in texts, special ones only.
  const absl::flat_hash_set<std::string>& special_spellings() const { return special_spellings_; }

 private:
  struct Token {
    std::string content;
    std::string decoded;  // as normalised
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
