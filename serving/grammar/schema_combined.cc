// References, and several schemas at once or one of several.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "serving/grammar/schema_builder.h"
#include "serving/grammar/schema_merge.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxHops = 64;
constexpr size_t kMaxMade = 5'000;
constexpr DfaBudget kMergedByteCost = 10;

// What a schema says beside one of its keywords.
Json Beside(const Json& schema, const std::string& key) {
  Json rest = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (name != key && !IsAnnotation(name)) rest[name] = value;
  }
  return rest;
}

// Equal for equal values: 1 and 1.0 are.
std::string TagOf(const Json& value) {
  return value.is_number() ? absl::StrCat(value.get<double>()) : JsonText(value);
}

// The values that a property must have one of, if it must be there; empty: anything.
std::set<std::string> TagsOf(const Json& branch, const std::string& name) {
  const Json& property = branch["properties"][name];
  std::set<std::string> tags;
  if (!property.is_object()) return tags;
  if (property.contains("const")) {
    tags.insert(TagOf(property["const"]));
  } else if (property.contains("enum") && property["enum"].is_array()) {
    for (const Json& value : property["enum"]) tags.insert(TagOf(value));
  }
  return tags;
}

// Whether all branches require the property, each with values that no other one has.
bool TellsApart(const std::vector<Json>& branches, const std::string& name) {
  std::set<std::string> seen;
  for (const Json& branch : branches) {
    const Json properties = branch.value("properties", Json::object());
    const Json required = branch.value("required", Json::array());
    if (!properties.is_object() || !properties.contains(name) || !required.is_array() ||
        std::find(required.begin(), required.end(), Json(name)) == required.end()) {
      return false;
    }
    const std::set<std::string> tags = TagsOf(branch, name);
    if (tags.empty()) return false;
    for (const std::string& tag : tags) {
      if (!seen.insert(tag).second) return false;
    }
  }
  return true;
}

}  // namespace

