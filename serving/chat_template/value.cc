#include "serving/chat_template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "serving/tokenizer/unicode.h"

namespace espalier::jinja {
namespace {

// Nesting bound of repr() and json.dumps; templates that work stay far below.
constexpr int kMaxDepth = 100;
constexpr int64_t kMaxWeight = int64_t{1} << 60;  // cap of weights, against overflow

void AppendStringRepr(const std::string& text, std::string* out) {
  const bool has_single = absl::StrContains(text, "'");
  const char quote = has_single && !absl::StrContains(text, "\"") ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(text, &at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<uint32_t>(c));
    } else if (c > 0xA0 && c != 0x3000 && !IsWhitespace(c) && !IsControlOrPrivate(c)) {
      out->append(text, begin, at - begin);
    } else if (c < 0x80) {
      out->push_back(static_cast<char>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      absl::StrAppendFormat(out, "\\U%08x", static_cast<uint32_t>(c));
    }
  }
  out->push_back(quote);
}

void AppendAnyRepr(const Value& value, int depth, std::string* out);

void AppendItems(const std::vector<Value>& items, int depth, std::string* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out->append(", ");
    AppendAnyRepr(items[i], depth, out);
  }
}

void AppendListRepr(const List& list, int depth, std::string* out) {
  switch (list.kind) {
    case ListKind::kList:
      out->push_back('[');
      AppendItems(list.items, depth, out);
      out->push_back(']');
      return;
    case ListKind::kTuple:
      out->push_back('(');
      AppendItems(list.items, depth, out);
      out->append(list.items.size() == 1 ? ",)" : ")");
      return;
    case ListKind::kGenerator:
      out->append("<generator object>");
      return;
    case ListKind::kView:
      out->append("dict_view([");
      AppendItems(list.items, depth, out);
      out->append("])");
      return;
  }
}

void AppendAnyRepr(const Value& value, int depth, std::string* out) {
  if (depth > kMaxDepth) {
    out->append("...");
    return;
  }
  if (const std::string* text = value.AsString()) return AppendStringRepr(*text, out);
  if (const List* list = value.AsList()) return AppendListRepr(*list, depth + 1, out);
  if (const Dict* dict = value.AsDict()) {
    out->push_back('{');
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out->append(", ");
      AppendAnyRepr(dict->items[i].first, depth + 1, out);
      out->append(": ");
      AppendAnyRepr(dict->items[i].second, depth + 1, out);
    }
    out->push_back('}');
    return;
  }
  if (value.IsUndefined()) {
    out->append("Undefined");
    return;
  }
  AppendStr(value, out);
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  absl::StatusOr<std::string> Write(const Value& value) {
    Append(value, 0);
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  void NewLine(int depth) {
    if (style_.indent < 0) return;
    out_.push_back('\n');
    out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(depth), ' ');
  }

  void String(absl::string_view text) {
    out_.push_back('"');
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = NextCodePoint(text, &at);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        default:
          if (c < 0x20 || (c > 0x7E && style_.ensure_ascii && c < 0x10000)) {
            absl::StrAppendFormat(&out_, "\\u%04x", static_cast<uint32_t>(c));
          } else if (c >= 0x10000 && style_.ensure_ascii) {
            const uint32_t v = static_cast<uint32_t>(c) - 0x10000;
            absl::StrAppendFormat(&out_, "\\u%04x\\u%04x", 0xD800 + (v >> 10),
                                  0xDC00 + (v & 0x3FF));
          } else {
            absl::StrAppend(&out_, text.substr(begin, at - begin));
          }
      }
    }
    out_.push_back('"');
  }

  void Append(const Value& value, int depth) {
    if (depth > kMaxDepth) {
      status_ = absl::InvalidArgumentError("tojson: nested too deep");
    }
    if (!status_.ok()) return;
    if (value.IsNone()) {
      out_ += "null";
    } else if (value.IsBool()) {
      out_ += value.Truth() ? "true" : "false";
    } else if (value.IsInt()) {
      absl::StrAppend(&out_, value.Int());
    } else if (value.IsFloat()) {
      out_ += Number(value.Number());
    } else if (const std::string* text = value.AsString()) {
      String(*text);
    } else if (const List* list = value.AsList(); list != nullptr &&
                                                  list->kind != ListKind::kGenerator &&
                                                  list->kind != ListKind::kView) {
      AppendList(*list, depth);
    } else if (const Dict* dict = value.AsDict()) {
      AppendDict(*dict, depth);
    } else {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("tojson: a value of type ", value.TypeName(), " is no JSON"));
    }
  }

  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(value);
  }

  void AppendList(const List& list, int depth) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_.push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(depth + 1);
      Append(list.items[i], depth + 1);
    }
    NewLine(depth);
    out_.push_back(']');
  }

  void AppendDict(const Dict& dict, int depth) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return Less(a->first, b->first).value_or(false);
      });
    }
    out_.push_back('{');
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      NewLine(depth + 1);
      const Value& key = item->first;
      if (const std::string* text = key.AsString()) {
        String(*text);
      } else if (key.IsNumber() || key.IsNone()) {
        out_.push_back('"');
        Append(key, depth);
        out_.push_back('"');
      } else {
        status_ = absl::InvalidArgumentError(
            absl::StrCat("tojson: a key of type ", key.TypeName(), " is no JSON"));
        return;
      }
      out_ += style_.key_separator;
      Append(item->second, depth + 1);
    }
    NewLine(depth);
    out_.push_back('}');
  }

  const JsonStyle& style_;
  std::string out_;
  absl::Status status_;
};

}  // namespace

