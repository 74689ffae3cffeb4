// What came of a load, under the names of `vllm bench serve`.
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

// One request. Its times begin when it was due, if it was to come at a time of its own.
struct LoadRequestResult {
  absl::Status status;
  Generation generation;  // if OK
  double late = 0;        // seconds from when it was due until it was sent
};

struct LoadResult {
  std::vector<LoadRequestResult> answers;  // by request
  int64_t max_concurrent = 0;
  double seconds = 0;

  int64_t failed() const;
  absl::Status first_failure() const;  // OK if there is none
};

// What is to be told: by --percentile-metrics, --metric-percentiles and --goodput.
struct LoadReportOptions {
  std::vector<int> times;           // indexes of the times that there are, in their order
  std::vector<double> percentiles;  // 0 to 100
  std::vector<double> limits;       // seconds, by index of a time; infinity: none
  bool goodput = false;

  // Usage errors name the flag and what it accepts.
  static absl::StatusOr<LoadReportOptions> Of(const ParsedFlags& flags);
};

// One object. `flags` give what was asked for; with `detailed`, lists of what each request had.
nlohmann::ordered_json LoadJson(const LoadResult& outcome, const LoadReportOptions& options,
                                const ParsedFlags& flags, bool detailed);

std::string LoadText(const LoadResult& outcome, const LoadReportOptions& options,
                     const ParsedFlags& flags, const Terminal& terminal);

// Where --save-result writes: --result-dir and --result-filename, or a name made of the load.
std::string ResultPath(const ParsedFlags& flags);

}  // namespace espalier
