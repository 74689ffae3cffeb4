#include "serving/chat_template/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/chat_template/python_string.h"

namespace espalier::jinja {
namespace {

// Nesting of lists.
constexpr int kMaxValueDepth = 100;

}  // namespace

// Breaks cycles and long chains of namespaces.
Evaluator::~Evaluator() {
  for (const auto& fields : namespaces_) fields->fields.clear();
}

absl::Status Evaluator::Render(const Node& root, Dict variables) {
  scope_ = Push(nullptr);
  AddGlobals(scope_);
  // Variables hide globals, and assignments of the template hide both.
  scope_ = Push(scope_);
  for (auto& [name, value] : variables.items) scope_->names[*name.AsString()] = std::move(value);
  scope_ = Push(scope_);
  Exec(root);
  return status_;
}

Value Evaluator::Fail(absl::string_view what) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("chat template, line ", line_, ": ", what));
  }
  return Value();
}

Value Evaluator::FailUndefined(const Value& value) {
  const auto* undefined = std::get_if<Undefined>(&value.data());
  if (undefined == nullptr || undefined->what == nullptr) return Fail("a value is undefined");
  return Fail(absl::StrCat(*undefined->what, " is undefined"));
}

bool Evaluator::Work(int64_t steps, size_t bytes) {
  steps_ += steps;
  bytes_ += bytes;
  if (status_.ok() && (steps_ > options_.max_steps || bytes_ > options_.max_work_bytes)) {
    status_ = absl::ResourceExhaustedError(absl::StrCat(
        "chat template, line ", line_, ": ",
        steps_ > options_.max_steps
            ? absl::StrCat("more than ", options_.max_steps, " steps")
            : absl::StrCat("more than ", options_.max_work_bytes, " bytes of values")));
  }
  return status_.ok();
}

bool Evaluator::WorkOn(const Value& value) {
  const int64_t weight = value.Weight();
  return Work(weight / 32, static_cast<size_t>(weight));
}

std::string Evaluator::StrOf(const Value& value) { return WorkOn(value) ? Str(value) : ""; }

Value Evaluator::Text(std::string text) {
  if (!Work(static_cast<int64_t>(text.size() / 64), text.size())) return Value();
  return Value::Of(std::move(text));
}

Value Evaluator::Items(std::vector<Value> items, ListKind kind) {
  if (!Work(static_cast<int64_t>(items.size()), items.size() * sizeof(Value))) return Value();
  Value value = Value::Of(std::move(items), kind);
  return value.Depth() > kMaxValueDepth ? Fail("values nested too deep") : value;
}

Value Evaluator::Mapping(Dict dict) {
  if (!Work(static_cast<int64_t>(dict.items.size()), dict.items.size() * 3 * sizeof(Value)))
    return Value();
  Value value = Value::Of(std::move(dict));
  return value.Depth() > kMaxValueDepth ? Fail("values nested too deep") : value;
}

Value Evaluator::NewNamespace(std::map<std::string, Value> fields) {
  if (!Work(1, sizeof(Namespace))) return Value();
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(fields)}));
  return Value(namespaces_.back());
}

const Value* Evaluator::Find(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return &found->second;
  }
  return nullptr;
}

Scope* Evaluator::Push(Scope* parent) {
  scopes_.push_back(std::make_unique<Scope>());
  scopes_.back()->parent = parent;
  return scopes_.back().get();
}

void Evaluator::Pop(Scope* back, bool keep) {
  // Later scopes that hold macros lie above this one; then it stays, too.
  if (!keep && scopes_.back().get() == scope_) scopes_.pop_back();
  scope_ = back;
}

void Evaluator::Output(absl::string_view text) {
  if (!Work(1, text.size())) return;
  output_bytes_ += text.size();
  if (output_bytes_ > options_.max_output_bytes) {
    status_ = absl::ResourceExhaustedError(absl::StrCat("chat template, line ", line_,
                                                        ": puts out more than ",
                                                        options_.max_output_bytes, " bytes"));
    return;
  }
  out_->append(text.data(), text.size());
}

Value Evaluator::Capture(const std::function<void()>& body) {
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  const size_t put_out = output_bytes_;
  body();
  out_ = out;
  output_bytes_ = put_out;  // charged when it is printed
  return Text(std::move(text));
}

Value Evaluator::EvalMaybe(const std::unique_ptr<Node>& node) {
  return node == nullptr ? Value::Of(None()) : Eval(*node);
}

