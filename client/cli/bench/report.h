// The report of a load test, with the field names of `vllm bench serve`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "client/cli/generation.h"
#include "client/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace espalier {

// The result of one request. Times count from its scheduled start, if it has one.
struct LoadRequestResult {
  absl::Status status;
  Generation generation;  // if OK
  double late = 0;        // seconds between scheduled start and sending
};

struct LoadResult {
  std::vector<LoadRequestResult> answers;  // by request
  int64_t max_concurrent = 0;
  double seconds = 0;

  int64_t failed() const;
  absl::Status first_failure() const;  // OK if none failed
};

// What to report: --percentile-metrics, --metric-percentiles and --goodput.
struct LoadReportOptions {
  std::vector<int> times;           // indexes into the known times, ascending
  std::vector<double> percentiles;  // 0 to 100
  std::vector<double> limits;       // seconds, by index of a time; infinity: no limit
  bool goodput = false;

  // Usage errors name the flag and what it accepts.
  static absl::StatusOr<LoadReportOptions> Of(const ParsedFlags& flags);
};

// Returns one JSON object. `flags` give the requested load; `detailed` adds per-request lists.
nlohmann::ordered_json LoadJson(const LoadResult& outcome, const LoadReportOptions& options,
                                const ParsedFlags& flags, bool detailed);

std::string LoadText(const LoadResult& outcome, const LoadReportOptions& options,
                     const ParsedFlags& flags, const Terminal& terminal);

// Returns the path for --save-result: --result-dir and --result-filename, or a name derived from
// the load.
std::string ResultPath(const ParsedFlags& flags);

}  // namespace espalier
