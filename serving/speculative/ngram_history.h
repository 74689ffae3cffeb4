// Earlier outputs, for the n-gram drafter. Outputs are used only for requests with the same cache
// salt: the speed and usage report of a request reveal how good its drafts were, and so what others
// were told.
//
// Holds a limited number of tokens in all. Beyond that, the oldest tokens of a salt go first, then
// the least recently used salt.
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
  // `tokens`: capacity; 0: keeps nothing.
  explicit NgramHistory(int tokens) : tokens_(tokens) {}

  void Remember(absl::string_view salt, absl::Span<const int> answer);

  // Returns the indexes for a salt, the newer one first; null where there is none. Valid until the
  // next Remember.
  std::array<const NgramIndex*, 2> Of(absl::string_view salt) const;

  // Tokens held, including end markers.
  int size() const { return size_; }

 private:
  // When the newer half is full, the older one is dropped.
  struct Space {
    std::string salt;
    std::unique_ptr<NgramIndex> newer, older;

    int size() const;
  };
  using Spaces = std::list<Space>;

  void Append(Space& space, absl::Span<const int> tokens);

  const int tokens_;
  int size_ = 0;
  Spaces spaces_;  // the most recently used first
  absl::flat_hash_map<std::string, Spaces::iterator> by_salt_;
};

}  // namespace espalier
