#include "client/cli/step_range_flag.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

bool ReadStep(absl::string_view digits, int64_t* step) {
  return !digits.empty() && absl::ascii_isdigit(static_cast<unsigned char>(digits[0])) &&
         absl::SimpleAtoi(digits, step) && *step < INT64_MAX;
}

}  // namespace

absl::StatusOr<StepRange> StepRangeFlag(const std::string& flag, absl::string_view text) {
  const auto wrong = [&](absl::string_view what) {
    return UsageError(absl::StrCat("--", flag, " is \"", Printable(text), "\"", what));
  };
  StepRange range;
  const size_t colon = text.find(':');
  const bool single = colon == absl::string_view::npos;
  const absl::string_view first = text.substr(0, colon);
  const absl::string_view end = single ? "" : text.substr(colon + 1);
  const bool read = (first.empty() ? !single : ReadStep(first, &range.first)) &&
                    (end.empty() || ReadStep(end, &range.end));
  if (!read || (first.empty() && end.empty())) {
    return wrong("; accepted: A:B, the steps from A on that are below B, A:, :B, or one step A");
  }
  if (single) range.end = range.first + 1;
  if (!end.empty() && range.end <= range.first) return wrong(", which has no steps");
  return range;
}

}  // namespace espalier
