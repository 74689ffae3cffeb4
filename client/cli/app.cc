// Dispatches arguments to a command, and maps its status to an exit code.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/net/private_file.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/interrupt.h"
#include "client/cli/proto_json.h"
#include "client/lib/client.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string FromEnv(const Environment& env, const char* name) {
  const char* value = env.getenv(name);
  return value == nullptr ? "" : value;
}

std::string Overview(const std::vector<Command>& commands) {
  std::string out =
      "espalier trains models along the best parallel plan and serves language models with token "
      "trees.\n\n"
      "Usage: espalier COMMAND [flags]\n\nCommands:\n";
  for (const Command& c : commands) {
    absl::StrAppend(&out, "  ", Pad(c.name, 15, Align::kLeft), "  ", c.summary, "\n");
  }
  absl::StrAppend(&out, "  ", Pad("help", 10, Align::kLeft),
                  "  show this help, or that of one command\n");
  absl::StrAppend(
      &out, "\nFlags of all commands:\n", DescribeFlags(CommonFlags()),
      "\nA first session:\n"
      "  espalier up --local-workers=2\n"
      "  espalier train --model=llama:tiny --dataset=text.txt --steps=200\n"
      "  espalier status\n"
      "  espalier down\n\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no coordinator answers, 4 not found, 130 "
      "interrupted, 141 nobody reads the output.\n");
  return out;
}

nlohmann::ordered_json HelpJson(const Command& c) {
  nlohmann::ordered_json json;
  json["name"] = c.name;
  json["summary"] = c.summary;
  json["usage"] = "espalier " + c.usage;
  json["flags"] = nlohmann::ordered_json::array();
  for (const FlagSpec& flag : c.flags) {
    json["flags"].push_back({{"name", flag.name}, {"value", flag.value}, {"doc", flag.doc}});
  }
  return json;
}

nlohmann::ordered_json OverviewJson(const std::vector<Command>& commands) {
  nlohmann::ordered_json json;
  for (const Command& c : commands) json["commands"].push_back(HelpJson(c));
  return json;
}

std::string HelpOf(const Command& c) {
  std::string out = absl::StrCat(c.summary, "\n\nUsage: espalier ", c.usage, "\n");
  if (!c.description.empty()) absl::StrAppend(&out, "\n", c.description, "\n");
  if (!c.flags.empty()) absl::StrAppend(&out, "\nFlags:\n", DescribeFlags(c.flags));
  absl::StrAppend(&out, "\nFlags of all commands:\n", DescribeFlags(CommonFlags()));
  if (!c.examples.empty()) absl::StrAppend(&out, "\nExamples:\n");
  for (const auto& [what, line] : c.examples)
    absl::StrAppend(&out, "  # ", what, "\n  ", line, "\n");
  return out;
}

int ShowHelp(const Environment& env, const Command& c, bool json) {
  *env.out << (json ? Dump(HelpJson(c), 2) + "\n" : HelpOf(c)) << std::flush;
  return kExitOk;
}

constexpr char kExitCodePayload[] = "espalier.exit_code";

int CodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  int code = 0;
  if (const auto payload = status.GetPayload(kExitCodePayload);
      payload.has_value() && absl::SimpleAtoi(std::string(*payload), &code)) {
    return code;
  }
  if (IsInterrupted(status)) return kExitInterrupted;
  if (IsUsageError(status)) return kExitUsage;
  if (IsUnreachable(status)) return kExitUnreachable;
  if (status.code() == absl::StatusCode::kNotFound) return kExitNotFound;
  return kExitFailed;
}

