#include "serving/chat_template/expression_parser.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace espalier::jinja {

NodePtr ExpressionParser::TupleOrOne(bool with_if) {
  const DepthGuard deeper(this);
  const auto one = [&] { return with_if ? Expression() : Or(); };
  NodePtr first = one();
  if (!IsSign(",")) return first;
  NodePtr tuple = Make(NodeType::kTuple);
  tuple->children.push_back(std::move(first));
  while (TakeSign(",")) {
    if (Current().type == Type::kCloseBlock || Current().type == Type::kCloseOutput ||
        IsSign(")") || IsSign("="))
      break;
    tuple->children.push_back(one());
  }
  return Done(std::move(tuple));
}

NodePtr ExpressionParser::Expression() {
  const DepthGuard deeper(this);
  NodePtr value = Or();
  while (ok() && TakeName("if")) {
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

NodePtr ExpressionParser::Or() {
  NodePtr left = And();
  while (TakeName("or")) left = With(NodeType::kBinary, "or", std::move(left), And());
  return left;
}

NodePtr ExpressionParser::And() {
  NodePtr left = Not();
  while (TakeName("and")) left = With(NodeType::kBinary, "and", std::move(left), Not());
  return left;
}

NodePtr ExpressionParser::Not() {
  const DepthGuard deeper(this);
  if (TakeName("not")) return With(NodeType::kUnary, "not", Not());
  return Compare();
}

NodePtr ExpressionParser::Compare() {
  NodePtr first = Sum();
  NodePtr node;
  while (ok()) {
    std::string op;
    static constexpr std::array<absl::string_view, 6> kOperators = {
        "==", "!=", "<=", ">=", "<", ">"};
    for (const absl::string_view sign : kOperators) {
      if (op.empty() && TakeSign(sign)) op = std::string(sign);
    }
    if (op.empty() && TakeName("in")) op = "in";
    if (op.empty() && IsName("not") && Peek(1).type == Type::kName && Peek(1).text == "in") {
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

NodePtr ExpressionParser::Sum() {
  NodePtr left = Concat();
  while (IsSign("+") || IsSign("-")) {
    const std::string sign = Current().text;
    Next();
    left = With(NodeType::kBinary, sign, std::move(left), Concat());
  }
  return left;
}

NodePtr ExpressionParser::Concat() {
  NodePtr first = Product();
  if (!IsSign("~")) return first;
  NodePtr node = Make(NodeType::kConcat);
  node->children.push_back(std::move(first));
  while (TakeSign("~")) node->children.push_back(Product());
  return Done(std::move(node));
}

NodePtr ExpressionParser::Product() {
  NodePtr left = Power();
  while (IsSign("*") || IsSign("/") || IsSign("//") || IsSign("%")) {
    const std::string sign = Current().text;
    Next();
    left = With(NodeType::kBinary, sign, std::move(left), Power());
  }
  return left;
}

NodePtr ExpressionParser::Power() {
  NodePtr left = Unary(true);
  while (TakeSign("**")) left = With(NodeType::kBinary, "**", std::move(left), Unary(true));
  return left;
}

NodePtr ExpressionParser::Unary(bool with_filter) {
  const DepthGuard deeper(this);
  NodePtr node;
  if (IsSign("-") || IsSign("+")) {
    const std::string sign = Current().text;
    Next();
    node = With(NodeType::kUnary, sign, Unary(false));
  } else {
    node = Primary();
  }
  node = Postfix(std::move(node));
  return with_filter ? FiltersAndTests(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::Constant(Value value) {
  NodePtr node = Make(NodeType::kConstant);
  node->value = std::move(value);
  Next();
  return node;
}

NodePtr ExpressionParser::Primary() {
  const DepthGuard deeper(this);
  switch (Current().type) {
    case Type::kName:
      if (IsOneOf({"true", "True"})) return Constant(Value::Of(true));
      if (IsOneOf({"false", "False"})) return Constant(Value::Of(false));
      if (IsOneOf({"none", "None"})) return Constant(Value::Of(None()));
      {
        NodePtr name = Make(NodeType::kName, Current().text);
        Next();
        return name;
      }
    case Type::kString: {
      std::string text = *Current().value.AsString();
      while (Peek(1).type == Type::kString) {  // adjacent literals are concatenated
        Next();
        text += *Current().value.AsString();
      }
      return Constant(Value::Of(std::move(text)));
    }
    case Type::kInt:
    case Type::kFloat:
      return Constant(Current().value);
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
  Fail(absl::StrCat("expected a value, found ", DescribeCurrent()));
  return Make(NodeType::kConstant);
}

NodePtr ExpressionParser::ListLiteral() {
  NodePtr list = Make(NodeType::kList);
  Next();
  while (ok() && !TakeSign("]")) {
    if (!list->children.empty()) {
      ExpectSign(",");
      if (TakeSign("]")) break;
    }
    list->children.push_back(Expression());
  }
  return Done(std::move(list));
}

NodePtr ExpressionParser::DictLiteral() {
  NodePtr dict = Make(NodeType::kDict);
  Next();
  while (ok() && !TakeSign("}")) {
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

NodePtr ExpressionParser::Postfix(NodePtr node) {
  while (ok()) {
    if (TakeSign(".")) {
      if (Current().type == Type::kInt) {
        NodePtr index = Constant(Current().value);
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

NodePtr ExpressionParser::Subscript(NodePtr what) {
  NodePtr parts[3];  // begin, end, step
  int part = 0;
  bool slice = false;
  while (ok() && !IsSign("]")) {
    if (TakeSign(":")) {
      slice = true;
      if (++part > 2) Fail("a slice has three parts at most");
      continue;
    }
    if (parts[part] != nullptr) {
      Fail(absl::StrCat("expected ']', found ", DescribeCurrent()));
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

void ExpressionParser::CallArguments(Node* node) {
  ExpectSign("(");
  for (bool first = true; ok() && !TakeSign(")"); first = false) {
    if (!first) {
      ExpectSign(",");
      if (TakeSign(")")) break;
    }
    if (TakeSign("*")) {
      node->spread = Expression();
    } else if (TakeSign("**")) {
      node->spread_named = Expression();
    } else if (Current().type == Type::kName && Peek(1).type == Type::kSign &&
               Peek(1).text == "=") {
      std::string name = ExpectName();
      Next();
      node->named.emplace_back(std::move(name), Expression());
    } else {
      if (!node->named.empty()) Fail("a positional argument behind a named one");
      node->positional.push_back(Expression());
    }
  }
}

NodePtr ExpressionParser::Call(NodePtr what) {
  NodePtr node = Make(NodeType::kCall);
  node->children.push_back(std::move(what));
  CallArguments(node.get());
  return Done(std::move(node));
}

NodePtr ExpressionParser::FiltersAndTests(NodePtr node) {
  while (ok()) {
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

NodePtr ExpressionParser::FilterChain(NodePtr node, bool bare) {
  while (ok() && (bare || TakeSign("|"))) {
    bare = false;
    NodePtr filter = Make(NodeType::kFilter, ExpectName());
    filter->children.push_back(std::move(node));
    if (IsSign("(")) CallArguments(filter.get());
    node = Done(std::move(filter));
  }
  return node;
}

NodePtr ExpressionParser::Test(NodePtr what) {
  Next();  // is
  const bool negated = TakeName("not");
  NodePtr test = Make(NodeType::kTest, ExpectName());
  test->children.push_back(std::move(what));
  const bool value = Current().type == Type::kString || Current().type == Type::kInt ||
                     Current().type == Type::kFloat || IsSign("[") || IsSign("{") ||
                     (Current().type == Type::kName &&
                      !IsOneOf({"else", "or", "and", "is", "if", "in", "not", "recursive"}));
  if (IsSign("(")) {
    CallArguments(test.get());
  } else if (value) {
    test->positional.push_back(Postfix(Primary()));
  }
  test = Done(std::move(test));
  return negated ? With(NodeType::kUnary, "not", std::move(test)) : std::move(test);
}

}  // namespace espalier::jinja
