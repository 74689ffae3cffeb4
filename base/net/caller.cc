#include "base/net/caller.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

constexpr std::pair<absl::string_view, Role> kRoles[] = {{"admin", Role::kAdmin},
                                                         {"train", Role::kTrain},
                                                         {"infer", Role::kInfer},
                                                         {"worker", Role::kWorker},
                                                         {"monitor", Role::kMonitor}};

}  // namespace

std::string Roles::ToString() const {
  std::string names;
  for (const auto& [name, role] : kRoles) {
    if (Intersects(role)) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return names;
}

absl::StatusOr<Roles> ParseRoles(absl::string_view names) {
  Roles roles;
  for (const absl::string_view piece : absl::StrSplit(names, ',')) {
    const absl::string_view wanted = absl::StripAsciiWhitespace(piece);
    bool known = false;
    for (const auto& [name, role] : kRoles) {
      if (name != wanted) continue;
      roles = roles | role;
      known = true;
    }
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", wanted, "' is no role; the roles are admin, train, infer, worker and monitor"));
    }
  }
  return roles;
}

}  // namespace espalier
