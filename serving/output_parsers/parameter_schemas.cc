#include "serving/output_parsers/parameter_schemas.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxRefChain = 64;  // length of a chain of references
constexpr absl::string_view kShared[] = {"$defs", "definitions"};

bool IsAnnotation(absl::string_view key) {
  for (const absl::string_view one : {"title", "description", "default", "examples", "deprecated",
                                      "$comment", "$schema", "$id", "$defs", "definitions"}) {
    if (key == one) return true;
  }
  return false;
}

// Returns the target of "#/$defs/NAME"; null if it is missing or the reference has another form.
const Json* RefTarget(const Json& parameters, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const auto& text = reference.get_ref<const std::string&>();
  for (const absl::string_view shared : kShared) {
    const std::string prefix = absl::StrCat("#/", shared, "/");
    if (!absl::StartsWith(text, prefix)) continue;
    const auto all = parameters.find(shared);
    if (all == parameters.end() || !all->is_object()) return nullptr;
    const auto found = all->find(text.substr(prefix.size()));
    return found != all->end() && found->is_object() ? &*found : nullptr;
  }
  return nullptr;
}

absl::Status Unsupported(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what,
      " is not supported where a model writes parameters one by one; give `properties` and "
      "`required`, or leave out `strict`"));
}

// A parameter's schema is used without its siblings, so only references to $defs and definitions,
// which are copied into it, keep their meaning.
absl::Status CheckReferences(const Json& schema) {
  if (schema.is_object()) {
    const auto reference = schema.find("$ref");
    if (reference != schema.end() && reference->is_string()) {
      const auto& text = reference->get_ref<const std::string&>();
      if (std::none_of(std::begin(kShared), std::end(kShared), [&](absl::string_view shared) {
            return absl::StartsWith(text, absl::StrCat("#/", shared, "/"));
          })) {
        return Unsupported(absl::StrCat("the reference \"", text.substr(0, 100), "\""));
      }
    }
  }
  if (!schema.is_structured()) return absl::OkStatus();
  for (const Json& part : schema) {
    if (absl::Status status = CheckReferences(part); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

Json InlineTopLevelRef(Json parameters) {
  for (int i = 0; i < kMaxRefChain && parameters.is_object(); ++i) {
    const auto reference = parameters.find("$ref");
    if (reference == parameters.end()) break;
    const Json* named = RefTarget(parameters, *reference);
    if (named == nullptr) break;
    Json found = *named;
    for (const auto& [key, value] : parameters.items()) {
      if (key == "$ref") continue;
      if (!IsAnnotation(key)) return parameters;
      // The target's own annotations win; shared definitions must be those of the whole document.
      const bool shared =
          std::find(std::begin(kShared), std::end(kShared), key) != std::end(kShared);
      if (shared && found.contains(key)) return parameters;
      if (!found.contains(key)) found[key] = value;
    }
    parameters = std::move(found);
  }
  return parameters;
}

absl::Status CheckParameterSchemas(const Json& parameters) {
  if (parameters.is_null()) return absl::OkStatus();
  if (!parameters.is_object()) return Unsupported("a schema that is no object");
  const Json properties = parameters.value("properties", Json::object());
  for (const auto& [key, value] : parameters.items()) {
    // An answer never has parameters other than those named, so it satisfies this keyword.
    if (IsAnnotation(key) || key == "properties" || key == "additionalProperties") continue;
    if (key == "type" && value == "object") continue;
    if (key != "required") return Unsupported(absl::StrCat("'", key, "' of all parameters"));
    for (const Json& name : value.is_array() ? value : Json::array()) {
      if (!name.is_string() || !properties.contains(name.get_ref<const std::string&>())) {
        return Unsupported("a required parameter that is none of the properties");
      }
    }
  }
  return CheckReferences(parameters);
}

}  // namespace espalier
