#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status RunUp(Context& context) {
  const ParsedFlags& flags = context.flags();
  for (const std::string& extra : flags.positional()) {
    if (extra[0] != '-') {
      return UsageError(absl::StrCat("unexpected argument \"", Printable(extra),
                                     "\"; accepted: flags of espalierd after --"));
    }
  }
  const std::string home = context.home();
  std::error_code error;
  std::filesystem::create_directories(home, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat("cannot make ", home, ": ", error.message()));
  const std::string absolute = std::filesystem::absolute(home).string();

  if (const int pid = RunningDaemon(absolute); pid != 0) {
    const Addresses at = ReadAddresses(absolute);
    return absl::AlreadyExistsError(absl::StrCat("espalierd is already running (process ", pid,
                                                 ", gRPC ", at.grpc, ", HTTP ", at.http,
                                                 "); stop it: espalier down"));
  }
  auto daemon = FindProgram(context.env().program, "server", "espalierd");
  if (!daemon.ok()) return daemon.status();
  std::vector<std::string> command = {
      *daemon,
      "--data-dir=" + absolute + "/data",
      "--listen=" + flags.Text("listen", "127.0.0.1:7070"),
      "--http-listen=" + flags.Text("http-listen", "127.0.0.1:8080"),
      absl::StrCat("--local-workers=", flags.Int("local-workers", 1)),
      "--ready-file=" + ReadyFile(absolute),
  };
  if (flags.Has("worker-memory")) {
    const double bytes = flags.Number("worker-memory", 0) * 0x1p30;
    command.push_back(absl::StrCat("--worker-memory=", static_cast<int64_t>(bytes)));
  }
  if (flags.Has("swap-dir")) {
    command.push_back(absl::StrCat("--worker-swap-dir=",
                                   std::filesystem::absolute(flags.Text("swap-dir")).string()));
  }
  bool tls = false;
  for (const std::string& extra : flags.positional()) {
    tls = tls || absl::StartsWith(extra, "--tls-cert") || absl::StartsWith(extra, "--tls=");
    command.push_back(extra);
  }
  auto pid = StartDaemon(command, absolute, flags.Number("timeout", 90));
  if (!pid.ok()) return pid.status();

  const Addresses at = ReadAddresses(absolute);
  if (context.json()) {
    nlohmann::ordered_json json;
    json["pid"] = *pid;
    json["grpc"] = at.grpc;
    json["http"] = at.http;
    json["home"] = absolute;
    json["log"] = LogFile(absolute);
    context.Document(json);
    return absl::OkStatus();
  }
  const Style style = context.style();
  context.out() << style.Green("espalierd is ready") << " (process " << *pid << ")\n"
                << "  gRPC  " << at.grpc << "\n"
                << "  HTTP  " << (tls ? "https://" : "http://") << at.http << "\n"
                << "  log   " << LogFile(absolute) << "\n"
                << "Stop it: espalier down" << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command UpCommand() {
  Command c;
  c.name = "up";
  c.summary = "start a coordinator with local workers in the background";
  c.usage = "up [--local-workers=N] [flags] [-- FLAGS OF ESPALIERD]";
  c.description =
      "Runs the espalierd next to this program. Its state, log and pid file lie under --home, "
      "where\nlater commands find its addresses.";
  c.flags = {
      {"local-workers", FlagType::kInt, "N", "worker processes on this machine (1)", 0, 0, 1024},
      {"worker-memory", FlagType::kNumber, "GIB",
       "memory per worker; larger programs are made to fit (three quarters of the memory, divided "
       "among the workers)",
       0, 1e-6},
      {"swap-dir", FlagType::kText, "FOLDER",
       "folder for the workers' swapped tensors (in memory)"},
      {"listen", FlagType::kText, "HOST:PORT", "gRPC address; port 0 chooses one (127.0.0.1:7070)"},
      {"http-listen", FlagType::kText, "HOST:PORT", "HTTP address (127.0.0.1:8080)"},
      {"timeout", FlagType::kNumber, "SECONDS", "maximum time until it answers (90)", 0, 0},
  };
  c.examples = {{"one machine, two workers", "espalier up --local-workers=2"},
                {"a second coordinator",
                 "espalier up --home=/tmp/second --listen=127.0.0.1:0 --http-listen=127.0.0.1:0"}};
  c.run = RunUp;
  return c;
}

}  // namespace espalier
