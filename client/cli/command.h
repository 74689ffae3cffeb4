// The commands of `espalier` and their context.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/daemon.h"
#include "client/cli/flags.h"
#include "client/cli/gateway.h"
#include "client/lib/client.h"
#include "client/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace espalier {

// A command's access to the outside; tests substitute their own.
struct Environment {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  std::istream* in = nullptr;
  Terminal terminal;      // of `out`
  Terminal err_terminal;  // of `err`
  std::function<const char*(const char*)> getenv;
  std::function<double()> seconds;  // steady
  // Returns true if the reader of `out` (a pipe) is gone. Null: never.
  std::function<bool()> output_closed;
  std::string program;  // path of this executable; daemons lie next to it
};

class Context {
 public:
  Context(const Environment& environment, ParsedFlags flags);
  ~Context();

  const Environment& env() const { return env_; }
  const ParsedFlags& flags() const { return flags_; }
  bool json() const { return json_; }
  std::ostream& out() const { return *env_.out; }
  // Where progress is shown: standard output, or nowhere with --json.
  const Terminal& terminal() const { return env_.terminal; }
  Style style() const { return Style(env_.terminal); }

  // Connects on first use.
  absl::StatusOr<Client*> client();
  // Created on first use, without connecting. Uses TLS if the scheme of http_address() or the TLS
  // flags say so.
  absl::StatusOr<const Gateway*> gateway();
  // --coordinator, ESPALIER_COORDINATOR, the running `up` or `login`, 127.0.0.1:7070
  std::string coordinator() const;
  // --http-address, ESPALIER_HTTP, the running `up` or `login`, 127.0.0.1:8080
  std::string http_address() const;
  std::string home() const;  // --home, ESPALIER_HOME, ~/.espalier
  // --token-file, ESPALIER_TOKEN_FILE, ESPALIER_TOKEN, that of `up` or `login`
  absl::StatusOr<std::string> token() const;
  struct Tls {
    bool wanted = false;
    GatewayTls pem;
  };
  // --tls, --ca-file, --cert-file, --key-file, the CA of `up` or `login`
  absl::StatusOr<Tls> tls() const;

  // With --json: writes the whole answer. Streams write one Line each.
  void Document(const nlohmann::ordered_json& json);
  void Line(const nlohmann::ordered_json& json);
  bool answered() const { return answered_; }  // a Document was written

 private:
  // The coordinator that --home knows, unless an address is given: its key is for nobody else.
  Addresses kept() const;

  Environment env_;
  ParsedFlags flags_;
  bool json_;
  bool answered_ = false;
  std::unique_ptr<Client> client_;
  std::optional<Gateway> gateway_;
};

struct Command {
  std::string name;
  std::string summary;  // one line
  std::string usage;    // after "espalier ": "train --model=MODEL --dataset=FILE [flags]"
  std::string description;
  std::vector<FlagSpec> flags;                                // in addition to CommonFlags
  std::vector<std::pair<std::string, std::string>> examples;  // purpose, command line
  std::function<absl::Status(Context&)> run;
};

// --coordinator, --json, --help ...
std::vector<FlagSpec> CommonFlags();

// Each is defined in the command's own file.
Command UpCommand();
Command DownCommand();
Command StatusCommand();
Command TrainCommand();
Command PlanCommand();
Command ExplainCommand();
Command MachinesCommand();
Command ProfileCommand();
Command JobsCommand();
Command RunsCommand();
Command ReplayCommand();
Command HistoryCommand();
Command LogsCommand();
Command ModelsCommand();
Command ServeCommand();
Command UnserveCommand();
Command GenerateCommand();
Command ChatCommand();
Command EmbedCommand();
Command PredictCommand();
Command EvaluateCommand();
Command BenchCommand();
Command VerifyLosslessCommand();
Command BoostTuneCommand();
Command BackupCommand();
Command TokenCommand();
Command LoginCommand();
Command LogoutCommand();
Command SlurmCommand();
Command LaunchCommand();
Command VersionCommand();

std::vector<Command> AllCommands();

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,  // no coordinator answered
  kExitNotFound = 4,
  kExitInterrupted = 130,  // as shells report Ctrl-C
  kExitBrokenPipe = 141,   // as shells report SIGPIPE
};

// The status of a command whose part was another program that has failed: it ends with that one's
// exit code.
absl::Status ProgramFailed(absl::string_view message, int exit_code);

// Runs the command line `args` (without the program's name) and returns its exit code. Output that
// could not be written is a failure even if the command succeeded; if its reader is gone, a silent
// one.
int RunEspalier(const std::vector<std::string>& args, const Environment& environment);

// Returns a usage error unless there are `least` to `most` positional arguments; `what` names them:
// "a job id".
absl::Status CheckArguments(const Context& context, size_t least, size_t most,
                            const std::string& what);

}  // namespace espalier