const Value* Dict::Find(const Value& key) const {
  if (const std::string* text = key.AsString()) {
    const auto found = strings.find(*text);
    return found == strings.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [own, value] : items) {
    if (Equal(own, key)) return &value;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  if (const Value* old = Find(key)) {
    const_cast<Value&>(*old) = std::move(value);
    return;
  }
  if (const std::string* text = key.AsString()) strings.emplace(*text, items.size());
  items.emplace_back(std::move(key), std::move(value));
}

Value Value::Of(std::vector<Value> items, ListKind kind) {
  List list{std::move(items), kind};
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, item.Depth() + 1);
    list.weight = std::min(list.weight + item.Weight(), kMaxWeight);
  }
  return Value(Data(std::make_shared<const List>(std::move(list))));
}

Value Value::Of(Dict dict) {
  for (const auto& [key, value] : dict.items) {
    dict.depth = std::max({dict.depth, key.Depth() + 1, value.Depth() + 1});
    dict.weight = std::min(dict.weight + key.Weight() + value.Weight(), kMaxWeight);
  }
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

bool Value::Truth() const {
  if (IsUndefined() || IsNone()) return false;
  if (IsFloat()) return Number() != 0;
  if (IsBool() || IsInt()) return Int() != 0;
  if (const std::string* text = AsString()) return !text->empty();
  if (const List* list = AsList())
    return list->kind == ListKind::kGenerator || !list->items.empty();
  if (const Dict* dict = AsDict()) return !dict->items.empty();
  return true;
}

std::string Value::TypeName() const {
  if (IsUndefined()) return "Undefined";
  if (IsNone()) return "NoneType";
  if (IsBool()) return "bool";
  if (IsInt()) return "int";
  if (IsFloat()) return "float";
  if (AsString() != nullptr) return "str";
  if (const List* list = AsList()) {
    switch (list->kind) {
      case ListKind::kList:
        return "list";
      case ListKind::kTuple:
        return "tuple";
      case ListKind::kGenerator:
        return "generator";
      case ListKind::kView:
        return "dict view";
    }
  }
  if (AsDict() != nullptr) return "dict";
  if (AsNamespace() != nullptr) return "Namespace";
  return AsFunction() != nullptr ? "function" : "LoopContext";
}

bool Equal(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return a.Number() == b.Number();
    return a.Int() == b.Int();
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.IsUndefined() || a.IsNone()) return true;
  if (const std::string* text = a.AsString()) return *text == *b.AsString();
  if (const List* list = a.AsList()) {
    const List* other = b.AsList();
    if (list == other) return true;
    return list->kind == other->kind && list->kind != ListKind::kGenerator &&
           list->items.size() == other->items.size() &&
           std::equal(list->items.begin(), list->items.end(), other->items.begin(), Equal);
  }
  if (const Dict* dict = a.AsDict()) {
    const Dict* other = b.AsDict();
    if (dict->items.size() != other->items.size()) return false;
    return std::all_of(dict->items.begin(), dict->items.end(), [other](const auto& item) {
      const Value* theirs = other->Find(item.first);
      return theirs != nullptr && Equal(item.second, *theirs);
    });
  }
  // Other types compare by identity.
  return a.AsNamespace() == b.AsNamespace() && a.AsFunction() == b.AsFunction() &&
         a.AsLoop() == b.AsLoop();
}

