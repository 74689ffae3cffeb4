// A trie that maps byte strings to numbers and finds the keys that a text begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

class ByteTrie {
 public:
  // Empty keys are never found. The last of equal keys wins.
  void Add(absl::string_view key, int value) { keys_.emplace_back(std::string(key), value); }

  // Call once, after the last Add.
  void Build() {
    std::stable_sort(keys_.begin(), keys_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    root_.fill(-1);
    nodes_.push_back({});
    Fill();
    keys_.clear();
    keys_.shrink_to_fit();
    for (uint32_t i = 0; i < nodes_[0].edges; ++i) {
      root_[labels_[nodes_[0].first + i]] = static_cast<int32_t>(targets_[nodes_[0].first + i]);
    }
  }

  bool empty() const { return nodes_.size() < 2; }

  // Calls f(length, value) for every key that is a prefix of `text`, shortest first.
  template <typename F>
  void Prefixes(absl::string_view text, F f) const {
    if (text.empty() || empty()) return;
    int32_t node = root_[static_cast<unsigned char>(text[0])];
    for (size_t length = 1; node >= 0; ++length) {
      if (nodes_[node].value >= 0) f(length, nodes_[node].value);
      if (length == text.size()) return;
      node = Child(nodes_[node], static_cast<unsigned char>(text[length]));
    }
  }

 private:
  struct Node {
    uint32_t first = 0, edges = 0;  // range of labels_ and targets_
    int32_t value = -1;
  };

  int32_t Child(const Node& node, unsigned char label) const {
    const uint8_t* const begin = labels_.data() + node.first;
    const uint8_t* const end = begin + node.edges;
    const uint8_t* const found =
        node.edges <= 8 ? std::find(begin, end, label) : std::lower_bound(begin, end, label);
    if (found == end || *found != label) return -1;
    return static_cast<int32_t>(targets_[node.first + (found - begin)]);
  }

  // Breadth-first over ranges of sorted keys with a common prefix. Not recursive, since keys may be
  // long.
  void Fill() {
    struct Range {
      uint32_t node;
      size_t begin, end, depth;
    };
    std::vector<Range> queue = {{0, 0, keys_.size(), 0}};
    for (size_t q = 0; q < queue.size(); ++q) {
      const Range range = queue[q];
      size_t at = range.begin;
      for (; at < range.end && keys_[at].first.size() == range.depth; ++at) {
        if (range.depth > 0) nodes_[range.node].value = keys_[at].second;
      }
      nodes_[range.node].first = static_cast<uint32_t>(labels_.size());
      while (at < range.end) {
        const auto label = static_cast<uint8_t>(keys_[at].first[range.depth]);
        size_t end = at;
        while (end < range.end && static_cast<uint8_t>(keys_[end].first[range.depth]) == label)
          ++end;
        labels_.push_back(label);
        targets_.push_back(static_cast<uint32_t>(nodes_.size()));
        ++nodes_[range.node].edges;
        queue.push_back({static_cast<uint32_t>(nodes_.size()), at, end, range.depth + 1});
        nodes_.push_back({});
        at = end;
      }
    }
  }

  std::vector<std::pair<std::string, int>> keys_;
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;
  std::vector<uint32_t> targets_;
  std::array<int32_t, 256> root_;
};

}  // namespace espalier
