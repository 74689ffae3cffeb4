#include "serving/grammar/json_schema_keywords.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

// Decodes the percent-encoding of a URI fragment. Leaves invalid escapes unchanged.
std::string WithoutPercents(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool code = text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
                      absl::ascii_isxdigit(text[i + 2]);
    out += code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (code) i += 2;
  }
  return out;
}

}  // namespace

bool IsAnnotation(const std::string& key) {
  // Of all drafts, enforced or refused.
  static const std::set<std::string>& constraints =
      *new std::set<std::string>{"$dynamicRef",
                                 "$recursiveRef",
                                 "$ref",
                                 "additionalItems",
                                 "additionalProperties",
                                 "allOf",
                                 "anyOf",
                                 "const",
                                 "contains",
                                 "dependencies",
                                 "dependentRequired",
                                 "dependentSchemas",
                                 "else",
                                 "enum",
                                 "exclusiveMaximum",
                                 "exclusiveMinimum",
                                 "format",
                                 "if",
                                 "items",
                                 "maxContains",
                                 "maxItems",
                                 "maxLength",
                                 "maxProperties",
                                 "maximum",
                                 "minContains",
                                 "minItems",
                                 "minLength",
                                 "minProperties",
                                 "minimum",
                                 "multipleOf",
                                 "not",
                                 "oneOf",
                                 "pattern",
                                 "patternProperties",
                                 "prefixItems",
                                 "properties",
                                 "propertyNames",
                                 "required",
                                 "then",
                                 "type",
                                 "unevaluatedItems",
                                 "unevaluatedProperties",
                                 "uniqueItems"};
  return constraints.count(key) == 0;
}

bool IsKnownAnnotation(const std::string& key) {
  static const std::set<std::string>& known = *new std::set<std::string>{"$anchor",
                                                                         "$comment",
                                                                         "$defs",
                                                                         "$dynamicAnchor",
                                                                         "$id",
                                                                         "$recursiveAnchor",
                                                                         "$schema",
                                                                         "$vocabulary",
                                                                         "contentEncoding",
                                                                         "contentMediaType",
                                                                         "contentSchema",
                                                                         "default",
                                                                         "definitions",
                                                                         "deprecated",
                                                                         "description",
                                                                         "discriminator",
                                                                         "example",
                                                                         "examples",
                                                                         "externalDocs",
                                                                         "id",
                                                                         "readOnly",
                                                                         "title",
                                                                         "writeOnly",
                                                                         "xml"};
  return known.count(key) > 0 || absl::StartsWith(key, "x-");
}

const std::map<std::string, std::set<std::string>>& KeywordsByType() {
  static const auto& keywords = *new std::map<std::string, std::set<std::string>>{
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "unevaluatedProperties", "dependentRequired"}},
      {"array",
       {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
        "contains", "minContains", "maxContains"}},
      {"string", {"pattern", "minLength", "maxLength", "format"}},
      {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  return keywords;
}

const std::map<std::string, std::string>& StringFormats() {
  static const auto& formats = *new std::map<std::string, std::string>{
      {"date", "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
      {"time",
       "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):"
       "[0-5][0-9])"},
      {"date-time",
       "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:"
       "[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"duration",
       "P([0-9]{1,4}W|([0-9]{1,4}Y)([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|"
       "[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|"
       "[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"ipv4",
       "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|"
       "1[0-9][0-9]|[1-9]?[0-9])"},
      {"ipv6",
       "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,3}(:[0-9a-f]{1,4}){1,3}|"
       "::([0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,5})?"},
      {"email",
       "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
       "(\\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+"},
      {"hostname",
       "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
       "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,4}"},
      {"uri",
       "[a-z][a-z0-9+.-]{0,15}://[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
       "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,4}(:[1-9][0-9]{0,3})?"
       "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*)*"
       "(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?"
       "(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?"}};
  return formats;
}

const nlohmann::ordered_json* FindByPointer(const nlohmann::ordered_json& root,
                                            const std::string& pointer) {
  const nlohmann::ordered_json* at = &root;
  const std::vector<std::string> steps = absl::StrSplit(WithoutPercents(pointer), '/');
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

}  // namespace espalier
