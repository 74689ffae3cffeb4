#include "serving/grammar/json_schema_relax.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/json_schema_keywords.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostNotes = 20;

// Where schemas stand within a schema.
constexpr const char* kSchemas[] = {"additionalItems",
                                    "additionalProperties",
                                    "contains",
                                    "else",
                                    "if",
                                    "items",
                                    "not",
                                    "propertyNames",
                                    "then",
                                    "unevaluatedItems",
                                    "unevaluatedProperties"};
constexpr const char* kListsOfSchemas[] = {"allOf", "anyOf", "items", "oneOf", "prefixItems"};
constexpr const char* kMapsOfSchemas[] = {
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"};

// The names under "type"; empty if it is absent or malformed.
std::vector<std::string> TypesOf(const Json& schema) {
  std::vector<std::string> types;
  const auto found = schema.find("type");
  if (found == schema.end()) return types;
  for (const Json& type : found->is_array() ? *found : Json::array({*found})) {
    if (!type.is_string()) return {};
    types.push_back(type.get<std::string>());
  }
  return types;
}

class Relaxation {
 public:
  explicit Relaxation(Json* root) : root_(*root) {}

  std::vector<std::string> Run() {
    Visit(&root_, "#");
    // References may lead to places that hold no schemas otherwise.
    for (size_t i = 0; i < references_.size(); ++i) {
      const std::string pointer = references_[i];
      if (const Json* target = FindByPointer(root_, pointer)) {
        Visit(const_cast<Json*>(target), pointer);  // root_ is not const
      }
    }
    if (more_notes_ > 0) notes_.push_back(absl::StrCat("and ", more_notes_, " more"));
    return std::move(notes_);
  }

 private:
  void Visit(Json* schema, const std::string& place) {
    if (!schema->is_object() || !visited_.insert(schema).second) return;
    AllowNull(schema, place);
    DropFormat(schema, place);
    DropKeywordsOfOtherTypes(schema, place);
    for (const auto& [key, value] : schema->items()) {
      if (IsAnnotation(key) && !IsKnownAnnotation(key) && key != "nullable") {
        Note(place, key, "unknown keyword");
      }
    }
    const auto reference = schema->find("$ref");
    if (reference != schema->end() && reference->is_string() &&
        absl::StartsWith(reference->get_ref<const std::string&>(), "#/")) {
      references_.push_back(reference->get<std::string>());
    }
    VisitParts(schema, place);
  }

  void VisitParts(Json* schema, const std::string& place) {
    for (auto& [key, value] : schema->items()) {
      const auto among = [&key = key](const auto& keys) {
        return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
      };
      const std::string inside = absl::StrCat(place, "/", key);
      if (value.is_array() && among(kListsOfSchemas)) {
        for (size_t i = 0; i < value.size(); ++i) Visit(&value[i], absl::StrCat(inside, "/", i));
      } else if (value.is_object() && among(kMapsOfSchemas)) {
        for (auto& [name, part] : value.items()) Visit(&part, absl::StrCat(inside, "/", name));
      } else if (among(kSchemas)) {
        Visit(&value, inside);
      }
    }
  }

  void AllowNull(Json* schema, const std::string& place) {
    const auto found = schema->find("nullable");
    if (found == schema->end() || *found != true) return;
    std::vector<std::string> types = TypesOf(*schema);
    if (types.empty()) {
      Note(place, "nullable", "null is not allowed, since there is no \"type\" beside it");
      return;
    }
    if (std::find(types.begin(), types.end(), "null") == types.end()) types.push_back("null");
    (*schema)["type"] = std::move(types);
    schema->erase("nullable");
  }

  void DropFormat(Json* schema, const std::string& place) {
    const auto found = schema->find("format");
    if (found == schema->end() || !found->is_string()) return;
    const std::vector<std::string> types = TypesOf(*schema);
    const bool string =
        types.empty() || std::find(types.begin(), types.end(), "string") != types.end();
    const std::string format = found->get<std::string>();
    if (string && StringFormats().count(format) > 0) return;
    Note(place, "format", absl::StrCat("\"", format.substr(0, 40), "\" is not enforced"));
    schema->erase("format");
  }

  void DropKeywordsOfOtherTypes(Json* schema, const std::string& place) {
    const std::vector<std::string> types = TypesOf(*schema);
    if (types.empty()) return;
    std::set<std::string> own;
    for (const std::string& type : types) {
      if (type == "boolean" || type == "null") continue;
      const auto keywords = KeywordsByType().find(type);
      if (keywords == KeywordsByType().end()) return;  // no type: an error
      own.insert(keywords->second.begin(), keywords->second.end());
    }
    for (const auto& [type, keywords] : KeywordsByType()) {
      for (const std::string& key : keywords) {
        if (own.count(key) > 0 || !schema->contains(key)) continue;
        Note(place, key, absl::StrCat("has no effect on type ", absl::StrJoin(types, ", ")));
        schema->erase(key);
      }
    }
  }

  void Note(const std::string& place, absl::string_view key, absl::string_view what) {
    const std::string note = absl::StrCat(place.substr(0, 200), "/", key.substr(0, 60), ": ", what);
    if (std::find(notes_.begin(), notes_.end(), note) != notes_.end()) return;
    if (notes_.size() < kMostNotes) {
      notes_.push_back(note);
    } else {
      ++more_notes_;
    }
  }

  Json& root_;
  // A schema's address is final once it is visited: what is above it has been changed before.
  absl::flat_hash_set<const Json*> visited_;
  std::vector<std::string> references_, notes_;
  int more_notes_ = 0;
};

}  // namespace

std::vector<std::string> RelaxJsonSchema(Json* root) { return Relaxation(root).Run(); }

}  // namespace espalier
