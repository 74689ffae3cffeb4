// Cuts a growing text at the first stop string. Text that may be the beginning of one is held back
// until it is decided, so a stop string is found wherever token boundaries fall, and no part of it
// is emitted, unless it is to be all emitted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace espalier {

class StopStrings {
 public:
  // Entries as ValidateStopStrings accepts them.
  explicit StopStrings(std::vector<std::string> stops, bool include_stop = false)
      : stops_(std::move(stops)), include_stop_(include_stop) {}

  // Text that is certainly not part of a stop string. After a stop string is found: what precedes
  // it (and itself, if it is to be included), and from then on nothing.
  std::string Append(const std::string& piece);
  // The end of the answer: what was held back, unless stopped.
  std::string Flush();
  bool stopped() const { return stopped_; }
  const std::string& found() const { return found_; }  // the stop string; empty unless stopped

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

// At most 16 strings of 1 to 1024 bytes each, valid UTF-8. InvalidArgument naming the entry.
absl::Status ValidateStopStrings(const std::vector<std::string>& stops);

}  // namespace espalier
