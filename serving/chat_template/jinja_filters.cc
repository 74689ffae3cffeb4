// The Jinja2 filters that chat templates use, with transformers' tojson.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "serving/chat_template/evaluator.h"
#include "serving/chat_template/python_string.h"

namespace espalier::jinja {
namespace {

using Filter = Value (*)(Evaluator&, Arguments);

// Strings unchanged, other values as str() prints them.
std::string ToStr(Evaluator& e, const Value& value) { return e.StrOf(value); }

Value Length_(Evaluator& e, Arguments a) {
  BoundArguments read(e, "length", std::move(a), {"value"});
  const Value& value = read[0];
  if (value.IsUndefined()) return Value::Of(int64_t{0});
  if (const std::string* text = value.AsString()) {
    e.Work(static_cast<int64_t>(text->size() / 64));
    return Value::Of(Length(*text));
  }
  if (const Dict* dict = value.AsDict()) return Value::Of(static_cast<int64_t>(dict->items.size()));
  if (const List* list = value.AsList(); list != nullptr && list->kind != ListKind::kGenerator) {
    return Value::Of(static_cast<int64_t>(list->items.size()));
  }
  return e.Fail(absl::StrCat("object of type '", value.TypeName(), "' has no len()"));
}

Value Default(Evaluator& e, Arguments a) {
  BoundArguments read(e, "default", std::move(a), {"value", "default_value", "boolean"});
  const bool use = read[0].IsUndefined() || (read.Bool(2, false) && !read[0].Truth());
  if (!use) return read[0];
  return read.Has(1) ? read[1] : Value::Of(std::string());
}

// The attribute path "a.b.0" of an item.
Value AttributePath(Evaluator& e, const Value& item, const Value& path) {
  if (!path.AsString()) return e.Item(item, path);
  Value value = item;
  const std::string& text = *path.AsString();
  for (size_t begin = 0; begin <= text.size() && e.ok();) {
    if (!e.Work(1)) return Value();
    const size_t dot = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, dot - begin);
    int64_t index = 0;
    const bool number = !part.empty() &&
                        std::all_of(part.begin(), part.end(), absl::ascii_isdigit) &&
                        absl::SimpleAtoi(part, &index);
    value = e.Item(value, number ? Value::Of(index) : Value::Of(part));
    begin = dot + 1;
  }
  return value;
}

Value Join(Evaluator& e, Arguments a) {
  BoundArguments read(e, "join", std::move(a), {"value", "d", "attribute"});
  const std::string separator = read.Has(1) ? ToStr(e, read[1]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : e.Iterate(read[0])) {
    if (!e.Work(1, separator.size())) return Value();
    if (!first) out += separator;
    first = false;
    out += ToStr(e, read.Has(2) && !read[2].IsNone() ? AttributePath(e, item, read[2]) : item);
  }
  return e.Text(std::move(out));
}

Value First(Evaluator& e, Arguments a) {
  BoundArguments read(e, "first", std::move(a), {"seq"});
  const std::vector<Value> items = e.Iterate(read[0]);
  return items.empty() ? Value::Undefined_("No first item, sequence was empty: it") : items.front();
}

Value Last(Evaluator& e, Arguments a) {
  BoundArguments read(e, "last", std::move(a), {"seq"});
  if (const List* list = read[0].AsList(); list != nullptr && list->kind == ListKind::kGenerator) {
    return e.Fail("'generator' object is not reversible");
  }
  const std::vector<Value> items = e.Iterate(read[0]);
  return items.empty() ? Value::Undefined_("No last item, sequence was empty: it") : items.back();
}

Value Replace(Evaluator& e, Arguments a) {
  BoundArguments read(e, "replace", std::move(a), {"s", "old", "new", "count"});
  Arguments arguments;
  for (const size_t i : {1, 2}) arguments.positional.push_back(Value::Of(ToStr(e, read[i])));
  if (read.Has(3) && !read[3].IsNone()) arguments.positional.push_back(read[3]);
  if (!e.ok()) return Value();
  return e.Call(e.Method(Value::Of(ToStr(e, read[0])), "replace"), std::move(arguments));
}

Value Trim(Evaluator& e, Arguments a) {
  BoundArguments read(e, "trim", std::move(a), {"value", "chars"});
  const bool given = read.Has(1) && !read[1].IsNone();
  const std::string characters = given ? ToStr(e, read[1]) : "";
  return e.Text(StripText(ToStr(e, read[0]), true, true, given ? &characters : nullptr));
}

Value Indent(Evaluator& e, Arguments a) {
  BoundArguments read(e, "indent", std::move(a), {"s", "width", "first", "blank"});
  if (read[0].IsUndefined()) return e.FailUndefined(read[0]);
  if (read[0].AsString() == nullptr) {
    return e.Fail(absl::StrCat("indent: a ", read[0].TypeName(), " is no string"));
  }
  std::string unit;
  if (read.Has(1) && read[1].AsString() != nullptr) {
    unit = *read[1].AsString();
  } else {
    const int64_t width = read.Int(1, 4);
    if (!e.Work(0, static_cast<size_t>(std::max<int64_t>(width, 0)))) return Value();
    unit = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool first = read.Bool(2, false), blank = read.Bool(3, false);
  std::vector<Value> lines =
      e.Iterate(e.Call(e.Method(Value::Of(ToStr(e, read[0]) + "\n"), "splitlines"), {}));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = *lines[i].AsString();
    if (!e.Work(1, line.size() + unit.size())) return Value();
    if (i > 0) out += "\n";
    if (i == 0 ? first : blank || !line.empty()) out += unit;
    out += line;
  }
  return e.Text(std::move(out));
}

Value ToJsonFilter(Evaluator& e, Arguments a) {
  BoundArguments read(e, "tojson", std::move(a),
                      {"value", "ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = read.Bool(1, false);
  if (read.Has(2) && !read[2].IsNone()) {
    style.indent = static_cast<int>(std::clamp<int64_t>(read.Int(2, 0), 0, 100));
    style.item_separator.assign(1, ',');
  }
  if (read.Has(3) && !read[3].IsNone()) {
    const List* const pair = read[3].AsList();
    if (pair == nullptr || pair->items.size() != 2)
      return e.Fail("tojson: separators are two strings");
    style.item_separator = ToStr(e, pair->items[0]);
    style.key_separator = ToStr(e, pair->items[1]);
  }
  style.sort_keys = read.Bool(4, false);
  if (read[0].IsUndefined()) return e.FailUndefined(read[0]);
  // Each value may be on a line of its own.
  const int64_t weight = read[0].Weight(), lines = weight / 8;
  const int64_t blanks = std::max(style.indent, 0) * (int64_t{1} + read[0].Depth());
  if (!e.ok() || !e.Work(lines) || !e.Work(0, static_cast<size_t>(weight + lines * blanks))) {
    return Value();
  }
  absl::StatusOr<std::string> json = ToJson(read[0], style);
  return json.ok() ? e.Text(*std::move(json)) : e.Fail(json.status().message());
}

Value Items(Evaluator& e, Arguments a) {
  BoundArguments read(e, "items", std::move(a), {"value"});
  if (read[0].IsUndefined()) return e.Items({}, ListKind::kGenerator);
  const Dict* const dict = read[0].AsDict();
  if (dict == nullptr) return e.Fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : dict->items)
    items.push_back(e.Items({key, value}, ListKind::kTuple));
  return e.Items(std::move(items), ListKind::kGenerator);
}

// Sorts by `key`; strings case-insensitively unless `case_sensitive` is given.
bool Sort(Evaluator& e, std::vector<Value>* items, const std::function<Value(const Value&)>& key,
          bool case_sensitive, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : *items) {
    Value by = key(item);
    if (!case_sensitive && by.AsString() != nullptr) by = e.Text(Lower(*by.AsString()));
    keyed.emplace_back(std::move(by), std::move(item));
  }
  bool ordered = true;
  const auto less = [&](const auto& x, const auto& y) {
    e.Work(1 + std::min(x.first.Weight(), y.first.Weight()) / 32);
    if (!e.ok()) return false;
    const std::optional<bool> before = reverse ? Less(y.first, x.first) : Less(x.first, y.first);
    ordered = ordered && before.has_value();
    return before.value_or(false);
  };
  std::stable_sort(keyed.begin(), keyed.end(), less);
  if (!ordered) e.Fail("sort: values of types that have no order");
  for (size_t i = 0; i < keyed.size(); ++i) (*items)[i] = std::move(keyed[i].second);
  return e.ok();
}

Value SortFilter(Evaluator& e, Arguments a) {
  BoundArguments read(e, "sort", std::move(a), {"value", "reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = e.Iterate(read[0]);
  const bool by = read.Has(3) && !read[3].IsNone();
  const auto key = [&](const Value& item) { return by ? AttributePath(e, item, read[3]) : item; };
  if (!Sort(e, &items, key, read.Bool(2, false), read.Bool(1, false))) return Value();
  return e.Items(std::move(items));
}

Value DictSort(Evaluator& e, Arguments a) {
  BoundArguments read(e, "dictsort", std::move(a), {"value", "case_sensitive", "by", "reverse"});
  const Dict* const dict = read[0].AsDict();
  if (dict == nullptr) return e.Fail("dictsort: no mapping");
  const std::string by = read.String(2, "key");
  if (by != "key" && by != "value")
    return e.Fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Value> items;
  for (const auto& [key, value] : dict->items)
    items.push_back(e.Items({key, value}, ListKind::kTuple));
  if (!e.ok()) return Value();
  const auto key = [&](const Value& pair) { return pair.AsList()->items[by == "key" ? 0 : 1]; };
  if (!Sort(e, &items, key, read.Bool(1, false), read.Bool(3, false))) return Value();
  return e.Items(std::move(items));
}

Value Unique(Evaluator& e, Arguments a) {
  BoundArguments read(e, "unique", std::move(a), {"value", "case_sensitive", "attribute"});
  std::vector<Value> out, seen;
  for (const Value& item : e.Iterate(read[0])) {
    Value key = read.Has(2) && !read[2].IsNone() ? AttributePath(e, item, read[2]) : item;
    if (key.AsDict() != nullptr ||
        (key.AsList() != nullptr && key.AsList()->kind == ListKind::kList)) {
      return e.Fail(absl::StrCat("unhashable type: '", key.TypeName(), "'"));
    }
    if (!read.Bool(1, false) && key.AsString() != nullptr) key = e.Text(Lower(*key.AsString()));
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return e.WorkOn(other) && Equal(other, key);
    });
    if (!e.ok()) return Value();
    if (known) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return e.Items(std::move(out), ListKind::kGenerator);
}

// Falsy values of any type have no items.
std::vector<Value> IterateIfAny(Evaluator& e, const Value& value) {
  return value.Truth() ? e.Iterate(value) : std::vector<Value>();
}

Value Map(Evaluator& e, Arguments a) {
  if (a.positional.empty()) return e.Fail("map: nothing to map");
  const std::vector<Value> items = IterateIfAny(e, a.positional[0]);
  std::vector<Value> out;
  const auto named = [&](absl::string_view name) -> const Value* {
    for (const auto& [own, value] : a.named) {
      if (own == name) return &value;
    }
    return nullptr;
  };
  const Value* const attribute = named("attribute");
  if (attribute == nullptr && a.positional.size() < 2)
    return e.Fail("map requires a filter argument");
  for (const Value& item : items) {
    if (!e.ok()) return Value();
    if (attribute != nullptr) {
      Value value = AttributePath(e, item, *attribute);
      const Value* const fallback = named("default");
      out.push_back(value.IsUndefined() && fallback != nullptr ? *fallback : std::move(value));
      continue;
    }
    const std::string* const filter = a.positional[1].AsString();
    if (filter == nullptr) return e.Fail("map: the filter's name is no string");
    Arguments arguments;
    arguments.positional = {item};
    arguments.positional.insert(arguments.positional.end(), a.positional.begin() + 2,
                                a.positional.end());
    arguments.named = a.named;
    out.push_back(e.Filter(*filter, std::move(arguments)));
  }
  return e.Items(std::move(out), ListKind::kGenerator);
}

// select, reject, selectattr and rejectattr.
Value SelectOrReject(Evaluator& e, Arguments a, bool by_attribute, bool wanted) {
  const size_t first = by_attribute ? 2 : 1;
  if (a.positional.size() < first) return e.Fail("the attribute is missing");
  std::vector<Value> out;
  for (const Value& item : IterateIfAny(e, a.positional[0])) {
    if (!e.ok()) return Value();
    Value value = by_attribute ? AttributePath(e, item, a.positional[1]) : item;
    bool chosen = value.Truth();
    if (a.positional.size() > first) {
      const std::string* const test = a.positional[first].AsString();
      if (test == nullptr) return e.Fail("the test's name is no string");
      Arguments arguments;
      arguments.positional = {std::move(value)};
      arguments.positional.insert(arguments.positional.end(),
                                  a.positional.begin() + static_cast<long>(first) + 1,
                                  a.positional.end());
      chosen = e.Test(*test, arguments);
    }
    if (chosen == wanted) out.push_back(item);
  }
  return e.Items(std::move(out), ListKind::kGenerator);
}

Value Reverse(Evaluator& e, Arguments a) {
  BoundArguments read(e, "reverse", std::move(a), {"value"});
  std::vector<Value> items = e.Iterate(read[0]);
  std::reverse(items.begin(), items.end());
  if (read[0].AsString() == nullptr) return e.Items(std::move(items), ListKind::kGenerator);
  std::string out;
  for (const Value& one : items) AppendStr(one, &out);
  return e.Text(std::move(out));
}

Value ToInt(Evaluator& e, Arguments a) {
  BoundArguments read(e, "int", std::move(a), {"value", "default", "base"});
  const Value fallback = read.Has(1) ? read[1] : Value::Of(int64_t{0});
  const Value& value = read[0];
  if (value.IsUndefined()) return e.FailUndefined(value);
  if (value.IsInt() || value.IsBool()) return Value::Of(value.Int());
  double number = 0;
  if (value.IsFloat()) {
    number = value.Number();
  } else if (const std::string* text = value.AsString()) {
    const std::string trimmed = StripText(*text, true, true, nullptr);
    int64_t integer = 0;
    const bool hex = read.Int(2, 10) == 16;
    if (hex ? absl::SimpleHexAtoi(trimmed, &integer) : absl::SimpleAtoi(trimmed, &integer))
      return Value::Of(integer);
    if (hex || !absl::SimpleAtod(trimmed, &number)) return fallback;
  } else {
    return fallback;
  }
  if (!std::isfinite(number)) return fallback;
  if (std::abs(number) >= 9.2e18) return e.Fail("an integer beyond 64 bits");
  return Value::Of(static_cast<int64_t>(number));
}

Value ToFloat(Evaluator& e, Arguments a) {
  BoundArguments read(e, "float", std::move(a), {"value", "default"});
  const Value& value = read[0];
  if (value.IsUndefined()) return e.FailUndefined(value);
  if (value.IsNumber()) return Value::Of(value.Number());
  double number = 0;
  if (value.AsString() != nullptr &&
      absl::SimpleAtod(StripText(*value.AsString(), true, true, nullptr), &number)) {
    return Value::Of(number);
  }
  return read.Has(1) ? read[1] : Value::Of(0.0);
}

Value Round(Evaluator& e, Arguments a) {
  BoundArguments read(e, "round", std::move(a), {"value", "precision", "method"});
  const std::string method = read.String(2, "common");
  const int64_t precision = read.Int(1, 0);
  if (!e.ok()) return Value();
  if (!read[0].IsNumber())
    return e.Fail(absl::StrCat("round: a ", read[0].TypeName(), " is no number"));
  if (precision < -300 || precision > 300) return e.Fail("round: precision beyond 300");
  const double scale = std::pow(10.0, static_cast<double>(precision)), value = read[0].Number();
  if (method == "ceil") return Value::Of(std::ceil(value * scale) / scale);
  if (method == "floor") return Value::Of(std::floor(value * scale) / scale);
  if (method != "common") return e.Fail("method must be common, ceil or floor");
  if (!read[0].IsFloat() && precision >= 0) return Value::Of(read[0].Int());
  // Like Python, printf rounds the decimal representation, halves to even.
  if (precision >= 0) {
    char text[700];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value);
    return Value::Of(std::atof(text));
  }
  return Value::Of(std::nearbyint(value * scale) / scale);
}

Value Sum(Evaluator& e, Arguments a) {
  BoundArguments read(e, "sum", std::move(a), {"iterable", "attribute", "start"});
  Value sum = read.Has(2) ? read[2] : Value::Of(int64_t{0});
  for (const Value& item : e.Iterate(read[0])) {
    sum = e.Binary("+", sum,
                   read.Has(1) && !read[1].IsNone() ? AttributePath(e, item, read[1]) : item);
    if (!e.ok()) return Value();
  }
  return sum;
}

// min and max.
Value MinOrMax(Evaluator& e, Arguments a, bool most) {
  BoundArguments read(e, most ? "max" : "min", std::move(a),
                      {"value", "case_sensitive", "attribute"});
  std::vector<Value> items = e.Iterate(read[0]);
  if (items.empty()) return Value::Undefined_("No aggregated item, sequence was empty: it");
  const bool by = read.Has(2) && !read[2].IsNone();
  const auto key = [&](const Value& item) { return by ? AttributePath(e, item, read[2]) : item; };
  if (!Sort(e, &items, key, read.Bool(1, false), most)) return Value();
  return items.front();
}

Value Batch(Evaluator& e, Arguments a) {
  BoundArguments read(e, "batch", std::move(a), {"value", "linecount", "fill_with"});
  const int64_t size = read.Int(1, 1);
  if (!e.ok() || size < 1) return e.Fail("batch: the size is less than 1");
  std::vector<Value> out, row;
  for (const Value& item : e.Iterate(read[0])) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) out.push_back(e.Items(std::exchange(row, {})));
  }
  if (!row.empty()) {
    if (read.Has(2) && !read[2].IsNone()) {
      if (!e.Work(size, static_cast<size_t>(size) * sizeof(Value))) return Value();
      row.resize(static_cast<size_t>(size), read[2]);
    }
    out.push_back(e.Items(std::move(row)));
  }
  return e.Items(std::move(out), ListKind::kGenerator);
}

