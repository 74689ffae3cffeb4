// Converts a JSON schema to grammar rules; the implementation of json_schema.h. There is one source
// file per group of keywords.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/dfa.h"
#include "serving/grammar/grammar.h"
#include "serving/grammar/number_range.h"

namespace espalier {

// Errors are sticky: after the first one return values are meaningless, and Build returns it.
class JsonSchemaConverter {
 public:
  using Json = nlohmann::ordered_json;

  JsonSchemaConverter(const Json& root, GrammarBudget* budget);  // both must outlive the converter

  absl::StatusOr<Grammar> Build();

 private:
  // json_schema_converter.cc
  void Fail(absl::string_view place, absl::string_view what);
  void Spend(int64_t parts);
  void SetRule(const std::string& name, Expression body);
  std::string NewRule(Expression body);
  // Adds rules for the texts, with names that begin with `kind`.
  Expression Rules(const Dfa& texts, absl::string_view kind,
                   const std::function<Expression(const CodePoints&)>& form);
  // Fails if a key is neither among `known` nor an annotation.
  void RejectOtherKeywords(const Json& schema, const std::string& place,
                           const std::set<std::string>& known);
  // A non-negative count, or `fallback` if it is absent.
  int Count(const Json& schema, const char* key, int fallback, const std::string& place);
  Expression Schema(const Json& schema, const std::string& place, int depth);
  Expression Untyped(const Json& schema, const std::string& place, int depth);
  Expression OfSeveralTypes(const Json& schema, const Json& types, const std::string& place,
                            int depth);
  Expression Typed(const Json& schema, const std::string& type, const std::string& place,
                   int depth);
  Expression Enumeration(const Json& schema, const std::string& place);
  // The type whose keywords a schema without "type" has; "" if it has none.
  static std::string ImpliedType(const Json& schema);
  // Drops the keywords of other types.
  static Json OnlyOfType(const Json& schema, const std::string& type);
  // The values of "const" and "enum" that have the type.
  std::vector<Json> Enumerated(const Json& schema, const std::string& place);

  // json_schema_combinators.cc
  // Follows "$ref", repeatedly, and merges the keywords beside it.
  Json Resolved(const Json& schema, const std::string& place);
  Expression Reference(const Json& schema, const std::string& place);
  Expression AllOf(const Json& schema, const std::string& place, int depth);
  Expression AnyOf(const Json& schema, const std::string& key, const std::string& place, int depth);
  // As Resolved, but without a copy if the result is part of the document or `schema` itself.
  std::shared_ptr<const Json> ResolvedShared(const Json& schema, const std::string& place);
  // Fails unless the branches exclude each other. They may all require the property `tag`, a
  // string.
  void CheckExclusive(const std::vector<std::shared_ptr<const Json>>& branches, const Json& tag,
                      const std::string& place);
  // The conjunction of both schemas; {} after an error.
  Json Merged(const Json& a, const Json& b, const std::string& place);
  Json ChargeMerge(absl::StatusOr<Json> merged, const Json& a, const Json& b,
                   const std::string& place);
  // A call of the rule of a derived schema, one that is not in the document. Equal schemas share
  // it.
  Expression SharedRule(const Json& schema, const std::string& place);

  // json_schema_conditional.cc
  // Schemas that together accept what this one does not; nullopt after an error.
  std::optional<std::vector<Json>> Negated(const Json& schema, const std::string& place);
  // As Merged, but returns nullopt without an error if no value satisfies both.
  std::optional<Json> TryMerged(const Json& a, const Json& b, const std::string& place);
  Expression OneOfThese(const std::vector<Json>& schemas, const std::string& place);
  Expression Conditional(const Json& schema, const std::string& place);
  Expression Not(const Json& schema, const std::string& place);
  // {"not": {"enum": [...]}} and the keywords beside it.
  Expression Excluding(const Json& schema, const std::string& place);
  Expression Dependent(const Json& schema, const std::string& place);

  // json_schema_string.cc
  Expression String(const Json& schema, const std::string& place);
  // The regular expression of "pattern" or "format".
  std::optional<Expression> Pattern(const Json& schema, const char* key, const std::string& place);
  // The texts of a schema of strings.
  Dfa StringTexts(const Json& schema, const std::string& place);

  // json_schema_number.cc
  bool IntegerBound(const Json& schema, const char* key, const std::string& place, bool up,
                    int64_t* out);
  Expression Integer(const Json& schema, const std::string& place);
  std::optional<Bound> NumberBound(const Json& schema, bool low, const std::string& place);
  Expression Number(const Json& schema, const std::string& place);
  // The texts of `numbers` that satisfy "multipleOf".
  Expression Multiples(const Json& schema, Expression numbers, const std::string& place);

  // json_schema_array.cc
  struct Items {
    Json prefix, rest;  // schemas; `rest` is false if there are no others
    std::string prefix_place, rest_place;
    int least = 0, most = -1;  // of all items; -1: unbounded
  };
  Expression Array(const Json& schema, const std::string& place, int depth);
  // Reads "minItems", "prefixItems" and so on; nullopt after an error.
  std::optional<Items> ItemsOf(const Json& schema, const std::string& place);

  // json_schema_contains_unique.cc
  // Arrays with "uniqueItems" or "contains".
  Expression Unique(const Items& items, const std::string& place);
  Expression Counted(const Json& schema, const Items& items, const std::string& place);

  // json_schema_object.cc
  struct Member {
    std::string pair;  // rule of "name": value and trailing space
    bool required;
  };
  struct Counts {
    int least = 0, most = -1;  // of properties; -1: unbounded
  };
  Expression Object(const Json& schema, const std::string& place, int depth);
  // Rules of the key-value pairs whose key the schema does not name.
  std::vector<Expression> OtherPairs(const Json& schema, const Json& additional,
                                     const std::vector<std::string>& names,
                                     const std::string& place, int depth);
  // Fails for property names to which "propertyNames" or "patternProperties" apply.
  void CheckNames(const Json& schema, const std::vector<std::string>& names,
                  const std::string& place);
  // The keys that "propertyNames" allows.
  Dfa KeyTexts(const Json& schema, const std::string& place);
  Expression KeyExcept(const std::vector<std::string>& names, const std::string& place);
  std::string Pair(Expression key, Expression value);
  // Unnamed properties after `count` others; nullopt if there cannot be that many.
  std::optional<Expression> Others(const std::string& pair, int count, const Counts& counts);
  // The members in order, then others. Returns the rule that follows "{".
  std::string Members(const std::vector<Member>& members, const std::string& other,
                      const Counts& counts, const std::string& place);

  const Json& root_;
  GrammarBudget& budget_;
  Grammar grammar_;
  std::set<std::string> referenced_;
  std::vector<std::string> pending_refs_;  // targets of "$ref"
  struct PendingSchema {
    std::string rule, place;
    Json schema;
  };
  std::map<std::string, std::string> shared_rules_;  // rules by the text of the schema
  std::vector<PendingSchema> pending_schemas_;
  int schemas_ = 0;
  int counter_ = 0;
  absl::Status status_;
};

// Equal values have equal texts.
std::string JsonText(const nlohmann::ordered_json& value);
// JSON's type names, with "integer" for integral numbers.
const char* JsonTypeOf(const nlohmann::ordered_json& value);

}  // namespace espalier
