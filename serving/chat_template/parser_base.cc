#include "serving/chat_template/parser_base.h"

#include "absl/strings/str_cat.h"

namespace espalier::jinja {

bool ParserBase::IsOneOf(std::initializer_list<absl::string_view> names) const {
  return Current().type == Type::kName &&
         std::find(names.begin(), names.end(), Current().text) != names.end();
}

void ParserBase::Fail(absl::string_view what, absl::StatusCode code) {
  if (status_.ok()) status_ = absl::Status(code, absl::StrCat("line ", Current().line, ": ", what));
  at_ = tokens_.size() - 1;  // ends every loop
}

std::string ParserBase::DescribeCurrent() const {
  switch (Current().type) {
    case Type::kEnd:
      return "the end of the template";
    case Type::kCloseBlock:
      return "%}";
    case Type::kCloseOutput:
      return "}}";
    case Type::kString:
      return "a string";
    default:
      return absl::StrCat("'", Current().text, "'");
  }
}

void ParserBase::ExpectSign(absl::string_view sign) {
  if (!TakeSign(sign)) Fail(absl::StrCat("expected '", sign, "', found ", DescribeCurrent()));
}

std::string ParserBase::ExpectName() {
  if (Current().type != Type::kName) {
    Fail(absl::StrCat("expected a name, found ", DescribeCurrent()));
    return "";
  }
  std::string name = Current().text;
  Next();
  return name;
}

NodePtr ParserBase::Make(NodeType type, std::string text) {
  auto node = std::make_unique<Node>();
  node->type = type;
  node->line = Current().line;
  node->text = std::move(text);
  return node;
}

NodePtr ParserBase::Done(NodePtr node) {
  const auto look = [&](const NodePtr& child) {
    if (child == nullptr) return;
    node->depth = std::max(node->depth, child->depth + 1);
    node->has_macro = node->has_macro || child->has_macro;
  };
  for (const NodePtr& child : node->children) look(child);
  for (const NodePtr& child : node->positional) look(child);
  for (const auto& [name, child] : node->named) look(child);
  look(node->spread);
  look(node->spread_named);
  if (node->depth > kMaxDepth) Fail("nested too deep");
  return node;
}

NodePtr ParserBase::With(NodeType type, std::string text, NodePtr a, NodePtr b) {
  NodePtr node = Make(type, std::move(text));
  if (a != nullptr) node->line = a->line;
  node->children.push_back(std::move(a));
  if (b != nullptr) node->children.push_back(std::move(b));
  return Done(std::move(node));
}

}  // namespace espalier::jinja
