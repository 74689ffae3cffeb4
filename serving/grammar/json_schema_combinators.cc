// $ref, allOf, anyOf and oneOf.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_keywords.h"
#include "serving/grammar/json_schema_merge.h"
#include "serving/grammar/json_value_set.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxHops = 64;
constexpr size_t kMaxMade = 5'000;
constexpr DfaBudget kMergedByteCost = 10;

// The schema without one of its keywords.
Json WithoutKeyword(const Json& schema, const std::string& key) {
  Json rest = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (name != key && !IsAnnotation(name)) rest[name] = value;
  }
  return rest;
}

// The constants to which a property is restricted; empty: unrestricted.
std::set<std::string> ConstantsOf(const Json& property) {
  std::set<std::string> tags;
  if (!property.is_object()) return tags;
  if (const auto value = property.find("const"); value != property.end()) {
    tags.insert(CanonicalJson(*value));
  } else if (const auto all = property.find("enum"); all != property.end() && all->is_array()) {
    for (const Json& one : *all) tags.insert(CanonicalJson(one));
  }
  return tags;
}

// The properties that a branch requires, and the `tag`, with the constants to which they are
// restricted.
std::map<std::string, std::set<std::string>> RequiredConstantsOf(const Json& branch,
                                                                 const Json& tag) {
  std::map<std::string, std::set<std::string>> out;
  const auto properties = branch.find("properties"), required = branch.find("required");
  if (properties == branch.end() || !properties->is_object()) return out;
  std::set<std::string> needed;
  if (tag.is_string()) needed.insert(tag.get<std::string>());
  if (required != branch.end() && required->is_array()) {
    for (const Json& name : *required) {
      if (name.is_string()) needed.insert(name.get<std::string>());
    }
  }
  for (const auto& [name, property] : properties->items()) {
    if (needed.count(name) == 0) continue;
    std::set<std::string> tags = ConstantsOf(property);
    if (!tags.empty()) out[name] = std::move(tags);
  }
  return out;
}

// Whether all branches require some property, each with constants that no other branch has.
bool HaveDiscriminator(const std::vector<std::shared_ptr<const Json>>& branches, const Json& tag) {
  std::map<std::string, std::set<std::string>> seen = RequiredConstantsOf(*branches[0], tag);
  for (size_t i = 1; i < branches.size() && !seen.empty(); ++i) {
    std::map<std::string, std::set<std::string>> more = RequiredConstantsOf(*branches[i], tag);
    for (auto it = seen.begin(); it != seen.end();) {
      const auto found = more.find(it->first);
      bool distinct = found != more.end();
      if (distinct) {
        for (const std::string& value : found->second) {
          distinct = distinct && it->second.insert(value).second;
        }
      }
      it = distinct ? std::next(it) : seen.erase(it);
    }
  }
  return !seen.empty();
}

// Whether no value satisfies two branches by type or constant: no constant occurs twice, and no
// other branch has the type of a constant or of another branch.
bool HaveDisjointValues(const std::vector<std::shared_ptr<const Json>>& branches) {
  JsonValueSet values;
  std::set<std::string> types, types_of_values;
  const auto kind = [](std::string type) { return type == "integer" ? "number" : type; };
  for (const std::shared_ptr<const Json>& branch : branches) {
    if (const std::optional<Json> listed = FiniteValues(*branch)) {
      for (const Json& value : *listed) {
        if (!values.Add(value)) return false;
        types_of_values.insert(kind(JsonTypeOf(value)));
      }
      continue;
    }
    const auto given = branch->find("type");
    if (given == branch->end()) return false;
    for (const Json& type : given->is_array() ? *given : Json::array({*given})) {
      if (!type.is_string() || !types.insert(kind(type.get<std::string>())).second) return false;
    }
  }
  return std::none_of(types.begin(), types.end(),
                      [&](const std::string& type) { return types_of_values.count(type) > 0; });
}

}  // namespace

