// Prints the rules of access (server/access/access_rules.h) as JSON: for the reference and for the
// tests that call every method.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/access/access_rules.h"

int main() {
  constexpr const char* kUses[] = {"read", "change", "create", "act as"};
  nlohmann::ordered_json rules = nlohmann::ordered_json::array();
  for (const espalier::AccessRule& rule : espalier::AccessRules()) {
    nlohmann::ordered_json resources = nlohmann::ordered_json::array();
    for (const espalier::ResourceField& field : rule.resources) {
      resources.push_back({{"field", std::string(field.path)},
                           {"kind", espalier::NameOfKind(field.kind)},
                           {"use", kUses[static_cast<int>(field.use)]}});
    }
    rules.push_back({{"method", std::string(rule.method)},
                     {"roles", rule.has_token ? "a token in the request, and no key"
                                              : (rule.roles | espalier::Role::kAdmin).ToString()},
                     {"has_token", rule.has_token},
                     {"resources", resources}});
  }
  std::printf("%s\n", rules.dump(1).c_str());
  return 0;
}
