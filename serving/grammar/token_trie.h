// The vocabulary as a byte trie, so that a grammar visits each common prefix once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class TokenTrie {
 public:
  // Special tokens are included if they are in `shown`: their text is part of the answer. Other
  // special tokens, and tokens without bytes, are left out.
  explicit TokenTrie(const Tokenizer& tokenizer, absl::Span<const int> shown = {});

  struct Node {
    uint8_t byte;
    int32_t end;          // index behind the last descendant
    int32_t first_token;  // into tokens(): the tokens that end here
    int32_t tokens;
    int32_t max_token_bytes;  // length of the longest token at or below it, in bytes
  };
  // In depth-first order: the first child of a node follows it.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // End index of the tokens at and below a node.
  int32_t TokensEnd(const Node& node) const {
    const bool last = node.end == static_cast<int32_t>(nodes_.size());
    return last ? static_cast<int32_t>(tokens_.size()) : nodes_[node.end].first_token;
  }
  int max_token_bytes() const { return max_token_bytes_; }  // length of the longest token, in bytes
  int vocabulary() const { return static_cast<int>(bytes_.size()); }
  // Empty for tokens that are not in the trie.
  const std::string& bytes(int token) const { return bytes_[token]; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> bytes_;  // by token id
  int max_token_bytes_ = 0;
};

}  // namespace espalier
