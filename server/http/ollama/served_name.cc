#include "server/http/ollama/served_name.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace espalier::ollama {
namespace {

constexpr absl::string_view kLatest = ":latest";

}  // namespace

std::string ServedName(const RouteContext& context, const std::string& name) {
  const auto served = [&](const std::string& candidate) {
    return !absl::IsNotFound(context.models->Resolve(candidate, context.caller).status());
  };
  if (served(name)) return name;
  const std::string other = absl::EndsWith(name, kLatest)
                                ? std::string(absl::StripSuffix(name, kLatest))
                                : absl::StrCat(name, kLatest);
  return served(other) ? other : name;
}

std::string TaggedName(const std::string& name) {
  return absl::StrContains(name, ':') ? name : absl::StrCat(name, kLatest);
}

}  // namespace espalier::ollama
