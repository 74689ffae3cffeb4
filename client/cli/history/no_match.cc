#include "client/cli/history/no_match.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"
#include "client/terminal/text.h"
#include "ops/graph/name_pattern.h"
#include "ops/probe/expression.h"

namespace espalier {
namespace {

constexpr std::ptrdiff_t kNamesShown = 8;  // of those that there are

bool MatchesAny(const std::string& pattern, const std::vector<std::string>& names) {
  // As it was written, or with other spaces.
  const absl::StatusOr<ProbeExpression> probe = ParseProbe(pattern);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return MatchesPattern(pattern, name) || (probe.ok() && MatchesPattern(ToString(*probe), name));
  });
}

std::string RemedyFor(const std::string& pattern, const std::vector<std::string>& names) {
  const std::vector<std::string> parts = absl::StrSplit(pattern, ',');
  if (parts.size() > 1 && MatchesAny(parts[0], names)) {
    return absl::StrCat("; --log may be given several times: --log=",
                        absl::StrJoin(parts, " --log="));
  }
  const std::string meant = DidYouMean(pattern, names);
  if (!meant.empty()) return meant;
  const auto shown =
      names.begin() + std::min(static_cast<std::ptrdiff_t>(names.size()), kNamesShown);
  return absl::StrCat("; there are ", absl::StrJoin(names.begin(), shown, ", "),
                      shown == names.end() ? "" : ", ...");
}

}  // namespace

std::string WhyNothingMatches(const std::vector<std::string>& patterns,
                              const std::set<std::string>& names) {
  const std::vector<std::string> known(names.begin(), names.end());
  if (known.empty()) return "";
  std::string why;
  for (const std::string& pattern : patterns) {
    if (MatchesAny(pattern, known)) continue;
    absl::StrAppend(&why, "; there is no ", pattern, RemedyFor(pattern, known));
  }
  return why.empty() ? "; there are values of other steps, or from another source" : Printable(why);
}

}  // namespace espalier
