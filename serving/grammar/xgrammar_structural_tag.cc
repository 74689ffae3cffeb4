#include "serving/grammar/xgrammar_structural_tag.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "serving/grammar/gbnf.h"
#include "serving/grammar/json_schema.h"
#include "serving/grammar/regex.h"
#include "serving/grammar/structural_tag.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr int kMaxFormats = 4096;
constexpr size_t kMaxXgrammarTagBytes = 1024;
constexpr int kMaxTimes = 100'000;  // counts of "repeat", and of characters

class FormatBuilder {
 public:
  explicit FormatBuilder(GrammarBudget* budget) : budget_(budget) {}

  absl::StatusOr<Grammar> Build(const Json& format) {
    Expression root = Format({format, "format", {}});
    if (!status_.ok()) return status_;
    grammar_.rules["root"] = std::move(root);
    return std::move(grammar_);
  }

 private:
  struct Node {
    const Json& json;
    std::string place;
    Texts ends;  // ends of the enclosing tag

    Node Inner(const Json& inner, absl::string_view name) const {
      return {inner, absl::StrCat(place, name), ends};
    }
    Node Inner(const Json& list, absl::string_view name, size_t i) const {
      return {list[i], absl::StrCat(place, name, "[", i, "]"), ends};
    }
  };

  struct Kind {
    const char* type;
    std::vector<const char*> fields;
    Expression (FormatBuilder::*make)(const Node& node);
  };

