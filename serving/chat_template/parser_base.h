// State shared by the parsers: token cursor, first error, node construction.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "serving/chat_template/ast.h"
#include "serving/chat_template/lexer.h"

namespace espalier::jinja {

using NodePtr = std::unique_ptr<Node>;

class ParserBase {
 protected:
  using Type = Token::Type;

  // Counts the parser's own recursion depth.
  struct DepthGuard {
    explicit DepthGuard(ParserBase* p) : parser(p) {
      if (++parser->depth_ > kMaxDepth) parser->Fail("nested too deep");
    }
    ~DepthGuard() { --parser->depth_; }
    ParserBase* parser;
  };

  explicit ParserBase(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  ~ParserBase() = default;

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  const Token& Current() const { return tokens_[at_]; }
  const Token& Peek(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsSign(absl::string_view sign) const {
    return Current().type == Type::kSign && Current().text == sign;
  }
  bool IsName(absl::string_view name) const {
    return Current().type == Type::kName && Current().text == name;
  }
  bool IsOneOf(std::initializer_list<absl::string_view> names) const;
  bool TakeSign(absl::string_view sign) {
    if (!IsSign(sign)) return false;
    Next();
    return true;
  }
  bool TakeName(absl::string_view name) {
    if (!IsName(name)) return false;
    Next();
    return true;
  }

  // Records the first error and moves to the end, which ends every loop.
  void Fail(absl::string_view what, absl::StatusCode code = absl::StatusCode::kInvalidArgument);
  std::string DescribeCurrent() const;  // the current token, for messages
  void ExpectSign(absl::string_view sign);
  std::string ExpectName();

  NodePtr Make(NodeType type, std::string text = "");
  // Completes a node with children: sets `depth` and `has_macro`.
  NodePtr Done(NodePtr node);
  NodePtr With(NodeType type, std::string text, NodePtr a, NodePtr b = nullptr);

 private:
  // Depth of the tree and of nested brackets and blocks. The evaluator recurses as deep.
  static constexpr int kMaxDepth = 150;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

}  // namespace espalier::jinja
