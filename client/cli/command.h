// What a command of `espalier` is, and what it is given.
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
#include "client/cli/flags.h"
#include "client/cli/gateway.h"
#include "client/lib/client.h"
#include "client/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace espalier {

// The world as commands see it; tests put their own in place.
struct Environment {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  std::istream* in = nullptr;
  Terminal terminal;      // behind `out`
  Terminal err_terminal;  // behind `err`
  std::function<const char*(const char*)> getenv;
  std::function<double()> seconds;  // steady
  // Whether nobody reads `out` any more, a pipe. Null: that cannot be.
  std::function<bool()> output_closed;
  std::string program;  // path of this executable; daemons are found beside it
};

class Context {
 public:
  Context(const Environment& environment, ParsedFlags flags);
  ~Context();

  const Environment& env() const { return env_; }
  const ParsedFlags& flags() const { return flags_; }
  bool json() const { return json_; }
  std::ostream& out() const { return *env_.out; }
  // Where progress goes: standard output, or nowhere with --json.
  const Terminal& terminal() const { return env_.terminal; }
  Style style() const { return Style(env_.terminal); }

  // Connects on first use.
  absl::StatusOr<Client*> client();
  // Made on first use, without connecting. TLS by the scheme of http_address(), or by the flags
  // that make the client speak it.
  absl::StatusOr<const Gateway*> gateway();
  std::string coordinator()
      const;  // --coordinator, ESPALIER_COORDINATOR, the running `up`, 127.0.0.1:7070
  std::string http_address()
      const;                 // --http-address, ESPALIER_HTTP, the running `up`, 127.0.0.1:8080
  std::string home() const;  // --home, ESPALIER_HOME, ~/.espalier
  absl::StatusOr<std::string> token() const;  // --token-file, ESPALIER_TOKEN_FILE, ESPALIER_TOKEN
  struct Tls {
    bool wanted = false;
    GatewayTls pem;
  };
  absl::StatusOr<Tls> tls() const;  // --tls, --ca-file, --cert-file, --key-file

  // With --json: the whole answer. Streams write one Line each.
  void Document(const nlohmann::ordered_json& json);
  void Line(const nlohmann::ordered_json& json);
  bool answered() const { return answered_; }  // a Document was written

 private:
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
  std::vector<FlagSpec> flags;                                // besides those of all commands
  std::vector<std::pair<std::string, std::string>> examples;  // what for, command line
  std::function<absl::Status(Context&)> run;
};

// --coordinator, --json, --help ...
std::vector<FlagSpec> CommonFlags();

// Declared beside the commands' own files.
Command UpCommand();
Command DownCommand();
Command StatusCommand();
Command TrainCommand();
Command PlanCommand();
Command ExplainCommand();
Command MachinesCommand();
Command ProfileCommand();
Command JobsCommand();
Command LogsCommand();
Command ModelsCommand();
Command ServeCommand();
Command UnserveCommand();
Command GenerateCommand();
Command ChatCommand();
Command EmbedCommand();
Command BenchCommand();
Command VerifyLosslessCommand();
Command BoostTuneCommand();
Command VersionCommand();

std::vector<Command> AllCommands();

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,  // no coordinator there
  kExitNotFound = 4,
  kExitInterrupted = 130,  // as shells have it for Ctrl-C
  kExitBrokenPipe = 141,   // likewise for SIGPIPE, of which others die
};

// `args` without the program's name. Output that could not be written is a failure, whatever came
// of the command; where its reader has gone, one without words.
int RunEspalier(const std::vector<std::string>& args, const Environment& environment);

// Refuses more or fewer positional arguments; `what` names them: "a job id".
absl::Status CheckArguments(const Context& context, size_t least, size_t most,
                            const std::string& what);

}  // namespace espalier
