// Operators, attributes, items and slices.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "serving/chat_template/evaluator.h"
#include "serving/chat_template/python_string.h"

namespace espalier::jinja {
namespace {

Value Overflow(Evaluator& evaluator) { return evaluator.Fail("an integer beyond 64 bits"); }

Value IntegerPower(Evaluator& evaluator, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return evaluator.Fail("0.0 cannot be raised to a negative power");
    return Value::Of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result))
      return Overflow(evaluator);
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return Overflow(evaluator);
  }
  return Value::Of(result);
}

Value Integers(Evaluator& evaluator, absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &result) ? Overflow(evaluator) : Value::Of(result);
  if (op == "-")
    return __builtin_sub_overflow(a, b, &result) ? Overflow(evaluator) : Value::Of(result);
  if (op == "*")
    return __builtin_mul_overflow(a, b, &result) ? Overflow(evaluator) : Value::Of(result);
  if (op == "**") return IntegerPower(evaluator, a, b);
  if (b == 0) return evaluator.Fail("division by zero");
  if (op == "/") return Value::Of(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Value::Of(int64_t{0}) : Integers(evaluator, "-", 0, a);
  // Python rounds towards negative infinity.
  const bool down = a % b != 0 && (a < 0) != (b < 0);
  if (op == "//") return Value::Of(a / b - (down ? 1 : 0));
  return Value::Of(a % b + (down ? b : 0));
}

Value Floats(Evaluator& evaluator, absl::string_view op, double a, double b) {
  if (op == "+") return Value::Of(a + b);
  if (op == "-") return Value::Of(a - b);
  if (op == "*") return Value::Of(a * b);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (!std::isfinite(power) && std::isfinite(a) && std::isfinite(b))
      return evaluator.Fail("a power out of range");
    return Value::Of(power);
  }
  if (b == 0) return evaluator.Fail("float division by zero");
  if (op == "/") return Value::Of(a / b);
  // Python derives the quotient from the exact remainder.
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  }
  if (op == "%") return Value::Of(rest);
  const double floor = std::floor(quotient);
  return Value::Of(quotient - floor > 0.5 ? floor + 1 : floor);
}

Value Repeat(Evaluator& evaluator, const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* text = what.AsString()) {
    const auto size = static_cast<int64_t>(text->size());
    times = size == 0 ? 0 : std::min(times, (int64_t{1} << 40) / size);
    if (!evaluator.Work(times / 64, static_cast<size_t>(times * size))) return Value();
    std::string out;
    out.reserve(static_cast<size_t>(times * size));
    for (int64_t i = 0; i < times; ++i) out += *text;
    return Value::Of(std::move(out));
  }
  const List* const list = what.AsList();
  const auto size = static_cast<int64_t>(list->items.size());
  times = size == 0 ? 0 : std::min(times, (int64_t{1} << 40) / size);
  if (!evaluator.Work(times * size)) return Value();
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i)
    items.insert(items.end(), list->items.begin(), list->items.end());
  return evaluator.Items(std::move(items), list->kind);
}

// "%s of %d" % values, for s, r, d, i, f, x and %.
Value FormatPercent(Evaluator& evaluator, const std::string& format, const Value& values) {
  std::vector<Value> arguments = {values};
  if (const List* list = values.AsList(); list != nullptr && list->kind == ListKind::kTuple)
    arguments = list->items;
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out.push_back(format[at]);
      continue;
    }
    if (++at >= format.size()) return evaluator.Fail("incomplete format");
    if (format[at] == '%') {
      out.push_back('%');
      continue;
    }
    int precision = -1;
    if (format[at] == '.') {
      precision = 0;
      while (++at < format.size() && format[at] >= '0' && format[at] <= '9' && precision < 100) {
        precision = precision * 10 + (format[at] - '0');
      }
    }
    if (at >= format.size() || next >= arguments.size())
      return evaluator.Fail("not enough arguments for format string");
    const Value& value = arguments[next++];
    switch (format[at]) {
      case 's':
        out += evaluator.StrOf(value);
        break;
      case 'r':
        if (evaluator.WorkOn(value)) AppendRepr(value, &out);
        break;
      case 'd':
      case 'i':
        if (!value.IsNumber()) return evaluator.Fail("%d format: a number is required");
        absl::StrAppend(&out, value.IsFloat()
                                  ? static_cast<int64_t>(std::clamp(value.Number(), -9e18, 9e18))
                                  : value.Int());
        break;
      case 'x':
        if (!value.IsInt()) return evaluator.Fail("%x format: an integer is required");
        absl::StrAppendFormat(&out, "%x", value.Int());
        break;
      case 'f':
        if (!value.IsNumber()) return evaluator.Fail("%f format: a number is required");
        absl::StrAppendFormat(&out, "%.*f", precision < 0 ? 6 : std::min(precision, 100),
                              value.Number());
        break;
      default:
        return evaluator.Fail(absl::StrCat("format %", format.substr(at, 1), " is not known here"));
    }
  }
  const List* const list = values.AsList();
  const bool named =
      values.AsDict() != nullptr || (list != nullptr && list->kind == ListKind::kList);
  if (next < arguments.size() && !named) {
    return evaluator.Fail("not all arguments converted during string formatting");
  }
  return evaluator.Text(std::move(out));
}

}  // namespace

