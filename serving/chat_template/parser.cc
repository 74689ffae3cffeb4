#include "serving/chat_template/parser.h"

#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/chat_template/expression_parser.h"

namespace espalier::jinja {
namespace {

class StatementParser : public ExpressionParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    NodePtr root = Statements({});
    if (!ok()) return status();
    return root;
  }

 private:
  // Parses up to a block tag named one of `ends`; that name is then the current token.
  NodePtr Statements(std::initializer_list<absl::string_view> ends) {
    const DepthGuard deeper(this);
    NodePtr block = Make(NodeType::kBlock);
    while (ok()) {
      if (Current().type == Type::kText) {
        block->children.push_back(Make(NodeType::kText, Current().text));
        Next();
      } else if (Current().type == Type::kOpenOutput) {
        Next();
        block->children.push_back(With(NodeType::kOutput, "", TupleOrOne(true)));
        if (Current().type != Type::kCloseOutput)
          Fail(absl::StrCat("expected }}, found ", DescribeCurrent()));
        Next();
      } else if (Current().type == Type::kOpenBlock) {
        Next();
        if (IsOneOf(ends)) return Done(std::move(block));
        if (NodePtr statement = Statement()) block->children.push_back(std::move(statement));
      } else {
        if (ends.size() > 0) {
          Fail(absl::StrCat("the template ends, expected {% ", *(ends.end() - 1), " %}"));
        }
        break;
      }
    }
    return Done(std::move(block));
  }

  void CloseBlock() {
    if (Current().type != Type::kCloseBlock)
      return Fail(absl::StrCat("expected %}, found ", DescribeCurrent()));
    Next();
  }
  // Consumes the end tag of a block: its name and %}.
  void EndOf(absl::string_view name) {
    if (!TakeName(name))
      return Fail(absl::StrCat("expected ", name, ", found ", DescribeCurrent()));
    CloseBlock();
  }

  NodePtr Statement() {
    const std::string name = ExpectName();
    if (name == "for") return For();
    if (name == "if") return If();
    if (name == "set") return Set();
    if (name == "macro") return Macro();
    if (name == "call") return CallBlock();
    if (name == "filter") return FilterBlock();
    if (name == "with") return WithBlock();
    if (name == "generation") {  // marks what the model wrote; irrelevant in a prompt
      CloseBlock();
      NodePtr body = Statements({"endgeneration"});
      EndOf("endgeneration");
      return body;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail(absl::StrCat(name, " outside of a loop"));
      NodePtr node = Make(name == "break" ? NodeType::kBreak : NodeType::kContinue);
      CloseBlock();
      return node;
    }
    Fail(absl::StrCat("the tag ", name, " is not known here"), absl::StatusCode::kUnimplemented);
    return nullptr;
  }

  // An assignment target: a name, a field of a namespace, or names with commas between them.
  NodePtr Target(bool allows_field) {
    const auto one = [&]() -> NodePtr {
      if (TakeSign("(")) {
        NodePtr inner = Target(false);
        ExpectSign(")");
        return inner;
      }
      NodePtr name = Make(NodeType::kName);
      name->text = ExpectName();
      if (allows_field && TakeSign(".")) {
        NodePtr field = Make(NodeType::kAttribute, ExpectName());
        field->children.push_back(std::move(name));
        return Done(std::move(field));
      }
      return name;
    };
    const DepthGuard deeper(this);
    NodePtr first = one();
    if (!IsSign(",")) return first;
    NodePtr tuple = Make(NodeType::kTuple);
    tuple->children.push_back(std::move(first));
    while (TakeSign(",")) {
      if (Current().type != Type::kName && !IsSign("(")) break;
      if (IsName("in")) break;
      tuple->children.push_back(one());
    }
    return Done(std::move(tuple));
  }

  NodePtr For() {
    NodePtr node = Make(NodeType::kFor);
    NodePtr target = Target(false);
    if (!TakeName("in")) Fail(absl::StrCat("expected in, found ", DescribeCurrent()));
    NodePtr over = TupleOrOne(false);
    NodePtr condition = TakeName("if") ? Expression() : nullptr;
    node->flag = TakeName("recursive");
    CloseBlock();
    ++loops_;
    NodePtr body = Statements({"endfor", "else"});
    --loops_;
    NodePtr otherwise;
    if (TakeName("else")) {
      CloseBlock();
      otherwise = Statements({"endfor"});
    }
    EndOf("endfor");
    for (NodePtr* child : {&target, &over, &condition, &body, &otherwise}) {
      node->children.push_back(std::move(*child));
    }
    return Done(std::move(node));
  }

