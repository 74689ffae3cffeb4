// The values of a template: Python's, as far as chat templates use them. Immutable but for
// namespaces, as in Jinja2's immutable sandbox.
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
  std::shared_ptr<const std::string> what;  // what was looked for, for the error
};
struct None {};

// A generator ends after one pass and knows no length; a view is what dict.items() and the like
// give.
enum class ListKind { kList, kTuple, kGenerator, kView };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  mutable bool consumed = false;  // of a generator
  int depth = 1;                  // how deep lists and mappings are in each other
  int64_t weight = 1;             // see Value::Weight
};

// In order of insertion. Keys are of any immutable kind, most of them strings.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::map<std::string, size_t> strings;  // where string keys are
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

// Anything that can be called; errors go to the evaluator.
struct Function {
  std::string name;
  std::function<Value(Evaluator&, Arguments)> call;
  int depth = 0;  // of the value that it is a method of, and 1: it keeps that value
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
  Value(Data data) : data_(std::move(data)) {}  // NOLINT: values of all kinds are values
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

  // Null where the value is of another kind.
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
  // REQUIRES: IsBool or IsInt; IsNumber.
  int64_t Int() const { return IsBool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double Number() const { return IsFloat() ? std::get<double>(data_) : static_cast<double>(Int()); }

  // Of lists, mappings and their methods in each other; 0 of anything else. What is deep recurses
  // deep.
  int Depth() const {
    if (const List* list = AsList()) return list->depth;
    if (const Dict* dict = AsDict()) return dict->depth;
    const Function* function = AsFunction();
    return function == nullptr ? 0 : function->depth;
  }
  // About what printing or comparing costs: bytes of strings and values within, each as often as
  // it is there, though it may be in memory once.
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
// Python's <. Nothing if the types have no order.
std::optional<bool> Less(const Value& a, const Value& b);

// Appends Python's str() and repr().
void AppendStr(const Value& value, std::string* out);
void AppendRepr(const Value& value, std::string* out);
std::string Str(const Value& value);
// repr() of a float, which is the shortest text that reads back as it.
std::string FloatRepr(double value);

// Python's json.dumps with ensure_ascii=False. `indent` < 0: on one line. An error for what JSON
// cannot say.
struct JsonStyle {
  int indent = -1;
  bool sort_keys = false;
  bool ensure_ascii = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style);

// InvalidArgument for integers beyond 64 bits and for what is nested deeper than 100 levels.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace espalier::jinja