Value Evaluator::Binary(absl::string_view op, const Value& a, const Value& b) {
  if (a.IsUndefined()) return FailUndefined(a);
  if (b.IsUndefined()) return FailUndefined(b);
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return Floats(*this, op, a.Number(), b.Number());
    return Integers(*this, op, a.Int(), b.Int());
  }
  const std::string* const text = a.AsString();
  const List* const list = a.AsList();
  if (op == "+" && text != nullptr && b.AsString() != nullptr)
    return Text(absl::StrCat(*text, *b.AsString()));
  if (op == "+" && list != nullptr && b.AsList() != nullptr && list->kind == b.AsList()->kind &&
      (list->kind == ListKind::kList || list->kind == ListKind::kTuple)) {
    if (!Work(static_cast<int64_t>(list->items.size() + b.AsList()->items.size()))) return Value();
    std::vector<Value> items = list->items;
    items.insert(items.end(), b.AsList()->items.begin(), b.AsList()->items.end());
    return Items(std::move(items), list->kind);
  }
  const auto repeats = [](const Value& what, const Value& times) {
    const List* const items = what.AsList();
    return (times.IsInt() || times.IsBool()) &&
           (what.AsString() != nullptr || (items != nullptr && (items->kind == ListKind::kList ||
                                                                items->kind == ListKind::kTuple)));
  };
  if (op == "*" && repeats(a, b)) return Repeat(*this, a, b.Int());
  if (op == "*" && repeats(b, a)) return Repeat(*this, b, a.Int());
  if (op == "%" && text != nullptr) return FormatPercent(*this, *text, b);
  return Fail(absl::StrCat("unsupported operand types for ", op, ": '", a.TypeName(), "' and '",
                           b.TypeName(), "'"));
}

Value Evaluator::Compare(absl::string_view op, const Value& a, const Value& b) {
  // A comparison visits at most the smaller value.
  if (!WorkOn(a.Weight() < b.Weight() ? a : b)) return Value();
  if (op == "==") return Value::Of(Equal(a, b));
  if (op == "!=") return Value::Of(!Equal(a, b));
  if (op == "in") return Value::Of(Contains(b, a));
  if (op == "notin") return Value::Of(!Contains(b, a));
  if (a.IsUndefined()) return FailUndefined(a);
  if (b.IsUndefined()) return FailUndefined(b);
  const bool swapped = op == ">" || op == "<=";
  const std::optional<bool> less = swapped ? Less(b, a) : Less(a, b);
  if (!less.has_value()) {
    return Fail(absl::StrCat("'", op, "' not supported between instances of '", a.TypeName(),
                             "' and '", b.TypeName(), "'"));
  }
  // With NaN, "not less" does not imply "greater or equal".
  const bool nan =
      a.IsNumber() && b.IsNumber() && (std::isnan(a.Number()) || std::isnan(b.Number()));
  return Value::Of(!nan && (op == "<" || op == ">" ? *less : !*less));
}

bool Evaluator::Contains(const Value& container, const Value& item) {
  if (container.IsUndefined()) return false;
  if (const std::string* text = container.AsString()) {
    if (item.AsString() == nullptr) {
      Fail(absl::StrCat("'in <string>' requires string as left operand, not ", item.TypeName()));
      return false;
    }
    if (!Work(static_cast<int64_t>((text->size() + item.AsString()->size()) / 64))) return false;
    return FindSubstring(*text, *item.AsString()) != absl::string_view::npos;
  }
  if (const Dict* dict = container.AsDict()) {
    if (item.AsDict() != nullptr ||
        (item.AsList() != nullptr && item.AsList()->kind == ListKind::kList)) {
      Fail(absl::StrCat("unhashable type: '", item.TypeName(), "'"));
      return false;
    }
    Work(static_cast<int64_t>(dict->items.size() - dict->strings.size()));
    return dict->Find(item) != nullptr;
  }
  for (const Value& other : Iterate(container)) {
    if (!WorkOn(other.Weight() < item.Weight() ? other : item)) return false;
    if (Equal(other, item)) return true;
  }
  return false;
}

