// Finds where the last few tokens of a text occurred before, in any text that was indexed: runs of
// 2, 3, 5 and 8 tokens by their hash (tokens are compared, so a collision costs a match and nothing
// else), each with its two latest places. Constant work per token.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace espalier {

class NgramIndex {
 public:
  static constexpr int kEnd = -1;  // between texts; no match and no continuation crosses it

  struct Match {
    int next = 0;    // place of the token that followed
    int length = 0;  // tokens that agree before it, as far as was looked
  };

  static constexpr std::array<int, 4> kLengths = {8, 5, 3, 2};  // of runs, longest first

  // The runs at the end of a text, which outlives this: one text may be looked for in many indexes.
  class Runs {
   public:
    explicit Runs(absl::Span<const int> text);

   private:
    friend class NgramIndex;
    absl::Span<const int> text_;
    std::array<uint64_t, kLengths.size()> hashes_;
    std::array<bool, kLengths.size()>
        whole_;  // there are as many tokens, and no text ends among them
  };

  void Append(absl::Span<const int> tokens);
  int size() const { return static_cast<int>(tokens_.size()); }
  // REQUIRES: place < size().
  int token(int place) const { return tokens_[place]; }

  // Places at which the text went on after tokens like the last ones of the runs' text: the longest
  // matches first, the latest first among those, at most `count` different ones.
  std::vector<Match> Find(const Runs& runs, int count) const;

 private:
  using Places = std::array<int, 2>;  // the latest first; 0: none

  std::vector<int> tokens_;
  absl::flat_hash_map<uint64_t, Places> places_;  // of what followed
};

}  // namespace espalier
