// The command line of a daemon: ABSL_FLAG flags, spelled with dashes as in the `espalier` command.
#pragma once

#include <string>

namespace espalier {

struct DaemonUsage {
  std::string program;  // "espalierd"
  std::string summary;  // one sentence
  std::string example;  // a command line
  // Flags of other files (libraries) are neither accepted nor shown.
  std::string flags_file;  // "server/main.cc"
};

// Sets flags from `--name=value`, `--name value` or, for bools, `--name`. For --help prints the
// help (as JSON with --json) and exits with 0. For --version prints the version and exits with 0 if
// all other arguments are valid. Exits with 2 and a message with the remedy for an unknown flag,
// one spelled with underscores, an invalid value, or an argument that is not a flag. Call before
// any thread starts.
void ParseDaemonFlags(int argc, char** argv, const DaemonUsage& usage);

}  // namespace espalier
