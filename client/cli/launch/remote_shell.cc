#include "client/cli/launch/remote_shell.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "client/cli/interrupt.h"
#include "client/cli/launch/shell_quote.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// From ten connections on that have not authenticated yet, sshd drops some (MaxStartups). The host,
// or one that all connections jump over, may have others', too: what is dropped tries again.
constexpr size_t kMostAtOnce = 8;
constexpr int kMostAttempts = 5;
constexpr std::chrono::milliseconds kPause{500};  // after the first attempt; twice after the second
constexpr char kDropped[] = "kex_exchange_identification";
constexpr int kSshFailed = 255;

struct Remedy {
  const char* said;
  const char* remedy;
};
// Of connections.
constexpr Remedy kSshRemedies[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key is another one than before: find out why, then `ssh-keygen -R` the old one"},
    {"Host key verification failed",
     "its host key is not known here: connect once by hand and compare the key, or add it to "
     "~/.ssh/known_hosts"},
    {"Permission denied",
     "it takes none of your keys, and passwords cannot be asked for here: copy a key there with "
     "ssh-copy-id, load it with ssh-add, or name user and key in ~/.ssh/config"},
    {"Could not resolve hostname", "check the name in the hosts file, or ~/.ssh/config"},
    {"Connection refused", "no sshd listens there: start it, or name its port in ~/.ssh/config"},
    {"timed out", "it does not answer: check that it runs, and that a firewall lets ssh through"},
    {kDropped,
     "its sshd, or one on the way, ended the connection before anybody was asked who he is: it has "
     "too many (MaxStartups), or refuses this host (hosts.deny, fail2ban)"},
    {"No route to host", "check that it runs, and the network between here and there"},
    {"Network is unreachable", "check the network between here and there"},
};
// Of scripts and programs on hosts.
constexpr Remedy kHostRemedies[] = {
    {"GLIBC_",
     "its C library is older than the one of the machine on which the bundle was made: make the "
     "bundle on the oldest system among your hosts (deploy/bundle.sh)"},
    {"cannot execute: required file not found",
     "its C library is another one (musl?): the programs need glibc"},
    {"Exec format error",
     "its processor is of another kind: the bundle is for this machine's kind"},
    {"error while loading shared libraries",
     "a library is missing there: use the bundle that deploy/bundle.sh makes"},
    {"cannot reach this worker",
     "the coordinator calls its workers back: let TCP from the coordinator's host through to this "
     "one, to all ports that programs take"},
    {"no coordinator answers at",
     "let TCP from this host through to the coordinator's, or start the coordinator elsewhere "
     "(--coordinator-here, or another first line)"},
    {"No space left on device", "its disk is full"},
    {"xz: Cannot exec", "install xz-utils there, or give a bundle that is not compressed"},
};

std::string Place(const RemoteCall& call) { return call.host.empty() ? "this host" : call.host; }

std::string Shown(const std::string& errors) {
  std::vector<std::string> lines =
      absl::StrSplit(errors, absl::ByAnyChar("\r\n"), absl::SkipWhitespace());
  constexpr size_t kLines = 8;
  if (lines.size() > kLines) lines.erase(lines.begin(), lines.end() - kLines);
  return Printable(absl::StrJoin(lines, "\n  "), true);
}

}  // namespace

Answers ReadAnswers(absl::string_view output) {
  Answers answers;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos) continue;
    answers[std::string(line.substr(0, equals))] =
        std::string(absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }
  return answers;
}

absl::Status ExplainFailure(const RemoteCall& call, const std::string& ssh, int code,
                            const std::string& errors) {
  const std::string host = Place(call);
  const bool connection = code == kSshFailed && !call.host.empty();
  std::string text = connection
                         ? absl::StrCat(host, ": `", ssh, " ", call.host, "` failed")
                         : absl::StrCat(host, ": cannot ", call.what, " (exit code ", code, ")");
  const std::string shown = Shown(errors);
  if (!shown.empty()) absl::StrAppend(&text, ":\n  ", shown);
  const absl::Span<const Remedy> remedies =
      connection ? absl::MakeConstSpan(kSshRemedies) : absl::MakeConstSpan(kHostRemedies);
  const auto remedy = std::find_if(remedies.begin(), remedies.end(), [&](const Remedy& one) {
    return absl::StrContains(errors, one.said);
  });
  if (remedy != remedies.end()) absl::StrAppend(&text, "\nremedy: ", remedy->remedy);
  return absl::UnavailableError(text);
}

