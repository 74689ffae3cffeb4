// The vocabulary as a tree of bytes, so that a grammar looks at each common beginning once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class TokenTrie {
 public:
  // Special tokens are in it if they are `shown`: the answer has their text. Otherwise they stand
  // for no text, as do tokens without bytes.
  explicit TokenTrie(const Tokenizer& tokenizer, absl::Span<const int> shown = {});

  struct Node {
    uint8_t byte;
    int32_t end;          // index behind the last node below this one
    int32_t first_token;  // into tokens(): those that end here
    int32_t tokens;
    int32_t deepest;  // bytes of the longest token at or below it
  };
  // In depth-first order: a node's first child follows it.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Behind the tokens at and below a node.
  int32_t TokensEnd(const Node& node) const {
    const bool last = node.end == static_cast<int32_t>(nodes_.size());
    return last ? static_cast<int32_t>(tokens_.size()) : nodes_[node.end].first_token;
  }
  int deepest() const { return deepest_; }  // bytes of the longest token
  int vocabulary() const { return static_cast<int>(bytes_.size()); }
  // Empty for tokens that are not in the tree.
  const std::string& bytes(int token) const { return bytes_[token]; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> bytes_;  // by token
  int deepest_ = 0;
};

}  // namespace espalier
