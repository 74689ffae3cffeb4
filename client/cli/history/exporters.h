// All formats in which histories can be written, by flag.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "client/cli/flags.h"
#include "client/cli/history/exporter.h"

namespace espalier {

// What exporters write with; outlives them.
struct ExportEnvironment {
  FileSystem* files = nullptr;
  std::ostream* out = nullptr;  // of "-"
  std::function<const char*(const char*)> getenv;
  std::function<void(absl::Duration)> sleep;
};

struct ExportFormat {
  FlagSpec flag;           // its value says where to
  bool to_stream = false;  // whether "-", standard output, is accepted
  std::function<absl::StatusOr<std::unique_ptr<HistoryExporter>>(const ExportEnvironment&,
                                                                 const std::string& to)>
      make;
};
std::vector<ExportFormat> ExportFormats();

}  // namespace espalier