int Report(const Environment& env, const absl::Status& status, bool json,
           const std::string& command) {
  if (status.ok()) return kExitOk;
  // The command cancelled itself because its output was lost.
  if (!env.out->good() && absl::IsCancelled(status)) return kExitFailed;
  const std::string message(status.message());
  if (json) {
    nlohmann::ordered_json error;
    error["error"]["code"] = absl::StatusCodeToString(status.code());
    error["error"]["message"] = message;
    *env.out << Dump(error) << std::endl;
  }
  *env.err << Style(env.err_terminal).Red("espalier: ") << Printable(message, true) << "\n";
  if (IsUsageError(status)) {
    *env.err << "Try: espalier help" << (command.empty() ? "" : " " + command) << "\n";
  }
  env.err->flush();
  return CodeOf(status);
}

}  // namespace

absl::Status ProgramFailed(absl::string_view message, int exit_code) {
  absl::Status status = absl::InternalError(message);
  status.SetPayload(kExitCodePayload, absl::Cord(absl::StrCat(exit_code)));
  return status;
}

std::vector<FlagSpec> CommonFlags() {
  return {
      {"coordinator", FlagType::kText, "HOST:PORT",
       "address of the coordinator, or of all that stand by for each other, with commas between "
       "(ESPALIER_COORDINATOR; 127.0.0.1:7070)"},
      {"http-address", FlagType::kText, "HOST:PORT",
       "address of its HTTP gateway, or https://HOST[:PORT] (ESPALIER_HTTP; 127.0.0.1:8080)"},
      {"home", FlagType::kText, "DIR", "state of `espalier up` (ESPALIER_HOME; ~/.espalier)"},
      {"token-file", FlagType::kText, "FILE",
       "file with the access token (ESPALIER_TOKEN_FILE, or ESPALIER_TOKEN itself)"},
      {"tls", FlagType::kSwitch, "", "use TLS"},
      {"ca-file", FlagType::kText, "FILE",
       "trusted roots for TLS, PEM; implies --tls (ESPALIER_CA_FILE)"},
      {"cert-file", FlagType::kText, "FILE",
       "client certificate for TLS, PEM, if the coordinator asks for one (ESPALIER_CERT_FILE)"},
      {"key-file", FlagType::kText, "FILE", "its private key, PEM (ESPALIER_KEY_FILE)"},
      {"json", FlagType::kSwitch, "", "print one JSON document, or JSON lines for streams"},
      {"no-color", FlagType::kSwitch, "", "no colors (also: NO_COLOR)"},
      {"help", FlagType::kSwitch, "", "help about this command", 'h'},
  };
}

std::vector<Command> AllCommands() {
  return {UpCommand(),       DownCommand(),    StatusCommand(),         TrainCommand(),
          PlanCommand(),     ExplainCommand(), MachinesCommand(),       ProfileCommand(),
          JobsCommand(),     RunsCommand(),    ReplayCommand(),         HistoryCommand(),
          LogsCommand(),     ModelsCommand(),  ServeCommand(),          UnserveCommand(),
          GenerateCommand(), ChatCommand(),    EmbedCommand(),          PredictCommand(),
          EvaluateCommand(), BenchCommand(),   VerifyLosslessCommand(), BoostTuneCommand(),
          BackupCommand(),   TokenCommand(),   LoginCommand(),          LogoutCommand(),
          SlurmCommand(),    LaunchCommand(),  VersionCommand()};
}

Context::Context(const Environment& environment, ParsedFlags flags)
    : env_(environment), flags_(std::move(flags)), json_(flags_.Has("json")) {
  if (flags_.Has("no-color")) env_.terminal.color = env_.err_terminal.color = false;
}
Context::~Context() = default;

std::string Context::home() const {
  if (flags_.Has("home")) return flags_.Text("home");
  std::string home = FromEnv(env_, "ESPALIER_HOME");
  if (!home.empty()) return home;
  home = FromEnv(env_, "HOME");
  return (home.empty() ? "." : home) + "/.espalier";
}

std::string Context::coordinator() const {
  if (flags_.Has("coordinator")) return flags_.Text("coordinator");
  const std::string address = FromEnv(env_, "ESPALIER_COORDINATOR");
  if (!address.empty()) return address;
  return ReadAddresses(home()).grpc;
}