const Json* SchemaBuilder::Find(const std::string& pointer) const {
  const Json* at = &root_;
  const std::vector<std::string> steps = absl::StrSplit(pointer, '/');
  for (size_t i = 1; i < steps.size(); ++i) {
    const std::string key = absl::StrReplaceAll(steps[i], {{"~1", "/"}, {"~0", "~"}});
    if (at->is_object() && at->contains(key)) {
      at = &(*at)[key];
    } else if (at->is_array() && !key.empty() && key.size() < 7 &&
               key.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(key) < at->size()) {
      at = &(*at)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return at;
}

Expression SchemaBuilder::Reference(const Json& schema, const std::string& place) {
  if (!Beside(schema, "$ref").empty()) return Made(Resolved(schema, place), place);
  const Json& ref = schema["$ref"];
  const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
  if (pointer.empty() || (pointer != "#" && pointer.substr(0, 2) != "#/") ||
      Find(pointer) == nullptr) {
    Fail(absl::StrCat(place, "/$ref"),
         "it must name a place in this schema that there is, as \"#/$defs/name\"");
    return {};
  }
  if (referred_.insert(pointer).second) pending_.push_back(pointer);
  return RuleCall(absl::StrCat("ref ", pointer));
}

Json SchemaBuilder::Resolved(const Json& schema, const std::string& place) {
  const Json* at = &schema;
  std::vector<Json> beside;
  int hops = 0;
  while (at->is_object() && at->contains("$ref")) {
    const Json& ref = (*at)["$ref"];
    const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
    if (Json rest = Beside(*at, "$ref"); !rest.empty()) beside.push_back(std::move(rest));
    at = pointer == "#" || pointer.substr(0, 2) == "#/" ? Find(pointer) : nullptr;
    if (at == nullptr || ++hops > kMaxHops) {
      Fail(absl::StrCat(place, "/$ref"),
           at == nullptr ? "it must name a place in this schema that there is, as \"#/$defs/name\""
                         : "it leads back to itself");
      return Json::object();
    }
  }
  Json resolved = *at;
  for (size_t i = beside.size(); i > 0 && status_.ok(); --i) {
    resolved = Merged(resolved, beside[i - 1], place);
  }
  return resolved;
}

Json SchemaBuilder::Merged(const Json& a, const Json& b, const std::string& place) {
  if (!status_.ok()) return Json::object();
  absl::StatusOr<Json> merged = MergeSchemas(a, b);
  if (!merged.ok()) {
    Fail(place, merged.status().message());
    return Json::object();
  }
  // Finding a key takes as long as there are keys.
  const auto keys = [](const Json& schema) {
    return !schema.is_object()
               ? 0
               : static_cast<DfaBudget>(schema.size() +
                                        schema.value("properties", Json::object()).size());
  };
  budget_ -=
      kMergedByteCost * static_cast<DfaBudget>(JsonText(*merged).size()) + keys(a) * keys(b) / 4;
  if (budget_ < 0) Fail(place, "what is merged here grows too large; write it as one schema");
  return *std::move(merged);
}

Expression SchemaBuilder::Made(const Json& schema, const std::string& place) {
  if (!status_.ok()) return {};
  std::string text = JsonText(schema);
  const auto [it, inserted] =
      made_.try_emplace(std::move(text), absl::StrCat("made-", made_.size()));
  if (made_.size() > kMaxMade) {
    Fail(place, "what is merged here grows too large; write it as one schema");
  }
  if (inserted) unmade_.push_back({it->second, place, schema});
  return RuleCall(it->second);
}

Expression SchemaBuilder::AllOf(const Json& schema, const std::string& place, int depth) {
  const std::string here = absl::StrCat(place, "/allOf");
  const Json& parts = schema["allOf"];
  if (!parts.is_array() || parts.empty()) {
    Fail(here, "it must be a list of schemas");
    return {};
  }
  Json all = Beside(schema, "allOf");
  if (all.empty() && parts.size() == 1) {
    return Schema(parts[0], absl::StrCat(here, "/0"), depth + 1);
  }
  for (size_t i = 0; i < parts.size() && status_.ok(); ++i) {
    const std::string at = absl::StrCat(here, "/", i);
    all = Merged(all, Resolved(parts[i], at), at);
  }
  // What is left could not be joined by keyword: alternatives, each of which
  // takes it along.
  if (status_.ok() && all.contains("allOf")) {
    for (const char* key : {"anyOf", "oneOf"}) {
      if (all.contains(key)) return AnyOf(all, key, place, depth);
    }
    if (all.contains("if")) return Conditional(all, place);
    if (all.contains("not")) return Not(all, place);
  }
  return Made(all, place);
}

Expression SchemaBuilder::AnyOf(const Json& schema, const std::string& key,
                                const std::string& place, int depth) {
  const Json& given = schema[key];
  const std::string here = absl::StrCat(place, "/", key);
  if (!given.is_array() || given.empty()) {
    Fail(here, "it must be a list of schemas");
    return {};
  }
  const Json rest = Beside(schema, key);
  // The property that "discriminator" names need not be required, but to know the branch it is.
  const Json discriminator = schema.value("discriminator", Json());
  const Json tag = discriminator.is_object() ? discriminator.value("propertyName", Json()) : Json();
  std::vector<Json> branches;
  struct Origin {
    size_t number;
    bool as_given;
  };
  std::vector<Origin> origins;
  for (size_t i = 0; i < given.size() && status_.ok(); ++i) {
    const std::string at = absl::StrCat(here, "/", i);
    // Branches that need no look inside stay what they are, references too.
    const bool look = key == "oneOf" || !rest.empty();
    const Json resolved = look ? Resolved(given[i], at) : given[i];
    Json branch = resolved;
    if (key == "oneOf" && tag.is_string() && branch.is_object()) {
      Json required = branch.value("required", Json::array());
      if (required.is_array() &&
          std::find(required.begin(), required.end(), tag) == required.end()) {
        required.push_back(tag);
        branch["required"] = std::move(required);
      }
    }
    if (!rest.empty()) {
      std::optional<Json> merged = TryMerged(rest, branch, at);
      if (!merged) continue;
      branch = *std::move(merged);
    }
    origins.push_back({i, branch == resolved});
    branches.push_back(std::move(branch));
  }
  if (branches.empty()) Fail(here, "no branch allows what stands beside it");
  if (key == "oneOf") CheckExclusive(branches, here);
  std::vector<Expression> ways;
  for (size_t i = 0; i < branches.size() && status_.ok(); ++i) {
    const auto& [number, as_given] = origins[i];
    const std::string at = absl::StrCat(here, "/", number);
    ways.push_back(as_given ? Schema(given[number], at, depth + 1) : Made(branches[i], at));
  }
  return Choice(std::move(ways));
}

// "oneOf" is "anyOf" where no value can satisfy two branches: by their types, or by the constants
// of a property that all require.
void SchemaBuilder::CheckExclusive(const std::vector<Json>& branches, const std::string& place) {
  if (!status_.ok() || branches.size() == 1) return;
  std::set<std::string> seen;
  bool by_type = true;
  for (const Json& branch : branches) {
    if (!branch.is_object()) return Fail(place, "it must be a list of schemas");
    const Json types = branch.value("type", Json());
    for (const Json& type : types.is_array() ? types : Json::array({types})) {
      std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name == "integer") name = "number";
      by_type = by_type && !name.empty() && seen.insert(name).second;
    }
  }
  if (by_type) return;
  const Json first = branches[0].value("properties", Json::object());
  if (first.is_object()) {
    for (const auto& [name, value] : first.items()) {
      if (TellsApart(branches, name)) return;
    }
  }
  Fail(place,
       "its branches may overlap, and then only one of them may hold: give them different types "
       "or a required property with different constants, or write anyOf");
}

}  // namespace espalier
