// Points in time for people, in the zone of this machine.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// "2026-11-29 18:00:30"; empty for 0.
std::string LocalTime(int64_t unix_ms);

// The zone that LocalTime means then: "UTC", "CET (UTC+01:00)".
std::string LocalZone(int64_t unix_ms);

// The times of the lines of a log, each with two spaces behind it.
class LogTimes {
 public:
  // Returns the line that names the zone before the first line that has a time, and wherever it
  // changes (summer time); otherwise nothing.
  std::string ZoneLine(int64_t unix_ms);
  // Blanks for a line without a time, once others have had one.
  std::string Of(int64_t unix_ms) const;

 private:
  std::string zone_;
};

}  // namespace espalier
