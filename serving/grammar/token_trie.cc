#include "serving/grammar/token_trie.h"

#include <algorithm>
#include <numeric>

#include "absl/algorithm/container.h"

namespace espalier {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, absl::Span<const int> shown)
    : bytes_(tokenizer.vocabulary()) {
  std::vector<int32_t> order;
  // End-of-sequence tokens have no text, whatever the vocabulary's files say.
  std::vector<bool> silent(bytes_.size());
  for (const int token : tokenizer.eos()) {
    if (token >= 0 && token < vocabulary()) silent[token] = true;
  }
  for (int32_t token = 0; token < vocabulary(); ++token) {
    if ((silent[token] || tokenizer.IsSpecial(token)) && !absl::c_linear_search(shown, token)) {
      continue;
    }
    bytes_[token] = tokenizer.TokenBytes(token);
    if (!bytes_[token].empty()) order.push_back(token);
  }
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    const int sign = bytes_[a].compare(bytes_[b]);
    return sign != 0 ? sign < 0 : a < b;
  });
  std::vector<int32_t> path;  // ancestors, one per byte of the previous token
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      Node& node = nodes_[path.back()];
      node.end = static_cast<int32_t>(nodes_.size());
      const int32_t max_token_bytes =
          std::max(node.max_token_bytes, static_cast<int32_t>(path.size()));
      node.max_token_bytes = max_token_bytes;
      int32_t& above =
          path.size() > 1 ? nodes_[path[path.size() - 2]].max_token_bytes : max_token_bytes_;
      above = std::max(above, max_token_bytes);
    }
  };
  for (const int32_t token : order) {
    const std::string& bytes = bytes_[token];
    size_t common = 0;
    while (common < path.size() && common < bytes.size() &&
           nodes_[path[common]].byte == static_cast<uint8_t>(bytes[common])) {
      ++common;
    }
    close(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<uint8_t>(bytes[i]), 0, static_cast<int32_t>(tokens_.size()), 0, 0});
    }
    tokens_.push_back(token);
    ++nodes_[path.back()].tokens;
  }
  close(0);
}

}  // namespace espalier
