// Programs that a command starts beside itself: srun, ssh, a coordinator.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct ChildOptions {
  std::vector<std::string> command;                // found on the PATH
  std::map<std::string, std::string> environment;  // in addition to this process's
  std::string input;                               // its standard input
  std::string input_file;                          // instead of `input`, unless empty
  // Where its standard output and error go: into memory, see output() and errors(); else both to
  // this file, at its end; else where this process's go.
  bool keep_output = false;
  std::string output_file;
  bool keep_errors = false;  // with neither of them: errors() alone
  // In a process group of its own: a terminal's Ctrl-C does not reach it.
  bool own_group = false;
};

// One child of this process. Not thread-safe. It gets SIGTERM if the thread that started it ends
// without having waited for it.
class ChildProcess {
 public:
  // NotFound if there is no such program; otherwise Unavailable if it cannot be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildOptions& options);
  // Starts it and waits for its end.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Run(const ChildOptions& options);
  // Kills it if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Whether it has ended. Does not block.
  bool Ended();
  // REQUIRES: it has ended. As shells report it: 128 and the signal's number if one ended it. 1 if
  // somebody else has waited for it.
  int exit_code() const { return exit_code_; }
  // No effect once it has ended.
  void Signal(int signal);
  // Sends SIGTERM, and SIGKILL after so many seconds; returns once it has ended.
  void Stop(double seconds);

  // What it has written so far.
  std::string output() const;
  std::string errors() const;

 private:
  ChildProcess() = default;

  pid_t pid_ = 0;
  bool ended_ = false;
  int exit_code_ = 0;
  int output_ = -1;  // descriptors of files in memory
  int errors_ = -1;
};

}  // namespace espalier
