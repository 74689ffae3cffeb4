// The command line of a daemon: flags defined by ABSL_FLAG, written with dashes as the `espalier`
// command writes its own.
#pragma once

#include <string>

namespace espalier {

struct DaemonUsage {
  std::string program;  // "espalierd"
  std::string summary;  // one sentence
  std::string example;  // a command line
  // Flags of other files (of libraries) are neither accepted nor shown.
  std::string flags_file;  // "server/main.cc"
};

// Sets the flags from `--name=value`, `--name value` or, for bools, `--name`. Prints the help and
// ends the process with 0 for --help; --help --json prints it as JSON. With --version prints the
// version and ends the process with 0 if all other arguments are right. Ends the process with 2 and a
// message that names the remedy if a flag is unknown, written with underscores, or has a wrong
// value, or if there is an argument that is no flag. Call before any thread starts.
void ParseDaemonFlags(int argc, char** argv, const DaemonUsage& usage);

}  // namespace espalier
