// Global functions of every template.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "serving/chat_template/evaluator.h"

namespace espalier::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja2's sandbox

Value Range(Evaluator& e, Arguments arguments) {
  BoundArguments read(e, "range", std::move(arguments), {"start", "stop", "step"});
  const int64_t first = read.Int(0, 0), second = read.Int(1, 0), step = read.Int(2, 1);
  if (!e.ok()) return Value();
  if (!read.Has(0)) return e.Fail("range expected at least 1 argument, got 0");
  if (step == 0) return e.Fail("range() arg 3 must not be zero");
  const int64_t begin = read.Has(1) ? first : 0, end = read.Has(1) ? second : first;
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return e.Fail(
          absl::StrCat("Range too big. The sandbox blocks ranges larger than ", kMaxRange, "."));
    }
    items.push_back(Value::Of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return e.Items(std::move(items));
}

// Arguments of namespace() and dict(): mappings and named arguments.
Dict Fields(Evaluator& e, Arguments arguments) {
  Dict fields;
  for (const Value& positional : arguments.positional) {
    const Dict* const dict = positional.AsDict();
    if (dict == nullptr) {
      e.Fail(absl::StrCat("a mapping is expected, not a ", positional.TypeName()));
      return fields;
    }
    for (const auto& [key, value] : dict->items) fields.Set(key, value);
  }
  for (auto& [name, value] : arguments.named) fields.Set(Value::Of(name), std::move(value));
  e.Work(static_cast<int64_t>(fields.items.size()));
  return fields;
}

Value MakeNamespace(Evaluator& e, Arguments arguments) {
  std::map<std::string, Value> fields;
  for (auto& [key, value] : Fields(e, std::move(arguments)).items) {
    if (key.AsString() != nullptr) fields.emplace(*key.AsString(), std::move(value));
  }
  return e.NewNamespace(std::move(fields));
}

Value RaiseException(Evaluator& e, Arguments arguments) {
  BoundArguments read(e, "raise_exception", std::move(arguments), {"message"});
  return e.Fail(e.StrOf(read[0]));
}

Value StrftimeNow(Evaluator& e, Arguments arguments) {
  BoundArguments read(e, "strftime_now", std::move(arguments), {"format"});
  const std::string format = read.String(0, "");
  if (!e.ok()) return Value();
  // A field width would produce texts of any size.
  for (size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    const size_t letter = format.compare(at + 1, 1, "-") == 0 ? at + 2 : at + 1;
    if (letter >= format.size() ||
        !(absl::ascii_isalpha(static_cast<unsigned char>(format[letter])) ||
          format[letter] == '%')) {
      return e.Fail(
          absl::StrCat("strftime_now: the format ", format.substr(0, 80), " is not known here"));
    }
  }
  if (e.options().strftime_now == nullptr) return e.Fail("strftime_now: there is no clock here");
  return e.Text(e.options().strftime_now(format));
}

}  // namespace

void Evaluator::AddGlobals(Scope* scope) {
  const auto add = [scope](const char* name, Value (*call)(Evaluator&, Arguments)) {
    scope->names[name] = Value(std::make_shared<const Function>(Function{name, call}));
  };
  add("range", Range);
  add("namespace", MakeNamespace);
  add("dict",
      [](Evaluator& e, Arguments arguments) { return e.Mapping(Fields(e, std::move(arguments))); });
  add("raise_exception", RaiseException);
  add("strftime_now", StrftimeNow);
}

}  // namespace espalier::jinja
