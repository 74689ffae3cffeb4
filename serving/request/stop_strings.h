// Cuts a growing text at the first stop string. Text that may be the beginning of a stop string is
// held back until that is decided, so a stop string is found across token boundaries and no part of
// it is emitted, unless it is to be included.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace espalier {

class StopStrings {
 public:
  // REQUIRES: ValidateStopStrings(stops).
  explicit StopStrings(std::vector<std::string> stops, bool include_stop = false)
      : stops_(std::move(stops)), include_stop_(include_stop) {}

  // Returns text that is certainly not part of a stop string. When a stop string is found: the text
  // before it (and the stop string if included), and from then on nothing.
  std::string Append(const std::string& piece);
  // Ends the output. Returns the text held back, unless stopped.
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

// Accepts at most 16 strings of 1 to 1024 bytes each, valid UTF-8. Returns InvalidArgument naming
// the entry.
absl::Status ValidateStopStrings(const std::vector<std::string>& stops);

}  // namespace espalier
