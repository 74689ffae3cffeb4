// The vocabulary of JSON Schema.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace espalier {

// Whether a keyword leaves values unconstrained: annotations, keywords that are handled where they
// are used ("$defs", "discriminator"), and all that JSON Schema does not define.
bool IsAnnotation(const std::string& key);
// Whether it is an annotation of JSON Schema or OpenAPI, or a user's own ("x-...").
bool IsKnownAnnotation(const std::string& key);

// The keywords that apply to values of one type only, by type.
const std::map<std::string, std::set<std::string>>& KeywordsByType();

// The formats of strings that are enforced (JSON Schema Validation, section 7.3). Each regular
// expression accepts a subset of its format.
const std::map<std::string, std::string>& StringFormats();

// Returns what a JSON pointer ("#", "#/$defs/name", also percent-encoded) leads to; null if that is
// nothing.
const nlohmann::ordered_json* FindByPointer(const nlohmann::ordered_json& root,
                                            const std::string& pointer);

}  // namespace espalier
