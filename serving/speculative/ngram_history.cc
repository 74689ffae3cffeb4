#include "serving/speculative/ngram_history.h"

#include <algorithm>
#include <utility>

namespace espalier {

int NgramHistory::Space::size() const {
  int sum = 0;
  for (const auto* half : {&newer, &older}) sum += *half != nullptr ? (*half)->size() : 0;
  return sum;
}

void NgramHistory::Append(Space& space, absl::Span<const int> tokens) {
  if (space.newer == nullptr) space.newer = std::make_unique<NgramIndex>();
  space.newer->Append(tokens);
  size_ += static_cast<int>(tokens.size());
}

void NgramHistory::Remember(absl::string_view salt, absl::Span<const int> answer) {
  if (tokens_ == 0) return;
  const auto known = by_salt_.find(salt);
  if (known == by_salt_.end()) {
    spaces_.push_front({.salt = std::string(salt)});
    by_salt_[salt] = spaces_.begin();
  } else {
    spaces_.splice(spaces_.begin(), spaces_, known->second);
  }
  Space& space = spaces_.front();
  const int half = std::max(tokens_ / 2, 1);
  while (!answer.empty()) {
    const int room = half - (space.newer != nullptr ? space.newer->size() : 0);
    if (room <= 0) {
      size_ -= space.older != nullptr ? space.older->size() : 0;
      space.older = std::exchange(space.newer, nullptr);
      continue;
    }
    const size_t some = std::min(answer.size(), static_cast<size_t>(room));
    Append(space, answer.first(some));
    answer.remove_prefix(some);
  }
  const int end = NgramIndex::kEnd;
  Append(space, {&end, 1});
  while (size_ > tokens_ && spaces_.size() > 1) {
    Space& least = spaces_.back();
    size_ -= least.size();
    by_salt_.erase(least.salt);
    spaces_.pop_back();
  }
}

std::array<const NgramIndex*, 2> NgramHistory::Of(absl::string_view salt) const {
  const auto known = by_salt_.find(salt);
  if (known == by_salt_.end()) return {nullptr, nullptr};
  return {known->second->newer.get(), known->second->older.get()};
}

}  // namespace espalier
