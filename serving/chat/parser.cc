#include "serving/chat/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/chat/lexer.h"

namespace espalier::chat {
namespace {

// Of the tree, and of brackets and blocks in each other; what evaluates it recurses as deep.
constexpr int kMaxDepth = 150;

using NodePtr = std::unique_ptr<Node>;
using Type = Token::Type;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    NodePtr root = Statements({});
    if (!status_.ok()) return status_;
    return root;
  }

 private:
  // Counts how deep the parser itself is.
  struct Deeper {
    explicit Deeper(Parser* p) : parser(p) {
      if (++parser->depth_ > kMaxDepth) parser->Fail("nested too deep");
    }
    ~Deeper() { --parser->depth_; }
    Parser* parser;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsSign(absl::string_view sign) const {
    return Now().type == Type::kSign && Now().text == sign;
  }
  bool IsName(absl::string_view name) const {
    return Now().type == Type::kName && Now().text == name;
  }
  bool IsOneOf(std::initializer_list<absl::string_view> names) const {
    return Now().type == Type::kName &&
           std::find(names.begin(), names.end(), Now().text) != names.end();
  }
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

  void Fail(absl::string_view what, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    if (status_.ok()) status_ = absl::Status(code, absl::StrCat("line ", Now().line, ": ", what));
    at_ = tokens_.size() - 1;  // stops every loop
  }
  std::string Seen() const {
    switch (Now().type) {
      case Type::kEnd:
        return "the end of the template";
      case Type::kCloseBlock:
        return "%}";
      case Type::kCloseOutput:
        return "}}";
      case Type::kString:
        return "a string";
      default:
        return absl::StrCat("'", Now().text, "'");
    }
  }
  void ExpectSign(absl::string_view sign) {
    if (!TakeSign(sign)) Fail(absl::StrCat("expected '", sign, "', found ", Seen()));
  }
  std::string ExpectName() {
    if (Now().type != Type::kName) {
      Fail(absl::StrCat("expected a name, found ", Seen()));
      return "";
    }
    std::string name = Now().text;
    Next();
    return name;
  }

  NodePtr Make(NodeType type, std::string text = "") {
    auto node = std::make_unique<Node>();
    node->type = type;
    node->line = Now().line;
    node->text = std::move(text);
    return node;
  }

