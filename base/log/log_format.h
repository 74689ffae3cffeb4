// Format of log lines.
#pragma once

#include <spdlog/formatter.h>

#include <memory>

namespace espalier {

// Formats "TIME LEVEL TEXT" with UTC time. Escapes control characters and line feeds (\x0a), so
// that untrusted names and messages cannot forge lines or colors.
std::unique_ptr<spdlog::formatter> LogFormat();

}  // namespace espalier