Expression JsonSchemaConverter::Reference(const Json& schema, const std::string& place) {
  if (!WithoutKeyword(schema, "$ref").empty()) return SharedRule(Resolved(schema, place), place);
  const Json& ref = schema["$ref"];
  const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
  if (pointer.empty() || (pointer != "#" && pointer.substr(0, 2) != "#/") ||
      FindByPointer(root_, pointer) == nullptr) {
    Fail(absl::StrCat(place, "/$ref"),
         "it must refer to an existing place in this schema, such as \"#/$defs/name\"");
    return {};
  }
  if (referenced_.insert(pointer).second) pending_refs_.push_back(pointer);
  return RuleCall(absl::StrCat("ref ", pointer));
}

Json JsonSchemaConverter::Resolved(const Json& schema, const std::string& place) {
  return *ResolvedShared(schema, place);
}

std::shared_ptr<const Json> JsonSchemaConverter::ResolvedShared(const Json& schema,
                                                                const std::string& place) {
  const Json* at = &schema;
  std::vector<Json> beside;
  int hops = 0;
  while (at->is_object() && at->contains("$ref")) {
    const Json& ref = (*at)["$ref"];
    const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
    if (Json rest = WithoutKeyword(*at, "$ref"); !rest.empty()) beside.push_back(std::move(rest));
    at = pointer == "#" || pointer.substr(0, 2) == "#/" ? FindByPointer(root_, pointer) : nullptr;
    if (at == nullptr || ++hops > kMaxHops) {
      Fail(absl::StrCat(place, "/$ref"),
           at == nullptr
               ? "it must refer to an existing place in this schema, such as \"#/$defs/name\""
               : "it leads back to itself");
      return std::make_shared<const Json>(Json::object());
    }
  }
  std::shared_ptr<const Json> resolved(std::shared_ptr<const Json>(), at);
  for (size_t i = beside.size(); i > 0 && status_.ok(); --i) {
    resolved = std::make_shared<const Json>(Merged(*resolved, beside[i - 1], place));
  }
  return resolved;
}

Json JsonSchemaConverter::Merged(const Json& a, const Json& b, const std::string& place) {
  if (!status_.ok()) return Json::object();
  return ChargeMerge(MergeSchemas(a, b), a, b, place);
}

Json JsonSchemaConverter::ChargeMerge(absl::StatusOr<Json> merged, const Json& a, const Json& b,
                                      const std::string& place) {
  if (!merged.ok()) {
    Fail(place, merged.status().message());
    return Json::object();
  }
  // Key lookup is linear in the number of keys.
  const auto keys = [](const Json& schema) {
    return !schema.is_object()
               ? 0
               : static_cast<DfaBudget>(schema.size() +
                                        schema.value("properties", Json::object()).size());
  };
  budget_.steps -=
      kMergedByteCost * static_cast<DfaBudget>(JsonText(*merged).size()) + keys(a) * keys(b) / 4;
  if (budget_.steps < 0) Fail(place, "what is merged here grows too large; write it as one schema");
  return *std::move(merged);
}

Expression JsonSchemaConverter::SharedRule(const Json& schema, const std::string& place) {
  if (!status_.ok()) return {};
  std::string text = JsonText(schema);
  budget_.steps -= static_cast<int64_t>(text.size());
  const auto [it, inserted] =
      shared_rules_.try_emplace(std::move(text), absl::StrCat("made-", shared_rules_.size()));
  if (shared_rules_.size() > kMaxMade || budget_.steps < 0) {
    Fail(place, "what is merged here grows too large; write it as one schema");
  }
  if (inserted) pending_schemas_.push_back({it->second, place, schema});
  return RuleCall(it->second);
}

Expression JsonSchemaConverter::AllOf(const Json& schema, const std::string& place, int depth) {
  const std::string here = absl::StrCat(place, "/allOf");
  const Json& parts = schema["allOf"];
  if (!parts.is_array() || parts.empty()) {
    Fail(here, "it must be a list of schemas");
    return {};
  }
  Json all = WithoutKeyword(schema, "allOf");
  if (all.empty() && parts.size() == 1) {
    return Schema(parts[0], absl::StrCat(here, "/0"), depth + 1);
  }
  for (size_t i = 0; i < parts.size() && status_.ok(); ++i) {
    const std::string at = absl::StrCat(here, "/", i);
    all = Merged(all, Resolved(parts[i], at), at);
  }
  // These keywords could not be merged: each alternative takes them along.
  if (status_.ok() && all.contains("allOf")) {
    for (const char* key : {"anyOf", "oneOf"}) {
      if (all.contains(key)) return AnyOf(all, key, place, depth);
    }
    if (all.contains("if")) return Conditional(all, place);
    if (all.contains("not")) return Not(all, place);
  }
  return SharedRule(all, place);
}

