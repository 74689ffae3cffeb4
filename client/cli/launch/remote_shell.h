// Scripts on other hosts, by OpenSSH's client.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/launch/child_process.h"

namespace espalier {

struct RemoteCall {
  std::string host;        // as ssh takes it; empty: this host
  std::string what;        // for errors: "start the worker"
  std::string script;      // for sh
  std::string input_file;  // the script's standard input; empty: none
};

// Answers of scripts, "name=value" by line.
using Answers = std::map<std::string, std::string>;
Answers ReadAnswers(absl::string_view output);

// Says what a failed script means, and what to do. `code`: its exit code, ssh's own is 255.
absl::Status ExplainFailure(const RemoteCall& call, const std::string& ssh, int code,
                            const std::string& errors);

// OK if all results are; otherwise the first one's code with the messages of all: who launches on a
// hundred hosts wants to know of all that fail.
absl::Status AllErrors(const std::vector<absl::StatusOr<std::string>>& results);

class RemoteShell {
 public:
  // `ssh`: the client's command line, "ssh -F file". `interrupted` is polled several times a
  // second.
  RemoteShell(std::string ssh, std::function<bool()> interrupted)
      : ssh_(std::move(ssh)), interrupted_(std::move(interrupted)) {}

  const std::string& ssh() const { return ssh_; }
  // Runs all at once, a few connections at a time; those that sshd drops are made anew. Returns
  // their standard outputs, by call. Errors name host, command, what it wrote and the remedy.
  std::vector<absl::StatusOr<std::string>> Run(const std::vector<RemoteCall>& calls,
                                               double seconds) const;
  absl::StatusOr<std::string> RunOne(const RemoteCall& call, double seconds) const;

 private:
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartCall(const RemoteCall& call) const;

  const std::string ssh_;
  const std::function<bool()> interrupted_;
};

}  // namespace espalier