Value Evaluator::Eval(const Node& node) {
  const DepthGuard deeper(this);
  line_ = node.line;
  if (!Work(1)) return Value();
  const auto& children = node.children;
  switch (node.type) {
    case NodeType::kConstant:
      return node.value;
    case NodeType::kName: {
      const Value* const value = Find(node.text);
      return value != nullptr ? *value : Value::Undefined_(absl::StrCat("'", node.text, "'"));
    }
    case NodeType::kList:
    case NodeType::kTuple: {
      std::vector<Value> items;
      for (const auto& child : children) items.push_back(Eval(*child));
      return Items(std::move(items),
                   node.type == NodeType::kList ? ListKind::kList : ListKind::kTuple);
    }
    case NodeType::kDict: {
      Dict dict;
      for (size_t i = 0; i + 1 < children.size(); i += 2) {
        Value key = Eval(*children[i]);
        if (key.AsDict() != nullptr ||
            (key.AsList() != nullptr && key.AsList()->kind == ListKind::kList)) {
          return Fail(absl::StrCat("unhashable type: '", key.TypeName(), "'"));
        }
        Work(static_cast<int64_t>(dict.items.size() - dict.strings.size()));
        dict.Set(std::move(key), Eval(*children[i + 1]));
      }
      return Mapping(std::move(dict));
    }
    case NodeType::kUnary: {
      const Value value = Eval(*children[0]);
      if (node.text == "not") return Value::Of(!value.Truth());
      if (value.IsUndefined()) return FailUndefined(value);
      if (!value.IsNumber())
        return Fail(
            absl::StrCat("bad operand type for unary ", node.text, ": '", value.TypeName(), "'"));
      if (value.IsFloat()) return Value::Of(node.text == "-" ? -value.Number() : value.Number());
      if (node.text == "+") return Value::Of(value.Int());
      return Binary("-", Value::Of(int64_t{0}), value);
    }
    case NodeType::kBinary: {
      Value left = Eval(*children[0]);
      if (node.text == "and") return left.Truth() ? Eval(*children[1]) : left;
      if (node.text == "or") return left.Truth() ? left : Eval(*children[1]);
      const Value right = Eval(*children[1]);
      line_ = node.line;
      return ok() ? Binary(node.text, left, right) : Value();
    }
    case NodeType::kConcat: {
      std::string text;
      for (const auto& child : children) text += StrOf(Eval(*child));
      return Text(std::move(text));
    }
    case NodeType::kCompare:
      return EvalCompare(node);
    case NodeType::kIf: {
      if (Eval(*children[1]).Truth()) return Eval(*children[0]);
      if (children[2] != nullptr) return Eval(*children[2]);
      return Value::Undefined_("the value of an if without else");
    }
    case NodeType::kAttribute: {
      const Value object = Eval(*children[0]);
      return ok() ? Attribute(object, node.text) : Value();
    }
    case NodeType::kItem: {
      const Value object = Eval(*children[0]);
      const Value key = Eval(*children[1]);
      return ok() ? Item(object, key) : Value();
    }
    case NodeType::kSlice: {
      const Value object = Eval(*children[0]);
      const Value begin = EvalMaybe(children[1]), end = EvalMaybe(children[2]),
                  step = EvalMaybe(children[3]);
      return ok() ? Slice(object, begin, end, step) : Value();
    }
    case NodeType::kCall: {
      const Value function = Eval(*children[0]);
      Arguments arguments = EvalArguments(node);
      line_ = node.line;
      return ok() ? Call(function, std::move(arguments)) : Value();
    }
    case NodeType::kFilter:
      return EvalFilter(node, nullptr);
    case NodeType::kTest:
      return EvalTest(node);
    default:
      return Fail("no expression");
  }
}

Value Evaluator::EvalCompare(const Node& node) {
  Value left = Eval(*node.children[0]);
  Value result = Value::Of(true);
  for (size_t i = 0; i < node.names.size() && ok(); ++i) {
    const Value right = Eval(*node.children[i + 1]);
    line_ = node.line;
    if (!ok()) return Value();
    result = Compare(node.names[i], left, right);
    if (!result.Truth()) return result;
    left = right;
  }
  return result;
}

Value Evaluator::EvalTest(const Node& node) {
  Arguments arguments = EvalArguments(node);
  Value value = Eval(*node.children[0]);
  line_ = node.line;
  if (!ok()) return Value();
  arguments.positional.insert(arguments.positional.begin(), std::move(value));
  return Value::Of(Test(node.text, arguments));
}