Value Truncate(Evaluator& e, Arguments a) {
  BoundArguments read(e, "truncate", std::move(a), {"s", "length", "killwords", "end", "leeway"});
  if (!read[0].IsUndefined() && read[0].AsString() == nullptr) {
    // Any value with a length is returned unchanged if it is short.
    const Value size = Length_(e, {{read[0]}, {}});
    if (e.ok() && size.Int() <= read.Int(1, 255) + read.Int(4, 5)) return read[0];
    return e.Fail(absl::StrCat("truncate: a ", read[0].TypeName(), " is no string"));
  }
  const std::string text = ToStr(e, read[0]), end = read.String(3, "...");
  const int64_t length = read.Int(1, 255), leeway = read.Int(4, 5);
  if (!e.ok()) return Value();
  if (length < Length(end))
    return e.Fail(absl::StrCat("expected length >= ", Length(end), ", got ", length));
  if (leeway < 0) return e.Fail("expected leeway >= 0");
  if (Length(text) <= length + leeway) return e.Text(text);
  std::string cut = text.substr(0, Offset(text, length - Length(end)));
  if (!read.Bool(2, false)) cut = cut.substr(0, std::min(cut.rfind(' '), cut.size()));
  return e.Text(cut + end);
}

Value AttributeOf(Evaluator& e, Arguments a) {
  BoundArguments read(e, "attr", std::move(a), {"obj", "name"});
  const std::string name = read.String(1, "");
  if (!e.ok()) return Value();
  if (read[0].IsUndefined()) return e.FailUndefined(read[0]);
  if (const Namespace* fields = read[0].AsNamespace();
      fields != nullptr && fields->fields.contains(name)) {
    return fields->fields.at(name);
  }
  Value method = e.Method(read[0], name);  // never an item
  return method.IsUndefined() ? Value::Undefined_(absl::StrCat("attribute '", name, "'")) : method;
}