absl::Status AllErrors(const std::vector<absl::StatusOr<std::string>>& results) {
  std::vector<std::string> errors;
  absl::Status first = absl::OkStatus();
  for (const auto& result : results) {
    if (result.ok()) continue;
    if (first.ok()) first = result.status();
    errors.emplace_back(result.status().message());
  }
  if (first.ok() || IsInterrupted(first) || errors.size() == 1) return first;
  return absl::Status(first.code(), absl::StrJoin(errors, "\n"));
}

absl::StatusOr<std::unique_ptr<ChildProcess>> RemoteShell::StartCall(const RemoteCall& call) const {
  ChildOptions options;
  if (call.host.empty()) {
    options.command = {"sh"};
  } else {
    options.command = absl::StrSplit(ssh_, ' ', absl::SkipEmpty());
    // -T: no terminal. A key that needs a passphrase, or a new host key, fails at once.
    for (const char* const word : {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"}) {
      options.command.emplace_back(word);
    }
    options.command.push_back(call.host);
    options.command.push_back("sh");
  }
  // Scripts go by standard input: other users see command lines.
  if (call.input_file.empty()) {
    options.command.push_back("-s");
    options.input = call.script;
  } else {
    options.command.push_back("-c");
    options.command.push_back(call.host.empty() ? call.script : ShellQuote(call.script));
    options.input_file = call.input_file;
  }
  options.keep_output = true;
  // Ctrl-C ends the launch, which stops what it has started by ssh.
  options.own_group = true;
  auto process = ChildProcess::Start(options);
  if (process.ok() || call.host.empty() || !absl::IsNotFound(process.status())) return process;
  return absl::NotFoundError(absl::StrCat(
      ssh_, " is not there; install openssh-client, or name another client with --ssh"));
}

std::vector<absl::StatusOr<std::string>> RemoteShell::Run(const std::vector<RemoteCall>& calls,
                                                          double seconds) const {
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    size_t index;
    int attempt;
    Clock::time_point from;
  };
  struct Running {
    std::unique_ptr<ChildProcess> process;
    int attempt;
    Clock::time_point begin;
  };
  std::vector<absl::StatusOr<std::string>> results(calls.size(), absl::UnknownError(""));
  std::deque<Waiting> waiting;
  for (size_t i = 0; i < calls.size(); ++i) waiting.push_back({i, 1, Clock::now()});
  std::map<size_t, Running> running;
  while (!waiting.empty() || !running.empty()) {
    if (interrupted_()) {
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!results[i].ok()) results[i] = InterruptedError("interrupted");
      }
      return results;
    }
    for (auto next = waiting.begin(); next != waiting.end() && running.size() < kMostAtOnce;) {
      if (Clock::now() < next->from) {
        ++next;
        continue;
      }
      auto process = StartCall(calls[next->index]);
      if (process.ok()) {
        running[next->index] = {*std::move(process), next->attempt, Clock::now()};
      } else {
        results[next->index] = process.status();
      }
      next = waiting.erase(next);
    }
    for (auto it = running.begin(); it != running.end();) {
      auto& [index, child] = *it;
      const std::chrono::duration<double> waited = Clock::now() - child.begin;
      if (!child.process->Ended() && waited.count() < seconds) {
        ++it;
        continue;
      }
      const std::string errors = child.process->errors();
      if (!child.process->Ended()) {
        results[index] = absl::DeadlineExceededError(absl::StrCat(Place(calls[index]), ": cannot ",
                                                                  calls[index].what, " within ",
                                                                  seconds, " s: ", Shown(errors)));
      } else if (child.process->exit_code() == 0) {
        results[index] = child.process->output();
      } else if (child.process->exit_code() == kSshFailed && absl::StrContains(errors, kDropped) &&
                 child.attempt < kMostAttempts) {
        waiting.push_back({index, child.attempt + 1, Clock::now() + child.attempt * kPause});
      } else {
        results[index] = ExplainFailure(calls[index], ssh_, child.process->exit_code(), errors);
      }
      it = running.erase(it);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return results;
}

absl::StatusOr<std::string> RemoteShell::RunOne(const RemoteCall& call, double seconds) const {
  return Run({call}, seconds)[0];
}

}  // namespace espalier