std::optional<bool> Less(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return a.Number() < b.Number();
    return a.Int() < b.Int();
  }
  if (a.AsString() != nullptr && b.AsString() != nullptr) return *a.AsString() < *b.AsString();
  const List* list = a.AsList();
  const List* other = b.AsList();
  if (list == nullptr || other == nullptr || list->kind != other->kind) return std::nullopt;
  for (size_t i = 0; i < list->items.size() && i < other->items.size(); ++i) {
    if (!Equal(list->items[i], other->items[i])) return Less(list->items[i], other->items[i]);
  }
  return list->items.size() < other->items.size();
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const absl::string_view text(digits, static_cast<size_t>(end.ptr - digits));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  // Python uses an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) {
    return absl::StrCat(text.substr(0, e), exponent < 0 ? "e-" : "e+",
                        std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  }
  char fixed[60];
  const auto fixed_end =
      std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string out(fixed, fixed_end.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void AppendStr(const Value& value, std::string* out) {
  if (const std::string* text = value.AsString()) {
    out->append(*text);
  } else if (value.IsUndefined()) {
  } else if (value.IsNone()) {
    out->append("None");
  } else if (value.IsBool()) {
    out->append(value.Truth() ? "True" : "False");
  } else if (value.IsInt()) {
    absl::StrAppend(out, value.Int());
  } else if (value.IsFloat()) {
    out->append(FloatRepr(value.Number()));
  } else if (const Function* function = value.AsFunction()) {
    absl::StrAppend(out, "<function ", function->name, ">");
  } else if (value.AsNamespace() != nullptr) {
    out->append("<Namespace>");
  } else if (value.AsLoop() != nullptr) {
    out->append("<LoopContext>");
  } else {
    AppendAnyRepr(value, 0, out);
  }
}

void AppendRepr(const Value& value, std::string* out) { AppendAnyRepr(value, 0, out); }

std::string Str(const Value& value) {
  std::string out;
  AppendStr(value, &out);
  return out;
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style) {
  return JsonWriter(style).Write(value);
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth) {
  using Json = nlohmann::ordered_json;
  if (depth > kMaxDepth) return absl::InvalidArgumentError("nested too deep");
  switch (json.type()) {
    case Json::value_t::null:
      return Value::Of(None());
    case Json::value_t::boolean:
      return Value::Of(json.get<bool>());
    case Json::value_t::number_unsigned:
      // As json.hpp reads larger integers.
      if (json.get<uint64_t>() > INT64_MAX) return Value::Of(json.get<double>());
      return Value::Of(static_cast<int64_t>(json.get<uint64_t>()));
    case Json::value_t::number_integer:
      return Value::Of(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Of(json.get<double>());
    case Json::value_t::string:
      return Value::Of(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) {
        absl::StatusOr<Value> value = FromJson(item, depth + 1);
        if (!value.ok()) return value.status();
        items.push_back(*std::move(value));
      }
      return Value::Of(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (auto item = json.begin(); item != json.end(); ++item) {
        absl::StatusOr<Value> value = FromJson(item.value(), depth + 1);
        if (!value.ok()) return value.status();
        dict.Set(Value::Of(item.key()), *std::move(value));
      }
      return Value::Of(std::move(dict));
    }
    default:
      return absl::InvalidArgumentError("binary data is no JSON");
  }
}

}  // namespace espalier::jinja