std::string Context::http_address() const {
  if (flags_.Has("http-address")) return flags_.Text("http-address");
  const std::string address = FromEnv(env_, "ESPALIER_HTTP");
  if (!address.empty()) return address;
  return ReadAddresses(home()).http;
}

Addresses Context::kept() const {
  const bool given = flags_.Has("coordinator") || flags_.Has("http-address") ||
                     !FromEnv(env_, "ESPALIER_COORDINATOR").empty() ||
                     !FromEnv(env_, "ESPALIER_HTTP").empty();
  return given ? Addresses() : ReadAddresses(home());
}

absl::StatusOr<std::string> Context::token() const {
  std::string file = flags_.Text("token-file", FromEnv(env_, "ESPALIER_TOKEN_FILE"));
  if (file.empty()) {
    const std::string token = FromEnv(env_, "ESPALIER_TOKEN");
    if (!token.empty()) return token;
    file = kept().token_file;
    if (file.empty()) return "";
  }
  auto text = ReadFile(file);
  if (!text.ok()) return text.status();
  if (absl::Status s = CheckPrivateFile("token-file", file); !s.ok()) return s;
  return std::string(absl::StripAsciiWhitespace(*text));
}

absl::StatusOr<Context::Tls> Context::tls() const {
  std::string ca_file = flags_.Text("ca-file", FromEnv(env_, "ESPALIER_CA_FILE"));
  if (ca_file.empty()) ca_file = kept().ca_file;
  const std::string certificate = flags_.Text("cert-file", FromEnv(env_, "ESPALIER_CERT_FILE"));
  const std::string key = flags_.Text("key-file", FromEnv(env_, "ESPALIER_KEY_FILE"));
  if (certificate.empty() != key.empty()) {
    return UsageError("--cert-file and --key-file go together: one of them is given");
  }
  Tls tls;
  tls.wanted = flags_.Has("tls") || !ca_file.empty();
  const struct {
    const std::string& path;
    std::string* pem;
  } files[] = {{ca_file, &tls.pem.ca}, {certificate, &tls.pem.certificate}, {key, &tls.pem.key}};
  for (const auto& [path, to] : files) {
    if (path.empty()) continue;
    auto pem = ReadFile(path);
    if (!pem.ok()) return pem.status();
    *to = *std::move(pem);
  }
  if (absl::Status s = CheckPrivateFile("key-file", key); !s.ok()) return s;
  return tls;
}

absl::StatusOr<const Gateway*> Context::gateway() {
  if (gateway_.has_value()) return &*gateway_;
  auto token = this->token();
  if (!token.ok()) return token.status();
  auto tls = this->tls();
  if (!tls.ok()) return tls.status();
  auto gateway = MakeGateway(http_address(), tls->wanted, tls->pem, *token);
  if (!gateway.ok()) {
    return gateway.status().code() == absl::StatusCode::kInvalidArgument
               ? UsageError(std::string(gateway.status().message()))
               : gateway.status();
  }
  gateway_ = *std::move(gateway);
  return &*gateway_;
}

absl::StatusOr<Client*> Context::client() {
  if (client_ != nullptr) return client_.get();
  ClientOptions options;
  auto token = this->token();
  if (!token.ok()) return token.status();
  options.token = *token;
  auto tls = this->tls();
  if (!tls.ok()) return tls.status();
  options.tls = tls->wanted;
  options.ca_pem = std::move(tls->pem.ca);
  options.certificate_pem = std::move(tls->pem.certificate);
  options.key_pem = std::move(tls->pem.key);
  auto client = Client::Connect(coordinator(), options);
  if (!client.ok()) {
    return client.status().code() == absl::StatusCode::kInvalidArgument
               ? UsageError(std::string(client.status().message()))
               : client.status();
  }
  client_ = *std::move(client);
  return client_.get();
}