  static const std::vector<Kind>& Kinds() {
    using B = FormatBuilder;
    static const auto* const kinds = new std::vector<Kind>{
        {"const_string", {"value"}, &B::ConstString},
        {"json_schema", {"json_schema", "style"}, &B::Schema},
        {"grammar", {"grammar"}, &B::Gbnf},
        {"regex", {"pattern"}, &B::Regex},
        {"any_text", {"excludes", "max_chars"}, &B::AnyText},
        {"sequence", {"elements"}, &B::InOrder},
        {"or", {"elements"}, &B::OneOfThem},
        {"optional", {"content"}, &B::Times<0, 1>},
        {"plus", {"content"}, &B::Times<1, -1>},
        {"star", {"content"}, &B::Times<0, -1>},
        {"repeat", {"content", "min", "max"}, &B::Repeated},
        {"tag", {"begin", "content", "end"}, &B::Tag},
        {"triggered_tags",
         {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"},
         &B::TriggeredTags},
        {"tags_with_separator",
         {"tags", "separator", "at_least_one", "stop_after_first"},
         &B::SeparatedTags},
    };
    return *kinds;
  }

  Expression Fail(const Node& node, absl::string_view what) {
    if (status_.ok()) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat("structural tag: ", node.place, ": ", what));
    }
    return {};
  }

  Expression Format(const Node& node) {
    if (!status_.ok()) return {};
    if (!node.json.is_object()) return Fail(node, "it must be an object");
    if (++formats_ > kMaxFormats) {
      return Fail(node, absl::StrCat("there are more than ", kMaxFormats, " formats"));
    }
    const std::string type = Text(node, "type");
    if (!status_.ok()) return {};
    for (const Kind& kind : Kinds()) {
      if (type != kind.type) continue;
      for (const auto& [key, value] : node.json.items()) {
        const bool known =
            key == "type" || std::any_of(kind.fields.begin(), kind.fields.end(),
                                         [&key = key](const char* field) { return key == field; });
        if (!known) {
          return Fail(node, absl::StrCat("field '", key.substr(0, 100), "' of a format of type '",
                                         type, "' is not supported"));
        }
      }
      return (this->*kind.make)(node);
    }
    std::string known;
    for (const Kind& kind : Kinds()) absl::StrAppend(&known, known.empty() ? "" : ", ", kind.type);
    return Fail(node, absl::StrCat("type '", type.substr(0, 100),
                                   "' is not supported; the types are ", known));
  }

  // Field access. An absent field fails or takes the default.

  const Json* Find(const Node& node, const char* name) {
    const auto found = node.json.find(name);
    if (found != node.json.end()) return &*found;
    Fail(node, absl::StrCat("it must have a field '", name, "'"));
    return nullptr;
  }

  std::string Text(const Node& node, const char* name) {
    const Json* value = Find(node, name);
    if (value == nullptr) return "";
    if (!value->is_string()) Fail(node, absl::StrCat("field '", name, "' must be a string"));
    return value->is_string() ? value->get<std::string>() : "";
  }

  std::string BoundedText(const Node& node, const char* name) {
    std::string mark = Text(node, name);
    if (mark.size() > kMaxXgrammarTagBytes) {
      Fail(node, absl::StrCat("field '", name, "' has more than ", kMaxXgrammarTagBytes, " bytes"));
    }
    return mark;
  }

  // A list of non-empty tags.
  Texts BoundedTexts(const Node& node, const char* name) {
    if (!node.json.contains(name)) return {};
    const Json& list = node.json[name];
    Texts marks;
    bool good = list.is_array() && list.size() <= kMaxFormats;
    for (size_t i = 0; good && i < list.size(); ++i) {
      good = list[i].is_string() && list[i] != "" &&
             list[i].get_ref<const std::string&>().size() <= kMaxXgrammarTagBytes;
      if (good) marks.push_back(list[i].get<std::string>());
    }
    if (!good) {
      Fail(node, absl::StrCat("field '", name, "' must be a list of strings of 1 to ",
                              kMaxXgrammarTagBytes, " bytes"));
    }
    return marks;
  }

  bool Flag(const Node& node, const char* name) {
    if (!node.json.contains(name)) return false;
    const Json& value = node.json[name];
    if (!value.is_boolean()) Fail(node, absl::StrCat("field '", name, "' must be true or false"));
    return value == true;
  }

  int Count(const Node& node, const char* name, int least) {
    const Json* value = Find(node, name);
    if (value == nullptr) return least;
    if (!value->is_number_integer() || *value < least || *value > kMaxTimes) {
      Fail(node, absl::StrCat("field '", name, "' must be a whole number from ", least, " to ",
                              kMaxTimes));
      return least;
    }
    return value->get<int>();
  }

  // The formats of a non-empty list.
  std::vector<Expression> List(const Node& node, const char* name) {
    std::vector<Expression> formats;
    const Json* list = Find(node, name);
    if (list == nullptr) return formats;
    if (!list->is_array() || list->empty()) {
      Fail(node, absl::StrCat("field '", name, "' must be a list of at least one format"));
      return formats;
    }
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      formats.push_back(Format(node.Inner(*list, absl::StrCat(".", name), i)));
    }
    return formats;
  }

  Expression Content(const Node& node) {
    const Json* content = Find(node, "content");
    return content == nullptr ? Expression() : Format(node.Inner(*content, ".content"));
  }

  // Makes an expression that is used several times a rule.
  Expression NewRule(Expression body) {
    const std::string name = absl::StrCat("format ", rules_++);
    grammar_.rules[name] = std::move(body);
    return RuleCall(name);
  }

  Expression Adopted(const Node& node, absl::StatusOr<Grammar> grammar, bool share_json) {
    if (!grammar.ok()) return Fail(node, grammar.status().message());
    return ImportRules(*std::move(grammar), absl::StrCat("format ", rules_++, " "), share_json,
                       &grammar_);
  }

  // Free text of at most `most` characters; -1: unbounded.
  Expression FreeText(const Node& node, Texts excluded, int most) {
    excluded.insert(excluded.end(), node.ends.begin(), node.ends.end());
    std::sort(excluded.begin(), excluded.end());
    excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
    const auto [known, added] = free_texts_.try_emplace({excluded, most});
    if (!added || !status_.ok()) return known->second;
    absl::StatusOr<Expression> text =
        TextExcluding(excluded, absl::StrCat("format ", rules_++), &grammar_, budget_, most);
    if (!text.ok()) return Fail(node, text.status().message());
    return known->second = *std::move(text);
  }

  // One function per type.

  Expression ConstString(const Node& node) { return Literal(Text(node, "value")); }

  Expression Schema(const Node& node) {
    if (node.json.contains("style") && node.json["style"] != "json") {
      return Fail(node, "the style of a schema must be 'json' alone");
    }
    const Json* schema = Find(node, "json_schema");
    if (schema == nullptr) return {};
    return Adopted(node, ParseJsonSchema(schema->dump(), budget_), /*share_json=*/true);
  }

  // No shared rules: a user's grammar may define json-string differently.
  Expression Gbnf(const Node& node) {
    return Adopted(node, ParseGbnf(Text(node, "grammar"), budget_), /*share_json=*/false);
  }

  Expression Regex(const Node& node) {
    absl::StatusOr<Expression> expression = ParseRegex(Text(node, "pattern"), budget_);
    if (!expression.ok()) return Fail(node, expression.status().message());
    return *std::move(expression);
  }

  Expression AnyText(const Node& node) {
    const bool limited = node.json.contains("max_chars") && !node.json["max_chars"].is_null();
    return FreeText(node, BoundedTexts(node, "excludes"),
                    limited ? Count(node, "max_chars", 0) : -1);
  }

  Expression InOrder(const Node& node) { return Sequence(List(node, "elements")); }
  Expression OneOfThem(const Node& node) { return Choice(List(node, "elements")); }

  template <int kLeast, int kMost>
  Expression Times(const Node& node) {
    return Repeat(NewRule(Content(node)), kLeast, kMost);
  }

  Expression Repeated(const Node& node) {
    const int least = Count(node, "min", 0), most = Count(node, "max", -1);
    if (most >= 0 && most < least) return Fail(node, "'max' is less than 'min'");
    return Repeat(NewRule(Content(node)), least, most);
  }

  Expression Tag(const Node& node) {
    Expression begin = Literal(BoundedText(node, "begin"));
    const Json* end = Find(node, "end");
    if (end == nullptr) return {};
    Texts ends;
    if (!end->is_array()) {
      ends = {BoundedText(node, "end")};
    } else if (!end->empty()) {
      ends = BoundedTexts(node, "end");
    } else {
      Fail(node, "field 'end' is an empty list");
    }
    Node inner = node;
    std::vector<Expression> marks;
    for (const std::string& mark : ends) marks.push_back(Literal(mark));
    // A tag with an empty end is ended by the enclosing tag.
    if (ends != Texts{""}) inner.ends = std::move(ends);
    Expression content = Content(inner);
    if (!status_.ok()) return {};
    return Sequence({std::move(begin), std::move(content), Choice(std::move(marks))});
  }

  Expression AnyTag(const Node& node) {
    const Json* list = Find(node, "tags");
    if (list == nullptr) return {};
    for (size_t i = 0; list->is_array() && i < list->size(); ++i) {
      const Json& tag = (*list)[i];
      if (!tag.is_object() || tag.value("type", Json()) != "tag") {
        return Fail(node.Inner(*list, ".tags", i), "it must be a format of type 'tag'");
      }
    }
    // The enclosing tag's ends do not apply inside tags that have ends of their own.
    std::vector<Expression> tags = List(node, "tags");
    return status_.ok() ? NewRule(Choice(std::move(tags))) : Expression();
  }

  Expression TriggeredTags(const Node& node) {
    const Texts triggers = BoundedTexts(node, "triggers");
    if (triggers.empty()) return Fail(node, "field 'triggers' must name at least one");
    const Expression tag = AnyTag(node);
    if (!status_.ok()) return {};
    for (size_t i = 0; i < node.json["tags"].size(); ++i) {
      const std::string begin = node.json["tags"][i]["begin"].get<std::string>();
      const auto starts = [&](const std::string& t) { return absl::StartsWith(begin, t); };
      if (std::none_of(triggers.begin(), triggers.end(), starts)) {
        return Fail(
            node.Inner(node.json["tags"], ".tags", i),
            absl::StrCat("it begins with '", begin.substr(0, 40), "', which no trigger does"));
      }
    }
    const bool needed = Flag(node, "at_least_one"), once = Flag(node, "stop_after_first");
    Texts excluded = BoundedTexts(node, "excludes");
    excluded.insert(excluded.end(), triggers.begin(), triggers.end());
    const Expression text = FreeText(node, std::move(excluded), -1);
    if (!status_.ok()) return {};
    if (once) return needed ? tag : Sequence({text, Optional(tag)});
    const Expression more = Repeat(NewRule(Sequence({tag, text})), 0);
    return needed ? Sequence({tag, text, more}) : Sequence({text, more});
  }

  Expression SeparatedTags(const Node& node) {
    const Expression tag = AnyTag(node);
    const Expression separator = Literal(BoundedText(node, "separator"));
    const bool needed = Flag(node, "at_least_one"), once = Flag(node, "stop_after_first");
    if (!status_.ok()) return {};
    Expression tags = once ? tag : Sequence({tag, Repeat(NewRule(Sequence({separator, tag})), 0)});
    return needed ? tags : Optional(NewRule(std::move(tags)));
  }

  GrammarBudget* budget_;
  Grammar grammar_;
  absl::Status status_;
  int formats_ = 0, rules_ = 0;
  std::map<std::pair<Texts, int>, Expression> free_texts_;
};

}  // namespace

absl::StatusOr<Grammar> ParseXgrammarStructuralTag(absl::string_view format,
                                                   GrammarBudget* budget) {
  absl::StatusOr<Json> json = ParseBoundedJson<Json>(format, kRequestJson);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("structural tag: format ", json.status().message()));
  }
  return FormatBuilder(budget).Build(*json);
}

}  // namespace espalier
