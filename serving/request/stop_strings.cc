#include "serving/request/stop_strings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr size_t kMostStops = 16;
constexpr size_t kLongestStop = 1024;

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t HeldBy(const std::string& text, const std::string& stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) return n;
  }
  return 0;
}

}  // namespace

std::string StopStrings::Append(const std::string& piece) {
  if (stopped_) return "";
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at >= first) continue;
    first = at;
    found_ = stop;
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, first);
    if (include_stop_) out += found_;
    held_.clear();
    return out;
  }
  size_t hold = 0;
  for (const std::string& stop : stops_) hold = std::max(hold, HeldBy(held_, stop));
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopStrings::Flush() {
  std::string out;
  out.swap(held_);
  return out;
}

absl::Status ValidateStopStrings(const std::vector<std::string>& stops) {
  if (stops.size() > kMostStops) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", stops.size(), " strings, expected at most ", kMostStops));
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > kLongestStop) {
      return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] has ", stops[i].size(),
                                                     " bytes, expected 1 to ", kLongestStop));
    }
    if (!IsValidUtf8(stops[i])) {
      return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] is not valid UTF-8"));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