void Context::Document(const nlohmann::ordered_json& json) {
  answered_ = true;
  out() << Dump(json, 2) << std::endl;
}
void Context::Line(const nlohmann::ordered_json& json) { out() << Dump(json) << std::endl; }

absl::Status CheckArguments(const Context& context, size_t least, size_t most,
                            const std::string& what) {
  const auto& given = context.flags().positional();
  if (given.size() >= least && given.size() <= most) return absl::OkStatus();
  if (given.size() < least) return UsageError(absl::StrCat("missing: ", what));
  return UsageError(absl::StrCat("unexpected argument \"", Printable(given[most]), "\"",
                                 what.empty() ? "" : absl::StrCat("; accepted: ", what)));
}

namespace {

// Puts flags of all commands that stand before the command behind it.
std::vector<std::string> CommandFirst(std::vector<std::string> args) {
  const std::vector<FlagSpec> common = CommonFlags();
  size_t flags = 0;
  while (flags < args.size() && absl::StartsWith(args[flags], "--")) {
    const std::string name = args[flags].substr(2, args[flags].find('=') - 2);
    const auto spec = std::find_if(common.begin(), common.end(),
                                   [&](const FlagSpec& flag) { return flag.name == name; });
    if (spec == common.end() || spec->name == "help") return args;
    const bool value_follows =
        spec->type != FlagType::kSwitch && args[flags].find('=') == std::string::npos;
    flags += value_follows ? 2 : 1;
  }
  if (flags < args.size())
    std::rotate(args.begin(), args.begin() + flags, args.begin() + flags + 1);
  return args;
}

int RunCommand(const std::vector<std::string>& given, const Environment& env) {
  const std::vector<std::string> args = CommandFirst(given);
  const std::vector<Command> commands = AllCommands();
  const bool json = std::find(args.begin(), args.end(), "--json") != args.end();
  if (args.empty()) {
    *env.err << Overview(commands) << std::flush;
    return kExitUsage;
  }
  std::string name = args[0] == "--version" ? "version" : args[0];
  const bool help = name == "help" || name == "--help" || name == "-h";
  if (help) {
    const auto asked = std::find_if(args.begin() + 1, args.end(), [](const std::string& word) {
      return !absl::StartsWith(word, "-");
    });
    if (asked == args.end()) {
      *env.out << (json ? Dump(OverviewJson(commands), 2) + "\n" : Overview(commands))
               << std::flush;
      return kExitOk;
    }
    name = *asked;
  }
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& c) { return c.name == name; });
  if (command == commands.end()) {
    std::vector<std::string> names;
    for (const Command& c : commands) names.push_back(c.name);
    const std::string near = Nearest(name, names);
    return Report(
        env,
        UsageError(absl::StrCat("unknown command \"", Printable(name), "\"",
                                near.empty() ? "" : absl::StrCat("; did you mean ", near, "?"))),
        json, "");
  }
  if (help) return ShowHelp(env, *command, json);
  std::vector<FlagSpec> specs = command->flags;
  for (FlagSpec& spec : CommonFlags()) specs.push_back(std::move(spec));
  auto flags = ParseFlags(specs, {args.begin() + 1, args.end()});
  if (!flags.ok()) return Report(env, flags.status(), json, name);
  if (flags->Has("help")) return ShowHelp(env, *command, flags->Has("json"));
  Context context(env, *std::move(flags));
  const absl::Status status = command->run(context);
  // If a JSON document already reports the problem, print no second one.
  return Report(context.env(), status, context.json() && !context.answered(), name);
}

}  // namespace

int RunEspalier(const std::vector<std::string>& args, const Environment& env) {
  const int code = RunCommand(args, env);
  env.out->flush();
  if (env.out->good()) return code;
  if (env.output_closed && env.output_closed()) return kExitBrokenPipe;
  *env.err << "espalier: the output cannot be written completely; is the disk full?\n"
           << std::flush;
  return kExitFailed;
}

}  // namespace espalier
