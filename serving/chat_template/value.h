// Template values: the Python types that chat templates use. Immutable except for namespaces, as in
// Jinja2's immutable sandbox.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier::jinja {

class Value;
class Evaluator;

struct Undefined {
  std::shared_ptr<const std::string> what;  // the name that was looked up, for error messages
};
struct None {};

// A generator can be iterated once and has no length. A view is the result of dict.items() and so
// on.
enum class ListKind { kList, kTuple, kGenerator, kView };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  mutable bool consumed = false;  // of a generator
  int depth = 1;                  // nesting of lists and mappings
  int64_t weight = 1;             // see Value::Weight
};

// In insertion order. Keys are of any immutable type, usually strings.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::map<std::string, size_t> strings;  // index of each string key
  int depth = 1;
  int64_t weight = 1;

  const Value* Find(const Value& key) const;
  void Set(Value key, Value value);
};

struct Namespace {
  std::map<std::string, Value> fields;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Any callable; it reports errors to the evaluator.
struct Function {
  std::string name;
  std::function<Value(Evaluator&, Arguments)> call;
  int depth = 0;  // 1 + the depth of the value that a bound method holds
};

struct Loop;  // the variable `loop`, see evaluator.h

class Value {
 public:
  using StringPtr = std::shared_ptr<const std::string>;
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, StringPtr, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Function>, std::shared_ptr<Loop>>;

  Value() = default;
  Value(Data data) : data_(std::move(data)) {}  // NOLINT: implicit on purpose
  static Value Of(None none) { return Value(Data(none)); }
  static Value Of(bool value) { return Value(Data(value)); }
  static Value Of(int64_t value) { return Value(Data(value)); }
  static Value Of(double value) { return Value(Data(value)); }
  static Value Of(std::string text) {
    return Value(Data(std::make_shared<const std::string>(std::move(text))));
  }
  static Value Of(std::vector<Value> items, ListKind kind = ListKind::kList);
  static Value Of(Dict dict);
  static Value Undefined_(std::string what) {
    return Value(Data(Undefined{std::make_shared<const std::string>(std::move(what))}));
  }

  bool IsUndefined() const { return std::holds_alternative<Undefined>(data_); }
  bool IsNone() const { return std::holds_alternative<None>(data_); }
  bool IsBool() const { return std::holds_alternative<bool>(data_); }
  bool IsInt() const { return std::holds_alternative<int64_t>(data_); }
  bool IsFloat() const { return std::holds_alternative<double>(data_); }
  bool IsNumber() const { return IsBool() || IsInt() || IsFloat(); }

  // Null if the value has another type.
  const std::string* AsString() const {
    const auto* p = std::get_if<StringPtr>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  const List* AsList() const {
    const auto* p = std::get_if<std::shared_ptr<const List>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  const Dict* AsDict() const {
    const auto* p = std::get_if<std::shared_ptr<const Dict>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  Namespace* AsNamespace() const {
    const auto* p = std::get_if<std::shared_ptr<Namespace>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  const Function* AsFunction() const {
    const auto* p = std::get_if<std::shared_ptr<const Function>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  std::shared_ptr<Loop> AsLoop() const {
    const auto* p = std::get_if<std::shared_ptr<Loop>>(&data_);
    return p == nullptr ? nullptr : *p;
  }
  // REQUIRES: IsBool or IsInt; IsNumber for Number.
  int64_t Int() const { return IsBool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double Number() const { return IsFloat() ? std::get<double>(data_) : static_cast<double>(Int()); }

  // Nesting of lists, mappings and their methods; 0 for other values. Bounds recursion.
  int Depth() const {
    if (const List* list = AsList()) return list->depth;
    if (const Dict* dict = AsDict()) return dict->depth;
    const Function* function = AsFunction();
    return function == nullptr ? 0 : function->depth;
  }
  // Approximate cost of printing or comparing: the bytes of all strings and values inside, counted
  // once per occurrence even if they share memory.
  int64_t Weight() const {
    if (const List* list = AsList()) return list->weight;
    if (const Dict* dict = AsDict()) return dict->weight;
    const std::string* text = AsString();
    return text == nullptr ? 8 : static_cast<int64_t>(text->size()) + 8;
  }
  bool Truth() const;
  // Python's name of the type.
  std::string TypeName() const;
  const Data& data() const { return data_; }

 private:
  Data data_;
};

// Python's ==.
bool Equal(const Value& a, const Value& b);
// Python's <. Returns nullopt if the types are not ordered.
std::optional<bool> Less(const Value& a, const Value& b);

// Appends Python's str() and repr().
void AppendStr(const Value& value, std::string* out);
void AppendRepr(const Value& value, std::string* out);
std::string Str(const Value& value);
// repr() of a float: the shortest text that reads back as the same value.
std::string FloatRepr(double value);

// Python's json.dumps with ensure_ascii=False. `indent` < 0: on one line. Returns an error for
// values that JSON cannot represent.
struct JsonStyle {
  int indent = -1;
  bool sort_keys = false;
  bool ensure_ascii = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style);

// Returns InvalidArgument for integers beyond 64 bits and for nesting deeper than 100 levels.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace espalier::jinja
