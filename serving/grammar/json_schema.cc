#include "serving/grammar/json_schema.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/json/bounded_json.h"
#include "serving/grammar/json_text.h"
#include "serving/grammar/schema_builder.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSchemaBytes = 1 << 20;
// Of the text; a schema nests less deep, see SchemaBuilder. Finding a key takes as long as its
// object has keys.
constexpr JsonLimits kLimits = {.depth = 256, .fields_of_object = 2048, .fields = 50'000};

}  // namespace

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema, GrammarBudget* budget) {
  if (schema.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError("json_schema: it is larger than 1 MiB");
  }
  const absl::StatusOr<Json> root = ParseBoundedJson<Json>(schema, kLimits);
  if (!root.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("json_schema: it ", root.status().message()));
  }
  return SchemaBuilder(*root, budget).Build();
}

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema) {
  GrammarBudget budget;
  return ParseJsonSchema(schema, &budget);
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  AddJsonRules(&grammar);
  grammar.root = "json-object";
  return grammar;
}

}  // namespace espalier
