// A JSON schema's rules, in the making: what json_schema.cc is made of. One source file for each
// type of values.
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

// Errors are kept: after the first one, what is returned means nothing, and Build returns it.
class JsonSchemaConverter {
 public:
  using Json = nlohmann::ordered_json;

  JsonSchemaConverter(const Json& root, GrammarBudget* budget);  // both outlive the builder

  absl::StatusOr<Grammar> Build();

 private:
  // json_schema_converter.cc
  void Fail(absl::string_view place, absl::string_view what);
  void Spend(int64_t parts);
  void SetRule(const std::string& name, Expression body);
  std::string NewRule(Expression body);
  // The texts as rules whose names begin with `kind`.
  Expression Rules(const Dfa& texts, absl::string_view kind,
                   const std::function<Expression(const CodePoints&)>& form);
  // Every key must be one of these or an annotation.
  void RejectOtherKeywords(const Json& schema, const std::string& place, const std::set<std::string>& known);
  // A count from 0 on, or `fallback` if it is not given.
  int Count(const Json& schema, const char* key, int fallback, const std::string& place);
  Expression Schema(const Json& schema, const std::string& place, int depth);
  Expression Untyped(const Json& schema, const std::string& place, int depth);
  Expression OfSeveralTypes(const Json& schema, const Json& types, const std::string& place,
                            int depth);
  Expression Typed(const Json& schema, const std::string& type, const std::string& place,
                   int depth);
  Expression Enumeration(const Json& schema, const std::string& place);
  // The type whose keywords a schema without "type" has; "": those of none.
  static std::string ImpliedType(const Json& schema);
  // Without the keywords of other types.
  static Json OnlyOfType(const Json& schema, const std::string& type);
  // The values of "const" and "enum" that the type allows.
  std::vector<Json> Enumerated(const Json& schema, const std::string& place);

  // json_schema_combinators.cc
  // A JSON pointer of this document ("#", "#/$defs/name"); null if there is no such place.
  const Json* Find(const std::string& pointer) const;
  // The schema that "$ref" names, after as many of them as there are, with what stands beside them.
  Json Resolved(const Json& schema, const std::string& place);
  Expression Reference(const Json& schema, const std::string& place);
  Expression AllOf(const Json& schema, const std::string& place, int depth);
  Expression AnyOf(const Json& schema, const std::string& key, const std::string& place, int depth);
  // The same without a copy, where it is the document's or, without "$ref", `schema` itself.
  std::shared_ptr<const Json> ResolvedThere(const Json& schema, const std::string& place);
  // All of them besides require the property `tag`, if it is a string.
  void CheckExclusive(const std::vector<std::shared_ptr<const Json>>& branches, const Json& tag,
                      const std::string& place);
  // Both schemas; {} after an error.
  Json Merged(const Json& a, const Json& b, const std::string& place);
  Json Charged(absl::StatusOr<Json> merged, const Json& a, const Json& b, const std::string& place);
  // A call of the rule of a schema that is nowhere in the document; equal ones have one rule.
  Expression SharedRule(const Json& schema, const std::string& place);

  // json_schema_conditional.cc
  // Schemas that together accept what this one does not; nullopt after an
  // error.
  std::optional<std::vector<Json>> Negated(const Json& schema, const std::string& place);
  // As Merged, and nullopt, without an error, if there is no value that both
  // accept.
  std::optional<Json> TryMerged(const Json& a, const Json& b, const std::string& place);
  Expression OneOfThese(const std::vector<Json>& schemas, const std::string& place);
  Expression Conditional(const Json& schema, const std::string& place);
  Expression Not(const Json& schema, const std::string& place);
  // {"not": {"enum": [...]}} and what stands beside it.
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
  // Those texts of `numbers` that "multipleOf" accepts.
  Expression Multiples(const Json& schema, Expression numbers, const std::string& place);

  // json_schema_array.cc
  struct Items {
    Json prefix, rest;  // schemas; of the rest false: there is none
    std::string prefix_place, rest_place;
    int least = 0, most = -1;  // of all; -1: any number
  };
  Expression Array(const Json& schema, const std::string& place, int depth);
  // What "minItems" and the like say; nullopt after an error.
  std::optional<Items> ItemsOf(const Json& schema, const std::string& place);

  // json_schema_contains_unique.cc
  // Arrays of which "uniqueItems" and "contains" speak.
  Expression Unique(const Items& items, const std::string& place);
  Expression Counted(const Json& schema, const Items& items, const std::string& place);

  // json_schema_object.cc
  struct Member {
    std::string pair;  // the rule of "name": value and the space behind it
    bool required;
  };
  struct Counts {
    int least = 0, most = -1;  // of properties; -1: any number
  };
  Expression Object(const Json& schema, const std::string& place, int depth);
  // The rules of pairs of a key without a name in the schema and its value.
  std::vector<Expression> OtherPairs(const Json& schema, const Json& additional,
                                     const std::vector<std::string>& names,
                                     const std::string& place, int depth);
  // Fails for names of properties that "propertyNames" or "patternProperties" speak of.
  void CheckNames(const Json& schema, const std::vector<std::string>& names,
                  const std::string& place);
  // What "propertyNames" allows.
  Dfa KeyTexts(const Json& schema, const std::string& place);
  Expression KeyExcept(const std::vector<std::string>& names, const std::string& place);
  std::string Pair(Expression key, Expression value);
  // Properties without a name, behind `count` others; nullopt: that many there cannot be.
  std::optional<Expression> Others(const std::string& pair, int count, const Counts& counts);
  // The members in their order, then others; the rule that follows "{".
  std::string Members(const std::vector<Member>& members, const std::string& other,
                      const Counts& counts, const std::string& place);

  const Json& root_;
  GrammarBudget& budget_;
  Grammar grammar_;
  std::set<std::string> referenced_;
  std::vector<std::string> pending_refs_;  // of "$ref"
  struct PendingSchema {
    std::string rule, place;
    Json schema;
  };
  std::map<std::string, std::string> shared_rules_;  // rules by the texts of the schemas
  std::vector<PendingSchema> pending_schemas_;
  int schemas_ = 0;
  int counter_ = 0;
  absl::Status status_;
};

// As JSON, in which equal values have equal texts.
std::string JsonText(const nlohmann::ordered_json& value);
// JSON's own types, with "integer" for those numbers.
const char* JsonTypeOf(const nlohmann::ordered_json& value);

}  // namespace espalier