  NodePtr If() {
    NodePtr node = Make(NodeType::kCondition);
    while (ok()) {
      node->children.push_back(TupleOrOne(false));
      CloseBlock();
      node->children.push_back(Statements({"elif", "else", "endif"}));
      if (TakeName("elif")) continue;
      if (TakeName("else")) {
        CloseBlock();
        node->children.push_back(Statements({"endif"}));
      }
      EndOf("endif");
      break;
    }
    return Done(std::move(node));
  }

  NodePtr Set() {
    NodePtr node = Make(NodeType::kSet);
    node->children.push_back(Target(true));
    if (TakeSign("=")) {
      node->children.push_back(TupleOrOne(true));
      CloseBlock();
      return Done(std::move(node));
    }
    node->type = NodeType::kSetBlock;
    node->children.push_back(FilterChain(nullptr));
    CloseBlock();
    node->children.push_back(Statements({"endset"}));
    EndOf("endset");
    return Done(std::move(node));
  }

  // Parses (a, b=1) into names and defaults. The macro's body precedes the defaults.
  std::vector<NodePtr> Signature(Node* macro) {
    std::vector<NodePtr> defaults;
    ExpectSign("(");
    while (ok() && !TakeSign(")")) {
      if (!macro->names.empty()) ExpectSign(",");
      macro->names.push_back(ExpectName());
      if (TakeSign("=")) {
        defaults.push_back(Expression());
      } else if (!defaults.empty()) {
        Fail("a parameter without a default behind one that has it");
      }
    }
    return defaults;
  }

  NodePtr MacroBody(NodePtr macro, std::vector<NodePtr> defaults, absl::string_view end) {
    CloseBlock();
    const int loops = std::exchange(loops_, 0);  // break does not leave a macro
    macro->children.push_back(Statements({end}));
    loops_ = loops;
    EndOf(end);
    for (NodePtr& value : defaults) macro->children.push_back(std::move(value));
    macro->has_macro = true;
    return Done(std::move(macro));
  }

  NodePtr Macro() {
    NodePtr macro = Make(NodeType::kMacro);
    macro->text = ExpectName();
    std::vector<NodePtr> defaults = Signature(macro.get());
    return MacroBody(std::move(macro), std::move(defaults), "endmacro");
  }

  NodePtr CallBlock() {
    NodePtr node = Make(NodeType::kCallBlock);
    NodePtr caller = Make(NodeType::kMacro, "caller");
    std::vector<NodePtr> defaults;
    if (IsSign("(")) defaults = Signature(caller.get());
    node->children.push_back(Expression());
    if (ok() && node->children[0]->type != NodeType::kCall) Fail("expected a call");
    node->children.push_back(MacroBody(std::move(caller), std::move(defaults), "endcall"));
    return Done(std::move(node));
  }

  NodePtr FilterBlock() {
    NodePtr node = Make(NodeType::kFilterBlock);
    node->children.push_back(FilterChain(nullptr, true));
    CloseBlock();
    node->children.push_back(Statements({"endfilter"}));
    EndOf("endfilter");
    return Done(std::move(node));
  }

  NodePtr WithBlock() {
    NodePtr node = Make(NodeType::kWith);
    node->children.push_back(nullptr);
    while (ok() && Current().type != Type::kCloseBlock) {
      if (node->children.size() > 1) ExpectSign(",");
      node->children.push_back(Target(false));
      ExpectSign("=");
      node->children.push_back(Expression());
    }
    CloseBlock();
    node->children[0] = Statements({"endwith"});
    EndOf("endwith");
    return Done(std::move(node));
  }

  int loops_ = 0;  // loops around the current statement
};

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> ParseTemplate(absl::string_view source) {
  absl::StatusOr<std::vector<Token>> tokens = Lex(source);
  if (!tokens.ok()) return tokens.status();
  return StatementParser(*std::move(tokens)).Run();
}

}  // namespace espalier::jinja