  // Once its children are there: depth, and whether a macro is below.
  NodePtr Done(NodePtr node) {
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
  NodePtr With(NodeType type, std::string text, NodePtr a, NodePtr b = nullptr) {
    NodePtr node = Make(type, std::move(text));
    if (a != nullptr) node->line = a->line;
    node->children.push_back(std::move(a));
    if (b != nullptr) node->children.push_back(std::move(b));
    return Done(std::move(node));
  }

  // Up to a block tag whose name is one of `ends`; that name is the current token then.
  NodePtr Statements(std::initializer_list<absl::string_view> ends) {
    const Deeper deeper(this);
    NodePtr block = Make(NodeType::kBlock);
    while (status_.ok()) {
      if (Now().type == Type::kText) {
        block->children.push_back(Make(NodeType::kText, Now().text));
        Next();
      } else if (Now().type == Type::kOpenOutput) {
        Next();
        block->children.push_back(With(NodeType::kOutput, "", TupleOrOne(true)));
        if (Now().type != Type::kCloseOutput) Fail(absl::StrCat("expected }}, found ", Seen()));
        Next();
      } else if (Now().type == Type::kOpenBlock) {
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
    if (Now().type != Type::kCloseBlock) return Fail(absl::StrCat("expected %}, found ", Seen()));
    Next();
  }
  // Behind a block's body: the name of its end and %}.
  void EndOf(absl::string_view name) {
    if (!TakeName(name)) return Fail(absl::StrCat("expected ", name, ", found ", Seen()));
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
    if (name == "generation") {  // which part of a text the model wrote: of no interest in a prompt
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

  // What is assigned to: a name, a namespace's field, or names with commas between.
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
    const Deeper deeper(this);
    NodePtr first = one();
    if (!IsSign(",")) return first;
    NodePtr tuple = Make(NodeType::kTuple);
    tuple->children.push_back(std::move(first));
    while (TakeSign(",")) {
      if (Now().type != Type::kName && !IsSign("(")) break;
      if (IsName("in")) break;
      tuple->children.push_back(one());
    }
    return Done(std::move(tuple));
  }

  NodePtr For() {
    NodePtr node = Make(NodeType::kFor);
    NodePtr target = Target(false);
    if (!TakeName("in")) Fail(absl::StrCat("expected in, found ", Seen()));
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
    while (status_.ok()) {
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

  // (a, b=1) into names and defaults; the macro's body comes before the defaults.
  std::vector<NodePtr> Signature(Node* macro) {
    std::vector<NodePtr> defaults;
    ExpectSign("(");
    while (status_.ok() && !TakeSign(")")) {
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
    if (status_.ok() && node->children[0]->type != NodeType::kCall) Fail("expected a call");
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
    while (status_.ok() && Now().type != Type::kCloseBlock) {
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

  // Expressions with commas between are a tuple. `with_if`: a conditional may stand there.
  NodePtr TupleOrOne(bool with_if) {
    const Deeper deeper(this);
    const auto one = [&] { return with_if ? Expression() : Or(); };
    NodePtr first = one();
    if (!IsSign(",")) return first;
    NodePtr tuple = Make(NodeType::kTuple);
    tuple->children.push_back(std::move(first));
    while (TakeSign(",")) {
      if (Now().type == Type::kCloseBlock || Now().type == Type::kCloseOutput || IsSign(")") ||
          IsSign("="))
        break;
      tuple->children.push_back(one());
    }
    return Done(std::move(tuple));
  }

  NodePtr Expression() {
    const Deeper deeper(this);
    NodePtr value = Or();
    while (status_.ok() && TakeName("if")) {
      NodePtr node = Make(NodeType::kIf);
      NodePtr condition = Or();
      NodePtr otherwise = TakeName("else") ? Expression() : nullptr;
      node->children.push_back(std::move(value));
      node->children.push_back(std::move(condition));
      node->children.push_back(std::move(otherwise));
      value = Done(std::move(node));
    }
    return value;
  }

  NodePtr Or() {
    NodePtr left = And();
    while (TakeName("or")) left = With(NodeType::kBinary, "or", std::move(left), And());
    return left;
  }
  NodePtr And() {
    NodePtr left = Not();
    while (TakeName("and")) left = With(NodeType::kBinary, "and", std::move(left), Not());
    return left;
  }
  NodePtr Not() {
    const Deeper deeper(this);
    if (TakeName("not")) return With(NodeType::kUnary, "not", Not());
    return Compare();
  }

  NodePtr Compare() {
    NodePtr first = Sum();
    NodePtr node;
    while (status_.ok()) {
      std::string op;
      static constexpr std::array<absl::string_view, 6> kOperators = {
          "==", "!=", "<=", ">=", "<", ">"};
      for (const absl::string_view sign : kOperators) {
        if (op.empty() && TakeSign(sign)) op = std::string(sign);
      }
      if (op.empty() && TakeName("in")) op = "in";
      if (op.empty() && IsName("not") && Ahead(1).type == Type::kName && Ahead(1).text == "in") {
        Next();
        Next();
        op = "notin";
      }
      if (op.empty()) break;
      if (node == nullptr) {
        node = Make(NodeType::kCompare);
        node->children.push_back(std::move(first));
      }
      node->names.push_back(op);
      node->children.push_back(Sum());
    }
    return node == nullptr ? std::move(first) : Done(std::move(node));
  }

  NodePtr Sum() {
    NodePtr left = Concat();
    while (IsSign("+") || IsSign("-")) {
      const std::string sign = Now().text;
      Next();
      left = With(NodeType::kBinary, sign, std::move(left), Concat());
    }
    return left;
  }
  NodePtr Concat() {
    NodePtr first = Product();
    if (!IsSign("~")) return first;
    NodePtr node = Make(NodeType::kConcat);
    node->children.push_back(std::move(first));
    while (TakeSign("~")) node->children.push_back(Product());
    return Done(std::move(node));
  }
  NodePtr Product() {
    NodePtr left = Power();
    while (IsSign("*") || IsSign("/") || IsSign("//") || IsSign("%")) {
      const std::string sign = Now().text;
      Next();
      left = With(NodeType::kBinary, sign, std::move(left), Power());
    }
    return left;
  }
  NodePtr Power() {
    NodePtr left = Unary(true);
    while (TakeSign("**")) left = With(NodeType::kBinary, "**", std::move(left), Unary(true));
    return left;
  }
  NodePtr Unary(bool with_filter) {
    const Deeper deeper(this);
    NodePtr node;
    if (IsSign("-") || IsSign("+")) {
      const std::string sign = Now().text;
      Next();
      node = With(NodeType::kUnary, sign, Unary(false));
    } else {
      node = Primary();
    }
    node = Postfix(std::move(node));
    return with_filter ? FiltersAndTests(std::move(node)) : std::move(node);
  }

  NodePtr Constant(Value value) {
    NodePtr node = Make(NodeType::kConstant);
    node->value = std::move(value);
    Next();
    return node;
  }

  NodePtr Primary() {
    const Deeper deeper(this);
    switch (Now().type) {
      case Type::kName:
        if (IsOneOf({"true", "True"})) return Constant(Value::Of(true));
        if (IsOneOf({"false", "False"})) return Constant(Value::Of(false));
        if (IsOneOf({"none", "None"})) return Constant(Value::Of(None()));
        {
          NodePtr name = Make(NodeType::kName, Now().text);
          Next();
          return name;
        }
      case Type::kString: {
        std::string text = *Now().value.AsString();
        while (Ahead(1).type == Type::kString) {  // neighbours are one
          Next();
          text += *Now().value.AsString();
        }
        return Constant(Value::Of(std::move(text)));
      }
      case Type::kInt:
      case Type::kFloat:
        return Constant(Now().value);
      default:
        break;
    }
    if (TakeSign("(")) {
      if (TakeSign(")")) return Make(NodeType::kTuple);
      NodePtr inner = TupleOrOne(true);
      ExpectSign(")");
      return inner;
    }
    if (IsSign("[")) return ListLiteral();
    if (IsSign("{")) return DictLiteral();
    Fail(absl::StrCat("expected a value, found ", Seen()));
    return Make(NodeType::kConstant);
  }

  NodePtr ListLiteral() {
    NodePtr list = Make(NodeType::kList);
    Next();
    while (status_.ok() && !TakeSign("]")) {
      if (!list->children.empty()) {
        ExpectSign(",");
        if (TakeSign("]")) break;
      }
      list->children.push_back(Expression());
    }
    return Done(std::move(list));
  }

  NodePtr DictLiteral() {
    NodePtr dict = Make(NodeType::kDict);
    Next();
    while (status_.ok() && !TakeSign("}")) {
      if (!dict->children.empty()) {
        ExpectSign(",");
        if (TakeSign("}")) break;
      }
      dict->children.push_back(Expression());
      ExpectSign(":");
      dict->children.push_back(Expression());
    }
    return Done(std::move(dict));
  }

  NodePtr Postfix(NodePtr node) {
    while (status_.ok()) {
      if (TakeSign(".")) {
        if (Now().type == Type::kInt) {
          NodePtr index = Constant(Now().value);
          node = With(NodeType::kItem, "", std::move(node), std::move(index));
        } else {
          const std::string name = ExpectName();
          node = With(NodeType::kAttribute, name, std::move(node));
        }
      } else if (TakeSign("[")) {
        node = Subscript(std::move(node));
      } else if (IsSign("(")) {
        node = Call(std::move(node));
      } else {
        break;
      }
    }
    return node;
  }

  NodePtr Subscript(NodePtr what) {
    NodePtr parts[3];  // begin, end, step
    int part = 0;
    bool slice = false;
    while (status_.ok() && !IsSign("]")) {
      if (TakeSign(":")) {
        slice = true;
        if (++part > 2) Fail("a slice has three parts at most");
        continue;
      }
      if (parts[part] != nullptr) {
        Fail(absl::StrCat("expected ']', found ", Seen()));
        break;
      }
      parts[part] = Expression();
    }
    ExpectSign("]");
    if (!slice) {
      if (parts[0] == nullptr) Fail("[] without an index");
      return With(NodeType::kItem, "", std::move(what), std::move(parts[0]));
    }
    NodePtr node = Make(NodeType::kSlice);
    node->children.push_back(std::move(what));
    for (NodePtr& value : parts) node->children.push_back(std::move(value));
    return Done(std::move(node));
  }

  // (1, a, *b, c=2, **d)
  void CallArguments(Node* node) {
    ExpectSign("(");
    for (bool first = true; status_.ok() && !TakeSign(")"); first = false) {
      if (!first) {
        ExpectSign(",");
        if (TakeSign(")")) break;
      }
      if (TakeSign("*")) {
        node->spread = Expression();
      } else if (TakeSign("**")) {
        node->spread_named = Expression();
      } else if (Now().type == Type::kName && Ahead(1).type == Type::kSign &&
                 Ahead(1).text == "=") {
        std::string name = ExpectName();
        Next();
        node->named.emplace_back(std::move(name), Expression());
      } else {
        if (!node->named.empty()) Fail("a positional argument behind a named one");
        node->positional.push_back(Expression());
      }
    }
  }

  NodePtr Call(NodePtr what) {
    NodePtr node = Make(NodeType::kCall);
    node->children.push_back(std::move(what));
    CallArguments(node.get());
    return Done(std::move(node));
  }

  NodePtr FiltersAndTests(NodePtr node) {
    while (status_.ok()) {
      if (IsSign("|")) {
        node = FilterChain(std::move(node));
      } else if (IsName("is")) {
        node = Test(std::move(node));
      } else if (IsSign("(")) {
        node = Call(std::move(node));
      } else {
        break;
      }
    }
    return node;
  }

  // `bare`: the first filter stands without its bar, as in {% filter upper %}.
  NodePtr FilterChain(NodePtr node, bool bare = false) {
    while (status_.ok() && (bare || TakeSign("|"))) {
      bare = false;
      NodePtr filter = Make(NodeType::kFilter, ExpectName());
      filter->children.push_back(std::move(node));
      if (IsSign("(")) CallArguments(filter.get());
      node = Done(std::move(filter));
    }
    return node;
  }

  NodePtr Test(NodePtr what) {
    Next();  // is
    const bool negated = TakeName("not");
    NodePtr test = Make(NodeType::kTest, ExpectName());
    test->children.push_back(std::move(what));
    const bool value = Now().type == Type::kString || Now().type == Type::kInt ||
                       Now().type == Type::kFloat || IsSign("[") || IsSign("{") ||
                       (Now().type == Type::kName &&
                        !IsOneOf({"else", "or", "and", "is", "if", "in", "not", "recursive"}));
    if (IsSign("(")) {
      CallArguments(test.get());
    } else if (value) {
      test->positional.push_back(Postfix(Primary()));
    }
    test = Done(std::move(test));
    return negated ? With(NodeType::kUnary, "not", std::move(test)) : std::move(test);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> ParseTemplate(absl::string_view source) {
  absl::StatusOr<std::vector<Token>> tokens = Lex(source);
  if (!tokens.ok()) return tokens.status();
  return Parser(*std::move(tokens)).Run();
}

}  // namespace espalier::chat