Value Evaluator::EvalFilter(const Node& node, const Value* block) {
  const DepthGuard deeper(this);
  Value value;
  if (node.children[0] == nullptr) {
    value = block == nullptr ? Value() : *block;
  } else if (block != nullptr) {
    value = EvalFilter(*node.children[0], block);  // the chain ends at the block
  } else {
    value = Eval(*node.children[0]);
  }
  Arguments arguments = EvalArguments(node);
  line_ = node.line;
  if (!ok()) return Value();
  arguments.positional.insert(arguments.positional.begin(), std::move(value));
  return Filter(node.text, std::move(arguments));
}

Arguments Evaluator::EvalArguments(const Node& node) {
  Arguments arguments;
  for (const auto& child : node.positional) arguments.positional.push_back(Eval(*child));
  for (const auto& [name, child] : node.named) arguments.named.emplace_back(name, Eval(*child));
  if (node.spread != nullptr) {
    for (Value& value : Iterate(Eval(*node.spread)))
      arguments.positional.push_back(std::move(value));
  }
  if (node.spread_named != nullptr) {
    const Value named = Eval(*node.spread_named);
    const Dict* const dict = named.AsDict();
    if (dict == nullptr) {
      Fail("** of what is no mapping");
      return arguments;
    }
    for (const auto& [key, value] : dict->items) arguments.named.emplace_back(Str(key), value);
  }
  return arguments;
}

Value Evaluator::Call(const Value& callee, Arguments arguments) {
  const DepthGuard deeper(this);
  if (!Work(1)) return Value();
  if (callee.IsUndefined()) return FailUndefined(callee);
  if (const std::shared_ptr<Loop> loop = callee.AsLoop();
      loop != nullptr && !loop->recurse.IsUndefined()) {
    return Call(loop->recurse, std::move(arguments));
  }
  const Function* const function = callee.AsFunction();
  if (function == nullptr)
    return Fail(absl::StrCat("'", callee.TypeName(), "' object is not callable"));
  const Value keep = callee;  // the variable may be reassigned during the call
  return function->call(*this, std::move(arguments));
}

std::vector<Value> Evaluator::Iterate(const Value& value) {
  std::vector<Value> items;
  if (value.IsUndefined()) return items;
  if (const List* list = value.AsList()) {
    if (list->kind == ListKind::kGenerator && std::exchange(list->consumed, true)) return items;
    items = list->items;
  } else if (const Dict* dict = value.AsDict()) {
    for (const auto& [key, unused] : dict->items) items.push_back(key);
  } else if (const std::string* text = value.AsString()) {
    // Charge first: each character becomes a string of its own.
    if (!Work(0, static_cast<size_t>(Length(*text)) * 64)) return items;
    for (size_t at = 0; at < text->size();) {
      const size_t begin = at;
      do ++at;
      while (at < text->size() && ((*text)[at] & 0xC0) == 0x80);
      items.push_back(Value::Of(text->substr(begin, at - begin)));
    }
  } else {
    Fail(absl::StrCat("'", value.TypeName(), "' object is not iterable"));
  }
  Work(static_cast<int64_t>(items.size()), items.size() * sizeof(Value));
  return items;
}

BoundArguments::BoundArguments(Evaluator& evaluator, std::string function, Arguments arguments,
                               std::vector<std::string> names)
    : evaluator_(evaluator),
      function_(std::move(function)),
      values_(names.size()),
      given_(names.size(), false) {
  if (arguments.positional.size() > names.size()) {
    evaluator_.Fail(absl::StrCat(function_, " takes ", names.size(), " arguments, got ",
                                 arguments.positional.size()));
    return;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = std::move(arguments.positional[i]);
    given_[i] = true;
  }
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || given_[static_cast<size_t>(found - names.begin())]) {
      evaluator_.Fail(absl::StrCat(function_, " got an unexpected argument '", name, "'"));
      return;
    }
    values_[static_cast<size_t>(found - names.begin())] = std::move(value);
    given_[static_cast<size_t>(found - names.begin())] = true;
  }
}

int64_t BoundArguments::Int(size_t i, int64_t fallback) {
  if (!Has(i)) return fallback;
  if (values_[i].IsInt() || values_[i].IsBool()) return values_[i].Int();
  evaluator_.Fail(
      absl::StrCat(function_, ": a ", values_[i].TypeName(), " where an integer belongs"));
  return fallback;
}

std::string BoundArguments::String(size_t i, absl::string_view fallback) {
  if (!Has(i)) return std::string(fallback);
  if (const std::string* text = values_[i].AsString()) return *text;
  evaluator_.Fail(
      absl::StrCat(function_, ": a ", values_[i].TypeName(), " where a string belongs"));
  return "";
}

}  // namespace espalier::jinja