Value TextBy(Evaluator& e, Arguments a, std::string (*change)(const std::string&)) {
  BoundArguments read(e, "filter", std::move(a), {"s"});
  return e.Text(change(ToStr(e, read[0])));
}

const std::map<std::string, Filter>& Filters() {
  static const auto* const filters = new std::map<std::string, Filter>{
      {"abs",
       [](Evaluator& e, Arguments a) {
         BoundArguments read(e, "abs", std::move(a), {"x"});
         if (!read[0].IsNumber()) return e.Fail("abs: no number");
         if (read[0].IsFloat()) return Value::Of(std::abs(read[0].Number()));
         return read[0].Int() < 0 ? e.Binary("-", Value::Of(int64_t{0}), read[0])
                                  : Value::Of(read[0].Int());
       }},
      {"attr", AttributeOf},
      {"batch", Batch},
      {"capitalize", [](Evaluator& e, Arguments a) { return TextBy(e, std::move(a), Capitalize); }},
      {"center",
       [](Evaluator& e, Arguments a) {
         BoundArguments read(e, "center", std::move(a), {"value", "width"});
         Arguments width;
         width.positional = {read.Has(1) ? read[1] : Value::Of(int64_t{80})};
         return e.Call(e.Method(Value::Of(ToStr(e, read[0])), "center"), std::move(width));
       }},
      {"count", Length_},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSort},
      {"first", First},
      {"float", ToFloat},
      {"indent", Indent},
      {"int", ToInt},
      {"items", Items},
      {"join", Join},
      {"last", Last},
      {"length", Length_},
      {"list",
       [](Evaluator& e, Arguments a) {
         BoundArguments read(e, "list", std::move(a), {"value"});
         return e.Items(e.Iterate(read[0]));
       }},
      {"lower", [](Evaluator& e, Arguments a) { return TextBy(e, std::move(a), Lower); }},
      {"map", Map},
      {"max", [](Evaluator& e, Arguments a) { return MinOrMax(e, std::move(a), true); }},
      {"min", [](Evaluator& e, Arguments a) { return MinOrMax(e, std::move(a), false); }},
      {"reject",
       [](Evaluator& e, Arguments a) { return SelectOrReject(e, std::move(a), false, false); }},
      {"rejectattr",
       [](Evaluator& e, Arguments a) { return SelectOrReject(e, std::move(a), true, false); }},
      {"replace", Replace},
      {"reverse", Reverse},
      {"round", Round},
      {"safe",
       [](Evaluator& e, Arguments a) {
         return TextBy(e, std::move(a), [](const std::string& s) { return s; });
       }},
      {"select",
       [](Evaluator& e, Arguments a) { return SelectOrReject(e, std::move(a), false, true); }},
      {"selectattr",
       [](Evaluator& e, Arguments a) { return SelectOrReject(e, std::move(a), true, true); }},
      {"sort", SortFilter},
      {"string",
       [](Evaluator& e, Arguments a) {
         return TextBy(e, std::move(a), [](const std::string& s) { return s; });
       }},
      {"sum", Sum},
      {"title", [](Evaluator& e, Arguments a) { return TextBy(e, std::move(a), FilterTitle); }},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"unique", Unique},
      {"upper", [](Evaluator& e, Arguments a) { return TextBy(e, std::move(a), Upper); }},
  };
  return *filters;
}

}  // namespace

Value Evaluator::Filter(const std::string& name, Arguments arguments) {
  const auto found = Filters().find(name);
  if (found == Filters().end())
    return Fail(absl::StrCat("the filter ", name, " is not known here"));
  if (!Work(1)) return Value();
  return found->second(*this, std::move(arguments));
}

}  // namespace espalier::jinja
