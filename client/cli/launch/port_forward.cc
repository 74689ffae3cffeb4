#include "client/cli/launch/port_forward.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/launch/child_process.h"

namespace espalier {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kStartAgainAfter = absl::Seconds(1);
constexpr double kStopSeconds = 2;

// Of "Forwarding from 127.0.0.1:40123 -> 7070"; 0: there is none yet.
int ForwardedPort(const std::string& said) {
  static const std::regex line(R"(Forwarding from 127\.0\.0\.1:([0-9]+) -> )");
  std::smatch match;
  int port = 0;
  return std::regex_search(said, match, line) && absl::SimpleAtoi(match[1].str(), &port) ? port : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PortForward>> PortForward::Start(std::vector<std::string> command,
                                                                int remote_port) {
  std::unique_ptr<PortForward> forward(new PortForward(std::move(command), remote_port));
  forward->thread_ = std::thread([own = forward.get()] { own->Loop(); });
  absl::MutexLock lock(&forward->mutex_);
  while (forward->port_ == 0 && forward->status_.ok()) forward->changed_.Wait(&forward->mutex_);
  if (!forward->status_.ok()) return forward->status_;
  return forward;
}

PortForward::~PortForward() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

int PortForward::port() const {
  absl::MutexLock lock(&mutex_);
  return port_;
}

// The thread that starts a child must live as long as it.
void PortForward::Loop() {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (!stop_) {
    ChildOptions options;
    options.command = command_;
    options.command.push_back(
        absl::StrCat(port_ == 0 ? "" : absl::StrCat(port_), ":", remote_port_));
    options.keep_output = true;
    options.own_group = true;  // a Ctrl-C of the terminal is for the command beside it
    absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(options);
    const bool started = child.ok();
    while (started && !stop_ && !(*child)->Ended()) {
      if (port_ == 0) {
        port_ = ForwardedPort((*child)->output());
        if (port_ == 0 && absl::Now() > deadline) break;
        changed_.SignalAll();
      }
      changed_.WaitWithTimeout(&mutex_, kPoll);
    }
    if (port_ == 0 && !stop_) {
      status_ = started ? absl::UnavailableError(
                              absl::StrCat("kubectl does not forward the coordinator's port: ",
                                           absl::StripAsciiWhitespace((*child)->errors())))
                        : child.status();
      changed_.SignalAll();
    }
    if (started) (*child)->Stop(kStopSeconds);
    if (!status_.ok()) return;
    if (!stop_) changed_.WaitWithTimeout(&mutex_, kStartAgainAfter);
  }
}

}  // namespace espalier
