// Messages of a peer that have arrived before they were asked for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace espalier {

class EarlyMessages {
 public:
  void Keep(uint64_t tag, std::vector<char> message) { by_tag_[tag].push_back(std::move(message)); }
  // Returns the oldest one with the tag; nullopt if there is none.
  std::optional<std::vector<char>> Take(uint64_t tag) {
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) return std::nullopt;
    std::vector<char> message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) by_tag_.erase(found);
    return message;
  }

 private:
  std::map<uint64_t, std::deque<std::vector<char>>> by_tag_;  // no deque is empty
};

}  // namespace espalier