Expression JsonSchemaConverter::AnyOf(const Json& schema, const std::string& key,
                                      const std::string& place, int depth) {
  const Json& given = schema[key];
  const std::string here = absl::StrCat(place, "/", key);
  if (!given.is_array() || given.empty()) {
    Fail(here, "it must be a list of schemas");
    return {};
  }
  const Json rest = WithoutKeyword(schema, key);
  // The property of "discriminator" may be optional in the schema; the grammar requires it.
  const Json discriminator = schema.value("discriminator", Json());
  const Json tag = discriminator.is_object() ? discriminator.value("propertyName", Json()) : Json();
  // Pointers, since a document may refer to one schema thousands of times.
  std::vector<std::shared_ptr<const Json>> branches;
  struct Origin {
    size_t number;
    bool as_given;
  };
  std::vector<Origin> origins;
  const auto requires_tag = [&](const Json& branch) {
    const auto required = branch.find("required");
    return required != branch.end() && required->is_array() &&
           std::find(required->begin(), required->end(), tag) != required->end();
  };
  for (size_t i = 0; i < given.size() && status_.ok(); ++i) {
    const std::string at = absl::StrCat(here, "/", i);
    // Branches that need no inspection remain references.
    const bool look = key == "oneOf" || !rest.empty();
    std::shared_ptr<const Json> branch =
        look ? ResolvedShared(given[i], at)
             : std::shared_ptr<const Json>(std::shared_ptr<const Json>(), &given[i]);
    bool as_given = true;
    if (key == "oneOf" && tag.is_string() && branch->is_object() && !requires_tag(*branch)) {
      as_given = false;
    }
    if (!rest.empty()) {
      std::optional<Json> merged = TryMerged(rest, *branch, at);
      if (!merged) continue;
      as_given = as_given && *merged == *branch;
      branch = std::make_shared<const Json>(*std::move(merged));
    }
    origins.push_back({i, as_given});
    branches.push_back(std::move(branch));
  }
  if (branches.empty()) Fail(here, "no branch is compatible with the keywords beside it");
  if (key == "oneOf") CheckExclusive(branches, tag, here);
  std::vector<Expression> ways;
  for (size_t i = 0; i < branches.size() && status_.ok(); ++i) {
    const auto& [number, as_given] = origins[i];
    const std::string at = absl::StrCat(here, "/", number);
    if (as_given) {
      ways.push_back(Schema(given[number], at, depth + 1));
      continue;
    }
    Json made = *branches[i];
    if (key == "oneOf" && tag.is_string() && made.is_object() && !requires_tag(made)) {
      Json required = made.value("required", Json::array());
      if (required.is_array()) required.push_back(tag);
      made["required"] = std::move(required);
    }
    ways.push_back(SharedRule(made, at));
  }
  return Choice(std::move(ways));
}

// Treats "oneOf" as "anyOf", which requires that no value satisfies two branches: by their types
// and constants, or by the constants of a property that all require.
void JsonSchemaConverter::CheckExclusive(const std::vector<std::shared_ptr<const Json>>& branches,
                                         const Json& tag, const std::string& place) {
  if (!status_.ok() || branches.size() == 1) return;
  for (const std::shared_ptr<const Json>& branch : branches) {
    if (!branch->is_object()) return Fail(place, "it must be a list of schemas");
  }
  if (HaveDisjointValues(branches) || HaveDiscriminator(branches, tag)) return;
  Fail(place,
       "its branches may overlap, and then only one of them may hold: give them different types "
       "or constants, or a required property with different constants, or write anyOf");
}

}  // namespace espalier
