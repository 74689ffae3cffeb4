// Methods of strings, mappings and lists. Methods that modify a list or mapping are absent, as in
// Jinja2's immutable sandbox.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "serving/chat_template/evaluator.h"
#include "serving/chat_template/python_string.h"
#include "serving/tokenizer/unicode.h"

namespace espalier::jinja {
namespace {

using StringMethod = Value (*)(Evaluator&, const std::string&, Arguments);

Value StripBy(Evaluator& e, const std::string& text, Arguments arguments, bool left, bool right) {
  BoundArguments read(e, "strip", std::move(arguments), {"characters"});
  const std::string characters = read[0].IsNone() ? "" : read.String(0, "");
  const bool given = read.Has(0) && !read[0].IsNone();
  return e.Text(StripText(text, left, right, given ? &characters : nullptr));
}

int64_t SearchSteps(absl::string_view text, absl::string_view piece) {
  return static_cast<int64_t>((text.size() + piece.size()) / 16);
}

Value SplitBy(Evaluator& e, const std::string& text, Arguments arguments, bool from_right) {
  BoundArguments read(e, "split", std::move(arguments), {"sep", "maxsplit"});
  const bool spaces = !read.Has(0) || read[0].IsNone();
  const std::string separator = spaces ? "" : read.String(0, "");
  const int64_t most = read.Int(1, -1);
  if (!e.ok()) return Value();
  if (!spaces && separator.empty()) return e.Fail("empty separator");
  std::vector<Value> parts;
  const auto put = [&](absl::string_view part) { parts.push_back(Value::Of(std::string(part))); };
  const auto full = [&] { return most >= 0 && static_cast<int64_t>(parts.size()) >= most; };
  absl::string_view rest = text;
  const int64_t steps = spaces ? static_cast<int64_t>(text.size()) : SearchSteps(text, separator);
  if (!e.Work(steps, text.size() * 3)) return Value();
  if (spaces) {
    const auto strip = [&](absl::string_view s, bool left) {
      return s.substr(left ? s.size() - StripText(s, true, false, nullptr).size() : 0,
                      StripText(s, left, !left, nullptr).size());
    };
    rest = strip(rest, !from_right);
    while (!rest.empty()) {
      if (full()) {
        put(strip(rest, from_right));
        break;
      }
      // The next white space from that side.
      size_t cut = absl::string_view::npos, after = 0;
      if (from_right) {
        for (size_t end = rest.size(); end > 0 && cut == absl::string_view::npos;) {
          const size_t begin = PreviousCharacter(rest, end);
          size_t at = begin;
          if (IsPythonSpace(NextCodePoint(rest, &at))) {
            cut = begin;
            after = end;
          }
          end = begin;
        }
      } else {
        for (size_t at = 0; at < rest.size() && cut == absl::string_view::npos;) {
          const size_t begin = at;
          if (IsPythonSpace(NextCodePoint(rest, &at))) {
            cut = begin;
            after = at;
          }
        }
      }
      if (cut == absl::string_view::npos) {
        put(rest);
        break;
      }
      if (!e.Work(static_cast<int64_t>(rest.size() / 64))) return Value();
      put(from_right ? rest.substr(after) : rest.substr(0, cut));
      rest = strip(from_right ? rest.substr(0, cut) : rest.substr(after), !from_right);
    }
  } else {
    // rsplit searches the reversed text.
    const std::string mirror = from_right ? std::string(text.rbegin(), text.rend()) : std::string();
    const std::string mark =
        from_right ? std::string(separator.rbegin(), separator.rend()) : separator;
    const absl::string_view whole = from_right ? mirror : text;
    size_t at = 0;
    while (!full()) {
      const size_t cut = FindSubstring(whole, mark, at);
      if (cut == absl::string_view::npos) break;
      if (!e.Work(1, sizeof(Value) + 64)) return Value();
      put(rest.substr(from_right ? rest.size() - cut : at, cut - at));
      at = cut + mark.size();
    }
    put(from_right ? rest.substr(0, rest.size() - at) : rest.substr(at));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return e.Items(std::move(parts));
}

Value BeginsOrEnds(Evaluator& e, const std::string& text, Arguments arguments, bool begins) {
  BoundArguments read(e, begins ? "startswith" : "endswith", std::move(arguments), {"prefix"});
  std::vector<Value> options = {read[0]};
  if (const List* list = read[0].AsList()) options = list->items;
  for (const Value& option : options) {
    const std::string* const affix = option.AsString();
    if (affix == nullptr)
      return e.Fail(absl::StrCat("startswith or endswith of a ", option.TypeName()));
    if (begins ? absl::StartsWith(text, *affix) : absl::EndsWith(text, *affix))
      return Value::Of(true);
  }
  return Value::Of(false);
}

Value FindIn(Evaluator& e, const std::string& text, Arguments arguments, bool from_right,
             bool must) {
  BoundArguments read(e, "find", std::move(arguments), {"sub"});
  const std::string wanted = read.String(0, "");
  if (!e.Work(SearchSteps(text, wanted))) return Value();
  const size_t at = from_right ? FindLastSubstring(text, wanted) : FindSubstring(text, wanted);
  if (at != absl::string_view::npos)
    return Value::Of(Length(absl::string_view(text).substr(0, at)));
  return must ? e.Fail("substring not found") : Value::Of(int64_t{-1});
}

Value ReplaceIn(Evaluator& e, const std::string& text, Arguments arguments) {
  BoundArguments read(e, "replace", std::move(arguments), {"old", "new", "count"});
  const std::string from = read.String(0, ""), to = read.String(1, "");
  int64_t left = read.Int(2, -1);
  if (!e.ok()) return Value();
  std::string out;
  size_t at = 0;
  const auto grow = [&](size_t bytes) { return e.Work(1, bytes); };
  if (from.empty()) {  // before every character and at the end
    for (; left != 0; --left) {
      if (!grow(to.size())) return Value();
      out += to;
      if (at >= text.size()) break;
      const size_t begin = at;
      NextCodePoint(text, &at);
      out.append(text, begin, at - begin);
    }
  } else {
    if (!e.Work(SearchSteps(text, from))) return Value();
    for (size_t found = FindSubstring(text, from); found != absl::string_view::npos && left != 0;
         found = FindSubstring(text, from, at), --left) {
      if (!grow(found - at + to.size())) return Value();
      out.append(text, at, found - at);
      out += to;
      at = found + from.size();
    }
  }
  out.append(text, at);
  return e.Text(std::move(out));
}

Value CountIn(Evaluator& e, const std::string& text, Arguments arguments) {
  BoundArguments read(e, "count", std::move(arguments), {"sub"});
  const std::string wanted = read.String(0, "");
  if (!e.Work(SearchSteps(text, wanted))) return Value();
  if (wanted.empty()) return Value::Of(Length(text) + 1);
  int64_t n = 0;
  for (size_t at = FindSubstring(text, wanted); at != absl::string_view::npos;
       at = FindSubstring(text, wanted, at + wanted.size()))
    ++n;
  return Value::Of(n);
}

Value JoinBy(Evaluator& e, const std::string& separator, Arguments arguments) {
  BoundArguments read(e, "join", std::move(arguments), {"iterable"});
  std::string out;
  bool first = true;
  for (const Value& item : e.Iterate(read[0])) {
    const std::string* const text = item.AsString();
    if (text == nullptr) return e.Fail(absl::StrCat("join: expected str, found ", item.TypeName()));
    if (!e.Work(1, text->size() + separator.size())) return Value();
    if (!first) out += separator;
    out += *text;
    first = false;
  }
  return e.Text(std::move(out));
}

template <typename Is>
Value All(Evaluator& e, const std::string& text, const Arguments& arguments, Is is) {
  BoundArguments read(e, "method", arguments, {});
  bool all = !text.empty();
  for (size_t at = 0; at < text.size() && all;) all = is(NextCodePoint(text, &at));
  return Value::Of(all);
}

bool IsLetter(char32_t c) {
  if (c < 0x80) return absl::ascii_isalpha(static_cast<unsigned char>(c));
  return IsWordCharacter(c) && !IsNumeric(c) && !IsCombiningMark(c);
}

Value SplitLines(Evaluator& e, const std::string& text, Arguments arguments) {
  BoundArguments read(e, "splitlines", std::move(arguments), {"keepends"});
  const bool keep = read.Bool(0, false);
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = NextCodePoint(text, &at);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (!e.Work(1, sizeof(Value) + 64 + here - begin)) return Value();
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(Value::Of(text.substr(begin, (keep ? at : here) - begin)));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(Value::Of(text.substr(begin)));
  return e.Items(std::move(lines));
}

Value Partition(Evaluator& e, const std::string& text, Arguments arguments, bool from_right) {
  BoundArguments read(e, "partition", std::move(arguments), {"sep"});
  const std::string separator = read.String(0, "");
  if (!e.ok()) return Value();
  if (separator.empty()) return e.Fail("empty separator");
  if (!e.Work(SearchSteps(text, separator))) return Value();
  const size_t at =
      from_right ? FindLastSubstring(text, separator) : FindSubstring(text, separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    const Value nothing = Value::Of(std::string());
    parts = {nothing, nothing, nothing};
    parts[from_right ? 2 : 0] = Value::Of(text);
  } else {
    parts = {Value::Of(text.substr(0, at)), Value::Of(separator),
             Value::Of(text.substr(at + separator.size()))};
  }
  return e.Items(std::move(parts), ListKind::kTuple);
}

Value Justify(Evaluator& e, const std::string& text, Arguments arguments, int left_share) {
  BoundArguments read(e, "justify", std::move(arguments), {"width", "fillchar"});
  const int64_t missing = read.Int(0, 0) - Length(text);
  const std::string fill = read.String(1, " ");
  if (!e.ok() || missing <= 0) return Value::Of(text);
  if (Length(fill) != 1) return e.Fail("the fill character must be exactly one character long");
  if (!e.Work(missing, static_cast<size_t>(missing) * fill.size())) return Value();
  // Python's center() puts the odd blank on the left if the width is odd.
  const int64_t width = missing + Length(text);
  const int64_t left = left_share == 0   ? 0
                       : left_share == 2 ? missing
                                         : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return e.Text(std::move(out));
}

const std::map<std::string, StringMethod>& StringMethods() {
  using S = const std::string&;
  static const auto* const methods = new std::map<std::string, StringMethod>{
      {"strip",
       [](Evaluator& e, S s, Arguments a) { return StripBy(e, s, std::move(a), true, true); }},
      {"lstrip",
       [](Evaluator& e, S s, Arguments a) { return StripBy(e, s, std::move(a), true, false); }},
      {"rstrip",
       [](Evaluator& e, S s, Arguments a) { return StripBy(e, s, std::move(a), false, true); }},
      {"split", [](Evaluator& e, S s, Arguments a) { return SplitBy(e, s, std::move(a), false); }},
      {"rsplit", [](Evaluator& e, S s, Arguments a) { return SplitBy(e, s, std::move(a), true); }},
      {"startswith",
       [](Evaluator& e, S s, Arguments a) { return BeginsOrEnds(e, s, std::move(a), true); }},
      {"endswith",
       [](Evaluator& e, S s, Arguments a) { return BeginsOrEnds(e, s, std::move(a), false); }},
      {"find",
       [](Evaluator& e, S s, Arguments a) { return FindIn(e, s, std::move(a), false, false); }},
      {"rfind",
       [](Evaluator& e, S s, Arguments a) { return FindIn(e, s, std::move(a), true, false); }},
      {"index",
       [](Evaluator& e, S s, Arguments a) { return FindIn(e, s, std::move(a), false, true); }},
      {"rindex",
       [](Evaluator& e, S s, Arguments a) { return FindIn(e, s, std::move(a), true, true); }},
      {"replace", ReplaceIn},
      {"count", CountIn},
      {"join", JoinBy},
      {"splitlines", SplitLines},
      {"partition",
       [](Evaluator& e, S s, Arguments a) { return Partition(e, s, std::move(a), false); }},
      {"rpartition",
       [](Evaluator& e, S s, Arguments a) { return Partition(e, s, std::move(a), true); }},
      {"ljust", [](Evaluator& e, S s, Arguments a) { return Justify(e, s, std::move(a), 0); }},
      {"rjust", [](Evaluator& e, S s, Arguments a) { return Justify(e, s, std::move(a), 2); }},
      {"center", [](Evaluator& e, S s, Arguments a) { return Justify(e, s, std::move(a), 1); }},
      {"upper", [](Evaluator& e, S s, Arguments) { return e.Text(Upper(s)); }},
      {"lower", [](Evaluator& e, S s, Arguments) { return e.Text(Lower(s)); }},
      {"casefold", [](Evaluator& e, S s, Arguments) { return e.Text(Lower(s)); }},
      {"capitalize", [](Evaluator& e, S s, Arguments) { return e.Text(Capitalize(s)); }},
      {"title", [](Evaluator& e, S s, Arguments) { return e.Text(Title(s)); }},
      {"isdigit", [](Evaluator& e, S s, Arguments a) { return All(e, s, a, IsNumeric); }},
      {"isnumeric", [](Evaluator& e, S s, Arguments a) { return All(e, s, a, IsNumeric); }},
      {"isspace", [](Evaluator& e, S s, Arguments a) { return All(e, s, a, IsPythonSpace); }},
      {"isalpha", [](Evaluator& e, S s, Arguments a) { return All(e, s, a, IsLetter); }},
      {"isalnum",
       [](Evaluator& e, S s, Arguments a) {
         return All(e, s, a, [](char32_t c) { return IsLetter(c) || IsNumeric(c); });
       }},
      {"isupper",
       [](Evaluator&, S s, Arguments) { return Value::Of(s == Upper(s) && s != Lower(s)); }},
      {"islower",
       [](Evaluator&, S s, Arguments) { return Value::Of(s == Lower(s) && s != Upper(s)); }},
      {"removeprefix",
       [](Evaluator& e, S s, Arguments a) {
         BoundArguments read(e, "removeprefix", std::move(a), {"prefix"});
         const std::string affix = read.String(0, "");
         return e.Text(absl::StartsWith(s, affix) ? s.substr(affix.size()) : s);
       }},
      {"removesuffix",
       [](Evaluator& e, S s, Arguments a) {
         BoundArguments read(e, "removesuffix", std::move(a), {"suffix"});
         const std::string affix = read.String(0, "");
         return e.Text(absl::EndsWith(s, affix) ? s.substr(0, s.size() - affix.size()) : s);
       }},
      {"zfill",
       [](Evaluator& e, S s, Arguments a) {
         BoundArguments read(e, "zfill", std::move(a), {"width"});
         const int64_t missing = std::max<int64_t>(read.Int(0, 0) - Length(s), 0);
         if (!e.Work(missing, static_cast<size_t>(missing))) return Value();
         const size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
         return e.Text(s.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') +
                       s.substr(sign));
       }},
  };
  return *methods;
}

// `depth`: of the value that the method is bound to.
Value BindMethod(std::string name, int depth, std::function<Value(Evaluator&, Arguments)> call) {
  return Value(
      std::make_shared<const Function>(Function{std::move(name), std::move(call), depth + 1}));
}

Value DictMethod(const Value& object, const std::string& name) {
  if (name == "get") {
    return BindMethod(name, object.Depth(), [object](Evaluator& e, Arguments arguments) {
      BoundArguments read(e, "get", std::move(arguments), {"key", "default"});
      const Value* const found = object.AsDict()->Find(read[0]);
      if (found != nullptr) return *found;
      return read.Has(1) ? read[1] : Value::Of(None());
    });
  }
  if (name != "items" && name != "keys" && name != "values" && name != "copy") return Value();
  return BindMethod(name, object.Depth(), [object, name](Evaluator& e, Arguments arguments) {
    BoundArguments read(e, name, std::move(arguments), {});
    if (name == "copy") return object;
    std::vector<Value> out;
    for (const auto& [key, value] : object.AsDict()->items) {
      out.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : e.Items({key, value}, ListKind::kTuple));
    }
    return e.Items(std::move(out), ListKind::kView);
  });
}

Value ListMethod(const Value& object, const std::string& name) {
  if (name != "index" && name != "count") return Value();
  return BindMethod(name, object.Depth(), [object, name](Evaluator& e, Arguments arguments) {
    BoundArguments read(e, name, std::move(arguments), {"value"});
    int64_t n = 0, at = 0;
    for (const Value& item : e.Iterate(object)) {
      if (!e.WorkOn(read[0])) return Value();
      if (Equal(item, read[0])) {
        if (name == "index") return Value::Of(at);
        ++n;
      }
      ++at;
    }
    return name == "count" ? Value::Of(n) : e.Fail("the value is not in the list");
  });
}

Value LoopField(const Loop& loop, const std::shared_ptr<Loop>& shared, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.length);
  if (name == "index") return Value::Of(index + 1);
  if (name == "index0") return Value::Of(index);
  if (name == "revindex") return Value::Of(length - index);
  if (name == "revindex0") return Value::Of(length - index - 1);
  if (name == "first") return Value::Of(index == 0);
  if (name == "last") return Value::Of(index + 1 == length);
  if (name == "length") return Value::Of(length);
  if (name == "depth") return Value::Of(static_cast<int64_t>(loop.depth));
  if (name == "depth0") return Value::Of(static_cast<int64_t>(loop.depth - 1));
  if (name == "previtem") {
    return loop.items != nullptr && index > 0
               ? (*loop.items)[loop.index - 1]
               : Value::Undefined_("there is no previous item, which");
  }
  if (name == "nextitem") {
    return loop.items != nullptr && index + 1 < length
               ? (*loop.items)[loop.index + 1]
               : Value::Undefined_("there is no next item, which");
  }
  if (name == "cycle") {
    return BindMethod(name, 0, [shared](Evaluator& e, Arguments arguments) {
      if (arguments.positional.empty()) return e.Fail("no items for cycling given");
      return arguments.positional[shared->index % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return BindMethod(name, 0, [shared](Evaluator& e, Arguments arguments) {
      // A loop that has ended holds no values, so that it cannot hold itself.
      if (shared->items == nullptr) return e.Fail("loop.changed() after the loop");
      for (const Value& value : arguments.positional) e.WorkOn(value);
      const bool same = shared->changed_before && e.ok() &&
                        std::equal(arguments.positional.begin(), arguments.positional.end(),
                                   shared->last_changed.begin(), shared->last_changed.end(), Equal);
      shared->changed_before = true;
      shared->last_changed = std::move(arguments.positional);
      return Value::Of(!same);
    });
  }
  return Value();
}

}  // namespace

Value Evaluator::Method(const Value& object, const std::string& name) {
  if (const std::shared_ptr<Loop> loop = object.AsLoop()) return LoopField(*loop, loop, name);
  if (object.AsString() != nullptr) {
    const auto found = StringMethods().find(name);
    if (found == StringMethods().end()) return Value();
    const StringMethod method = found->second;
    return BindMethod(name, 0, [object, method](Evaluator& e, Arguments arguments) {
      return method(e, *object.AsString(), std::move(arguments));
    });
  }
  if (object.AsDict() != nullptr) return DictMethod(object, name);
  const List* const list = object.AsList();
  if (list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple)) {
    return ListMethod(object, name);
  }
  return Value();
}

}  // namespace espalier::jinja
