// Jinja2's tests, the right side of `is`.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/chat_template/evaluator.h"
#include "serving/chat_template/python_string.h"

namespace espalier::jinja {
namespace {

using Is = bool (*)(Evaluator&, const Value&, const Value& argument);

bool HasItems(const Value& value) {
  return value.AsString() != nullptr || value.AsDict() != nullptr || value.AsList() != nullptr;
}

// The remainder, for odd, even and divisibleby.
double Remainder(Evaluator& e, const Value& value, const Value& by) {
  if (value.IsNumber() && by.IsNumber()) {
    const Value rest = e.Binary("%", value, by);
    return rest.IsNumber() ? rest.Number() : -1;
  }
  if (value.IsUndefined()) {
    e.FailUndefined(value);
  } else {
    e.Fail(absl::StrCat("a ", value.TypeName(), " where a number belongs"));
  }
  return 1;
}

bool SameObject(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (a.AsList() != nullptr) return a.AsList() == b.AsList();
  if (a.AsDict() != nullptr) return a.AsDict() == b.AsDict();
  return Equal(a, b);
}

template <char kOperator, bool kOrEqual>
bool Order(Evaluator& e, const Value& a, const Value& b) {
  const char op[] = {kOperator, kOrEqual ? '=' : '\0', '\0'};
  return e.Compare(op, a, b).Truth();
}

bool EqualTo(Evaluator& e, const Value& a, const Value& b) { return e.Compare("==", a, b).Truth(); }
bool NotEqualTo(Evaluator& e, const Value& a, const Value& b) {
  return e.Compare("!=", a, b).Truth();
}

const std::map<std::string, Is>& Tests() {
  using E = Evaluator&;
  using V = const Value&;
  static const auto* const tests = new std::map<std::string, Is>{
      {"defined", [](E, V v, V) { return !v.IsUndefined(); }},
      {"undefined", [](E, V v, V) { return v.IsUndefined(); }},
      {"none", [](E, V v, V) { return v.IsNone(); }},
      {"boolean", [](E, V v, V) { return v.IsBool(); }},
      {"true", [](E, V v, V) { return v.IsBool() && v.Truth(); }},
      {"false", [](E, V v, V) { return v.IsBool() && !v.Truth(); }},
      {"integer", [](E, V v, V) { return v.IsInt(); }},
      {"float", [](E, V v, V) { return v.IsFloat(); }},
      {"number", [](E, V v, V) { return v.IsNumber(); }},
      {"string", [](E, V v, V) { return v.AsString() != nullptr; }},
      {"mapping", [](E, V v, V) { return v.AsDict() != nullptr; }},
      {"sequence",
       [](E, V v, V) {
         const List* const list = v.AsList();
         return v.IsUndefined() || v.AsString() != nullptr || v.AsDict() != nullptr ||
                (list != nullptr && list->kind != ListKind::kGenerator &&
                 list->kind != ListKind::kView);
       }},
      {"iterable", [](E, V v, V) { return v.IsUndefined() || HasItems(v); }},
      {"callable", [](E, V v, V) { return v.AsFunction() != nullptr || v.IsUndefined(); }},
      {"sameas", [](E, V v, V other) { return SameObject(v, other); }},
      {"odd", [](E e, V v, V) { return Remainder(e, v, Value::Of(int64_t{2})) == 1; }},
      {"even", [](E e, V v, V) { return Remainder(e, v, Value::Of(int64_t{2})) == 0; }},
      {"divisibleby", [](E e, V v, V by) { return Remainder(e, v, by) == 0; }},
      {"lower",
       [](E e, V v, V) {
         const std::string text = e.StrOf(v);
         return text == Lower(text) && text != Upper(text);
       }},
      {"upper",
       [](E e, V v, V) {
         const std::string text = e.StrOf(v);
         return text == Upper(text) && text != Lower(text);
       }},
      {"in", [](E e, V v, V container) { return e.Contains(container, v); }},
      {"equalto", EqualTo},
      {"eq", EqualTo},
      {"==", EqualTo},
      {"ne", NotEqualTo},
      {"!=", NotEqualTo},
      {"lt", Order<'<', false>},
      {"lessthan", Order<'<', false>},
      {"<", Order<'<', false>},
      {"le", Order<'<', true>},
      {"<=", Order<'<', true>},
      {"gt", Order<'>', false>},
      {"greaterthan", Order<'>', false>},
      {">", Order<'>', false>},
      {"ge", Order<'>', true>},
      {">=", Order<'>', true>},
  };
  return *tests;
}

}  // namespace

bool Evaluator::Test(const std::string& name, const Arguments& arguments) {
  const auto found = Tests().find(name);
  if (found == Tests().end()) {
    Fail(absl::StrCat("the test ", name, " is not known here"));
    return false;
  }
  if (!Work(1)) return false;
  const auto& positional = arguments.positional;
  if (positional.size() > 2 || !arguments.named.empty()) {
    Fail(absl::StrCat("the test ", name, " takes one argument at most"));
    return false;
  }
  return found->second(*this, positional[0], positional.size() > 1 ? positional[1] : Value()) &&
         ok();
}

}  // namespace espalier::jinja
