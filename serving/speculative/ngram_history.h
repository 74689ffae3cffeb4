// Answers given earlier, for n-gram drafts to continue as they did. Those to requests of one salt are
// drafts for requests of that salt alone: what a draft was worth can be told from an answer's speed
// and its usage report, so others would learn what was said.
//
// Kept up to a number of tokens in all; then the oldest of a salt's own go, and the salt that was
// used least recently.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "serving/speculative/ngram_index.h"

namespace espalier {

class NgramHistory {
 public:
  // `tokens`: 0 keeps none.
  explicit NgramHistory(int tokens) : tokens_(tokens) {}

  void Remember(absl::string_view salt, absl::Span<const int> answer);

  // What is kept for a salt, the newer half first; null where there is none. Until the next
  // Remember.
  std::array<const NgramIndex*, 2> Of(absl::string_view salt) const;

  // Tokens, the ends of answers among them.
  int size() const { return size_; }

 private:
  // When the newer half is full, the older is dropped.
  struct Space {
    std::string salt;
    std::unique_ptr<NgramIndex> newer, older;

    int size() const;
  };
  using Spaces = std::list<Space>;

  void Append(Space& space, absl::Span<const int> tokens);

  const int tokens_;
  int size_ = 0;
  Spaces spaces_;  // the one that was used last first
  absl::flat_hash_map<std::string, Spaces::iterator> by_salt_;
};

}  // namespace espalier
