// How a line of a program's log looks.
#pragma once

#include <spdlog/formatter.h>

#include <memory>

namespace espalier {

// "TIME LEVEL TEXT", the time in UTC. Control characters of the text are escaped (\x0a), line feeds
// too: names and messages that others send make no lines of their own and no colours.
std::unique_ptr<spdlog::formatter> LogFormat();

}  // namespace espalier