Value Evaluator::Attribute(const Value& object, const std::string& name) {
  if (object.IsUndefined()) return FailUndefined(object);
  if (absl::StartsWith(name, "_"))
    return Value::Undefined_(absl::StrCat("attribute '", name, "', which is private,"));
  if (const Namespace* fields = object.AsNamespace()) {
    const auto found = fields->fields.find(name);
    if (found != fields->fields.end()) return found->second;
  } else if (Value method = Method(object, name); !method.IsUndefined()) {
    return method;
  }
  if (const Dict* dict = object.AsDict()) {
    const auto found = dict->strings.find(name);
    if (found != dict->strings.end()) return dict->items[found->second].second;
  }
  return Value::Undefined_(
      absl::StrCat("'", object.TypeName(), " object' has no attribute '", name, "', which"));
}

Value Evaluator::Item(const Value& object, const Value& key) {
  if (object.IsUndefined()) return FailUndefined(object);
  const Value missing =
      Value::Undefined_(absl::StrCat("'", object.TypeName(), " object' has no element ",
                                     key.Weight() < 200 ? Str(key) : "of that name", ", which"));
  if (const Dict* dict = object.AsDict()) {
    Work(static_cast<int64_t>(dict->items.size() - dict->strings.size()));
    if (const Value* value = dict->Find(key)) return *value;
  } else if (key.IsInt() || key.IsBool()) {
    const List* const list = object.AsList();
    const std::string* const text = object.AsString();
    const bool indexed =
        text != nullptr ||
        (list != nullptr && list->kind != ListKind::kGenerator && list->kind != ListKind::kView);
    if (!indexed) return missing;
    const int64_t size = text != nullptr ? Length(*text) : static_cast<int64_t>(list->items.size());
    if (text != nullptr) Work(size / 64);
    int64_t index = key.Int();
    if (index < 0) index += size;
    if (index < 0 || index >= size) return missing;
    if (list != nullptr) return list->items[static_cast<size_t>(index)];
    const size_t begin = Offset(*text, index);
    return Value::Of(text->substr(begin, Offset(absl::string_view(*text).substr(begin), 1)));
  }
  // obj["name"] also finds attributes.
  if (const std::string* name = key.AsString()) {
    if (object.AsDict() != nullptr) {
      if (absl::StartsWith(*name, "_")) return missing;
      Value method = Method(object, *name);
      return method.IsUndefined() ? missing : method;
    }
    return Attribute(object, *name);
  }
  return missing;
}

Value Evaluator::Slice(const Value& object, const Value& begin, const Value& end,
                       const Value& step) {
  if (object.IsUndefined()) return FailUndefined(object);
  const List* const list = object.AsList();
  const std::string* const text = object.AsString();
  if (text == nullptr &&
      (list == nullptr || list->kind == ListKind::kGenerator || list->kind == ListKind::kView)) {
    return Value::Undefined_(absl::StrCat("a slice of a ", object.TypeName()));
  }
  for (const Value* part : {&begin, &end, &step}) {
    if (!part->IsNone() && !part->IsInt() && !part->IsBool())
      return Fail("slice indices must be integers");
  }
  const int64_t size = text != nullptr ? Length(*text) : static_cast<int64_t>(list->items.size());
  const int64_t stride = step.IsNone() ? 1 : step.Int();
  if (stride == 0) return Fail("slice step cannot be zero");
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, int64_t fallback) {
    if (part.IsNone()) return fallback;
    const int64_t index =
        part.Int() < 0 ? std::max(part.Int(), -size - 1) + size : std::min(part.Int(), size);
    return std::clamp(index, low, high);
  };
  const int64_t from = bound(begin, stride > 0 ? 0 : size - 1);
  const int64_t to = bound(end, stride > 0 ? size : -1);
  if (!Work(size / 16)) return Value();
  if (text != nullptr && stride == 1) {
    const size_t first = Offset(*text, from);
    return Text(text->substr(
        first, Offset(absl::string_view(*text).substr(first), std::max<int64_t>(to - from, 0))));
  }
  const std::vector<Value> characters = text != nullptr ? Iterate(object) : std::vector<Value>();
  const std::vector<Value>& items = text != nullptr ? characters : list->items;
  std::vector<Value> taken;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (list != nullptr) return Items(std::move(taken), list->kind);
  std::string out;
  for (const Value& one : taken) AppendStr(one, &out);
  return Text(std::move(out));
}

}  // namespace espalier::jinja
