#include "server/jobs/fair_share.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

constexpr absl::string_view kFormat = "fair-share 1";
// Device-seconds that make no difference any more.
constexpr double kForgotten = 1;

}  // namespace

double FairShare::Decayed(const Owner& owner, absl::Time now) const {
  if (owner.seconds == 0) return 0;
  const double half_lives =
      absl::FDivDuration(std::max(now - owner.at, absl::ZeroDuration()), options_.half_life);
  return owner.seconds * std::exp2(-half_lives);
}

void FairShare::Hold(const std::string& owner, int devices) { owners_[owner].held += devices; }

void FairShare::Charge(const std::string& owner, double device_seconds, absl::Time now) {
  Owner& entry = owners_[owner];
  entry.seconds = Decayed(entry, now) + device_seconds;
  entry.at = std::max(entry.at, now);
}

double FairShare::Usage(const std::string& owner, absl::Time now) const {
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return 0;
  return Decayed(found->second, now) +
         found->second.held * absl::ToDoubleSeconds(options_.in_advance);
}

std::string FairShare::Save(absl::Time now) const {
  std::string text = absl::StrCat(kFormat, " ", absl::ToUnixMillis(now), "\n");
  for (const auto& [owner, entry] : owners_) {
    const double seconds = Decayed(entry, now);
    if (seconds >= kForgotten) absl::StrAppendFormat(&text, "%.17g %s\n", seconds, owner);
  }
  return text;
}

absl::Status FairShare::Load(absl::string_view text) {
  const absl::Status damaged = absl::DataLossError("the owners' usage cannot be read");
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 2 || !lines.back().empty()) return damaged;
  lines.pop_back();
  int64_t millis = 0;
  absl::string_view head = lines[0];
  if (!absl::ConsumePrefix(&head, kFormat) || !absl::SimpleAtoi(head, &millis)) return damaged;
  std::vector<std::pair<std::string, double>> read;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    double seconds = 0;
    if (words.size() != 2 || !absl::SimpleAtod(words[0], &seconds) || !(seconds >= 0) ||
        !std::isfinite(seconds)) {
      return damaged;
    }
    read.emplace_back(words[1], seconds);
  }
  for (auto& [owner, seconds] : read) {
    Owner& entry = owners_[owner];
    entry.seconds = seconds;
    entry.at = absl::FromUnixMillis(millis);
  }
  return absl::OkStatus();
}

}  // namespace espalier
