// Index of n-grams: finds where the last tokens of a text occurred before in the indexed texts. It
// hashes runs of 2, 3, 5 and 8 tokens and keeps the two latest positions of each; tokens are
// compared, so a hash collision only loses a match. Constant work per token.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace espalier {

class NgramIndex {
 public:
  // Separates texts; no match and no continuation crosses it.
  static constexpr int kEnd = -1;  // between texts; no match and no continuation crosses it

  struct Match {
    int next = 0;    // position of the token that followed
    int length = 0;  // matching tokens before it, as far as compared
  };

  static constexpr std::array<int, 4> kLengths = {8, 5, 3, 2};  // n of the n-grams, longest first

  // The n-grams at the end of a text, for a search in several indexes. The text must outlive this
  // object.
  class Runs {
   public:
    explicit Runs(absl::Span<const int> text);

   private:
    friend class NgramIndex;
    absl::Span<const int> text_;
    std::array<uint64_t, kLengths.size()> hashes_;
    std::array<bool, kLengths.size()>
        // Whether the text is long enough and no text ends within the n-gram.
        whole_;  // there are as many tokens, and no text ends among them
  };

  void Append(absl::Span<const int> tokens);
  int size() const { return static_cast<int>(tokens_.size()); }
  // REQUIRES: place < size().
  int token(int place) const { return tokens_[place]; }

  // Returns at most `count` different positions at which a text continued after the same n-gram:
  // the longest matches first, the latest first among equals.
  std::vector<Match> Find(const Runs& runs, int count) const;

 private:
  using Places = std::array<int, 2>;  // latest first; 0: none

  std::vector<int> tokens_;
  absl::flat_hash_map<uint64_t, Places> places_;  // positions of the next token, by n-gram
};

}  // namespace espalier
