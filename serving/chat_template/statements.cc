// Execution of statements: loops, conditions, assignments, macros.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/chat_template/evaluator.h"

namespace espalier::jinja {

Evaluator::Flow Evaluator::Exec(const Node& node) {
  const DepthGuard deeper(this);
  line_ = node.line;
  if (!Work(1)) return Flow::kNext;
  switch (node.type) {
    case NodeType::kText:
      Output(node.text);
      return Flow::kNext;
    case NodeType::kOutput: {
      const Value value = Eval(*node.children[0]);
      if (const std::string* text = value.AsString()) {
        Output(*text);
      } else if (ok()) {
        Output(StrOf(value));
      }
      return Flow::kNext;
    }
    case NodeType::kBlock:
      return ExecBlock(node);
    case NodeType::kFor:
      return ExecFor(node);
    case NodeType::kCondition:
      return ExecCondition(node);
    case NodeType::kSet:
      Assign(*node.children[0], Eval(*node.children[1]));
      return Flow::kNext;
    case NodeType::kSetBlock: {
      // The body has a scope of its own.
      Scope* const back = scope_;
      Value text = Capture([&] {
        scope_ = Push(back);
        Exec(*node.children[2]);
        Pop(back, node.has_macro);
      });
      if (node.children[1] != nullptr) text = EvalFilter(*node.children[1], &text);
      Assign(*node.children[0], text);
      return Flow::kNext;
    }
    case NodeType::kMacro:
      scope_->names[node.text] = MakeMacro(node);
      return Flow::kNext;
    case NodeType::kCallBlock: {
      const Node& call = *node.children[0];
      const Value function = Eval(*call.children[0]);
      Arguments arguments = EvalArguments(call);
      arguments.named.emplace_back("caller", MakeMacro(*node.children[1]));
      if (ok()) Output(StrOf(Call(function, std::move(arguments))));
      return Flow::kNext;
    }
    case NodeType::kFilterBlock: {
      Scope* const back = scope_;
      const Value text = Capture([&] {
        scope_ = Push(back);
        Exec(*node.children[1]);
        Pop(back, node.has_macro);
      });
      const Value changed = EvalFilter(*node.children[0], &text);
      if (ok()) Output(StrOf(changed));
      return Flow::kNext;
    }
    case NodeType::kWith:
      ExecWith(node);
      return Flow::kNext;
    case NodeType::kBreak:
      return Flow::kBreak;
    case NodeType::kContinue:
      return Flow::kContinue;
    default:
      Fail("no statement");
      return Flow::kNext;
  }
}

Evaluator::Flow Evaluator::ExecBlock(const Node& node) {
  for (const auto& child : node.children) {
    const Flow flow = Exec(*child);
    if (!ok()) return Flow::kNext;
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::ExecCondition(const Node& node) {
  const auto& children = node.children;
  size_t i = 0;
  for (; i + 1 < children.size(); i += 2) {
    const bool holds = Eval(*children[i]).Truth();
    if (!ok()) return Flow::kNext;
    if (holds) return Exec(*children[i + 1]);
  }
  return i < children.size() ? Exec(*children[i]) : Flow::kNext;
}

void Evaluator::ExecWith(const Node& node) {
  Scope* const back = scope_;
  std::vector<Value> values;  // evaluated in the outer scope
  for (size_t i = 2; i < node.children.size(); i += 2) values.push_back(Eval(*node.children[i]));
  scope_ = Push(back);
  for (size_t i = 1; i + 1 < node.children.size(); i += 2) Assign(*node.children[i], values[i / 2]);
  Exec(*node.children[0]);
  Pop(back, node.has_macro);
}

Evaluator::Flow Evaluator::ExecFor(const Node& node) {
  const Value over = Eval(*node.children[1]);
  if (!ok()) return Flow::kNext;
  const std::vector<Value> items = Iterate(over);
  return RunLoop(node, items, 1);
}

Evaluator::Flow Evaluator::RunLoop(const Node& node, const std::vector<Value>& over, int depth) {
  const DepthGuard deeper(this);
  Scope* const back = scope_;
  const Node& target = *node.children[0];
  std::vector<Value> items;
  if (node.children[2] == nullptr) {
    items = over;
  } else {
    for (const Value& item : over) {
      scope_ = Push(back);
      Assign(target, item);
      if (ok() && Eval(*node.children[2]).Truth()) items.push_back(item);
      Pop(back, node.has_macro);
      if (!ok()) return Flow::kNext;
    }
  }
  auto loop = std::make_shared<Loop>();
  loop->items = &items;
  loop->length = items.size();
  loop->depth = depth;
  if (node.flag) {
    // In a recursive loop, loop(x) runs the loop over x in the scope around the loop.
    loop->recurse = Value(std::make_shared<const Function>(
        Function{"loop", [this, &node, back, depth](Evaluator&, Arguments arguments) {
                   if (arguments.positional.size() != 1)
                     return Fail("loop() takes what to run over");
                   const std::vector<Value> more = Iterate(arguments.positional[0]);
                   Scope* const here = scope_;
                   scope_ = back;
                   Value text = Capture([&] { RunLoop(node, more, depth + 1); });
                   scope_ = here;
                   return text;
                 }}));
  }
  for (size_t i = 0; i < items.size() && ok(); ++i) {
    loop->index = i;
    scope_ = Push(back);
    scope_->names["loop"] = Value(loop);
    Assign(target, items[i]);
    const Flow flow = Exec(*node.children[3]);
    Pop(back, node.has_macro);
    if (flow == Flow::kBreak) break;
  }
  loop->items = nullptr;
  loop->recurse = Value();
  loop->last_changed.clear();
  if (items.empty() && node.children[4] != nullptr && ok()) {
    scope_ = Push(back);
    Exec(*node.children[4]);
    Pop(back, node.has_macro);
  }
  return Flow::kNext;
}

void Evaluator::Assign(const Node& target, const Value& value) {
  if (!ok()) return;
  if (target.type == NodeType::kName) {
    scope_->names[target.text] = value;
    return;
  }
  if (target.type == NodeType::kAttribute) {
    const Value* const object = Find(target.children[0]->text);
    Namespace* const fields = object == nullptr ? nullptr : object->AsNamespace();
    if (fields == nullptr) {
      Fail("cannot assign attribute on non-namespace object");
      return;
    }
    fields->fields[target.text] = value;
    return;
  }
  const std::vector<Value> items = Iterate(value);
  if (!ok()) return;
  if (items.size() != target.children.size()) {
    Fail(absl::StrCat(items.size(), " values for ", target.children.size(), " names"));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.children[i], items[i]);
}

Value Evaluator::MakeMacro(const Node& node) {
  Scope* const scope = scope_;
  return Value(std::make_shared<const Function>(
      Function{node.text, [this, &node, scope](Evaluator&, Arguments arguments) {
                 return CallMacro(node, scope, std::move(arguments));
               }}));
}

Value Evaluator::CallMacro(const Node& node, Scope* scope, Arguments arguments) {
  Scope* const back = scope_;
  Scope* const own = Push(scope);
  std::vector<Value> varargs;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < node.names.size()) {
      own->names[node.names[i]] = arguments.positional[i];
    } else {
      varargs.push_back(arguments.positional[i]);
    }
  }
  Dict kwargs;
  for (auto& [name, value] : arguments.named) {
    const bool parameter =
        std::find(node.names.begin(), node.names.end(), name) != node.names.end();
    if (parameter || name == "caller") {
      if (!own->names.emplace(name, value).second) {
        Fail(absl::StrCat("macro '", node.text, "' got argument '", name, "' twice"));
      }
    } else {
      kwargs.Set(Value::Of(name), std::move(value));
    }
  }
  own->names["varargs"] = Value::Of(std::move(varargs), ListKind::kTuple);
  own->names["kwargs"] = Value::Of(std::move(kwargs));
  scope_ = own;
  const size_t first_default = node.names.size() - (node.children.size() - 1);
  for (size_t i = 0; i < node.names.size() && ok(); ++i) {
    if (own->names.contains(node.names[i])) continue;
    Value value = i < first_default
                      ? Value::Undefined_(absl::StrCat("parameter '", node.names[i], "'"))
                      : Eval(*node.children[1 + i - first_default]);
    own->names[node.names[i]] = std::move(value);
  }
  Value text = Capture([&] {
    if (ok()) Exec(*node.children[0]);
  });
  // A macro inside may outlive the block; release only blocks without one.
  const bool inner = node.children[0]->has_macro;
  Pop(back, inner);
  return text;
}

}  // namespace espalier::jinja
