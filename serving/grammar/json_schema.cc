#include "serving/grammar/json_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_relax.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSchemaBytes = 1 << 20;
// Limits of the JSON text; JsonSchemaConverter limits the nesting of schemas further. Key lookup is
// linear in the size of the object.
constexpr JsonLimits kLimits = {.depth = 256, .fields_of_object = 2048, .fields = 50'000};

bool RefersToItsRoot(const Json& schema) {
  if (schema.is_object()) {
    const auto reference = schema.find("$ref");
    if (reference != schema.end() && reference->is_string() &&
        absl::StartsWith(reference->get_ref<const std::string&>(), "#")) {
      return true;
    }
  }
  return schema.is_structured() && std::any_of(schema.begin(), schema.end(), RefersToItsRoot);
}

// References inside a schema with an "$id" are relative to it. Returns the id of a nested schema
// that has one, or "".
std::string InnerRoot(const Json& schema) {
  if (!schema.is_structured()) return "";
  for (const Json& part : schema) {
    if (part.is_object()) {
      const auto id = part.find("$id");
      if (id != part.end() && id->is_string() && RefersToItsRoot(part)) {
        return id->get<std::string>();
      }
    }
    if (std::string id = InnerRoot(part); !id.empty()) return id;
  }
  return "";
}

}  // namespace

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema, GrammarBudget* budget) {
  if (schema.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError("json_schema: it is larger than 1 MiB");
  }
  absl::StatusOr<Json> root = ParseBoundedJson<Json>(schema, kLimits);
  if (!root.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("json_schema: it ", root.status().message()));
  }
  if (const std::string id = InnerRoot(*root); !id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: \"$id\": \"", id.substr(0, 100),
                     "\" within a schema, and references that begin there, are not supported; "
                     "leave it out and let them begin at the whole schema"));
  }
  RelaxJsonSchema(&*root);
  return JsonSchemaConverter(*root, budget).Build();
}

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema) {
  GrammarBudget budget;
  return ParseJsonSchema(schema, &budget);
}

std::vector<std::string> UnenforcedKeywords(absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) return {};
  absl::StatusOr<Json> root = ParseBoundedJson<Json>(schema, kLimits);
  return root.ok() ? RelaxJsonSchema(&*root) : std::vector<std::string>();
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  AddJsonRules(&grammar);
  grammar.root = "json-object";
  return grammar;
}

}  // namespace espalier
