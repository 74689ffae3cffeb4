#include <unistd.h>

#include <filesystem>
#include <istream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/net/access_token.h"
#include "base/net/identity_folder.h"
#include "base/net/pinned_ca.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr char kToken[] = "token", kCa[] = "ca.pem";

std::string LoginFolder(const std::string& home) { return JoinPath(home, "login"); }

// Writes what later commands and the Python package read (ReadAddresses).
absl::Status Keep(const std::string& home, const AccessTokenText& token, const std::string& text,
                  const std::string& ca, Addresses* kept) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string folder = LoginFolder(home);
  if (absl::Status s = CreateDurableDirectories(*files, folder); !s.ok()) return s;
  if (absl::Status s = WriteIdentity(folder, {{kToken, text + "\n"}, {kCa, ca}}); !s.ok()) return s;
  kept->ca_file = IdentityPath(folder, kCa);
  kept->token_file = IdentityPath(folder, kToken);
  kept->grpc = token.coordinator;
  if (!token.http.empty()) kept->http = token.http;
  nlohmann::ordered_json json;
  json["grpc"] = kept->grpc;
  json["http"] = token.http;
  json["ca_file"] = kept->ca_file;
  json["token_file"] = kept->token_file;
  return WriteFileAtomically(*files, ConnectionFile(home), json.dump() + "\n");
}

absl::Status RunLogin(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 1, "the token"); !s.ok()) return s;
  std::string text;
  if (context.flags().positional().empty()) {
    if (context.env().err_terminal.is_tty && isatty(STDIN_FILENO) == 1) {
      *context.env().err << "token: " << std::flush;
    }
    std::getline(*context.env().in, text);
  } else {
    text = context.flags().positional()[0];
  }
  text = std::string(absl::StripAsciiWhitespace(text));
  if (text.empty()) {
    return UsageError(
        "missing: a token, as an argument or on standard input; an admin makes one: `espalier "
        "token create --role=train,infer --owner=NAME --ttl=30d`");
  }
  const absl::StatusOr<AccessTokenText> token = ParseAccessToken(text);
  if (!token.ok()) return UsageError(std::string(token.status().message()));
  absl::StatusOr<std::string> ca = absl::UnavailableError("the token names no coordinator");
  // Any of several has it.
  for (const absl::string_view address : absl::StrSplit(token->coordinator, ',')) {
    ca = FetchPinnedCa(std::string(address), token->ca_sha256, kTimeout);
    if (ca.ok() || !absl::IsUnavailable(ca.status())) break;
  }
  if (!ca.ok()) return ca.status();
  ClientOptions options;
  options.token = text;
  options.tls = true;
  options.ca_pem = *ca;
  const absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Connect(token->coordinator, options);
  if (!client.ok()) return client.status();
  if (const auto status = (*client)->Status(); !status.ok()) return status.status();
  std::error_code error;
  const std::string home = std::filesystem::absolute(context.home(), error).string();
  Addresses kept;
  if (absl::Status s = Keep(home, *token, text, *ca, &kept); !s.ok()) return s;
  if (context.json()) {
    nlohmann::ordered_json json;
    json["coordinator"] = token->coordinator;
    json["http"] = token->http;
    json["ca_file"] = kept.ca_file;
    json["token_file"] = kept.token_file;
    context.Document(json);
    return absl::OkStatus();
  }
  context.out() << "logged in to " << token->coordinator
                << ": later commands, and Python's espalier.Client(), use it\n"
                << "  key  " << kept.token_file << "\n"
                << "  CA   " << kept.ca_file << "\n";
  if (!token->http.empty()) context.out() << "  HTTP https://" << token->http << "\n";
  if (RunningDaemon(home) != 0) {
    context.out() << "But the coordinator of `espalier up` runs here, and goes first: espalier "
                     "down, or another --home\n";
  }
  context.out() << std::flush;
  return absl::OkStatus();
}

// The coordinator has no part in it: what was kept here is removed, and the token is still valid.
absl::Status RunLogout(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  std::error_code error;
  const std::string home = std::filesystem::absolute(context.home(), error).string();
  const std::string folder = LoginFolder(home);
  if (!std::filesystem::exists(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("there is no login in ", home, "; --home or ESPALIER_HOME names another one"));
  }
  AccessTokenText token;
  if (const auto text = ReadFile(IdentityPath(folder, kToken)); text.ok()) {
    const absl::StatusOr<AccessTokenText> parsed = ParseAccessToken(*text);
    if (parsed.ok()) token = *parsed;
  }
  // Of a coordinator that was started here since then, it names that one.
  const auto json = nlohmann::json::parse(ReadFile(ConnectionFile(home)).value_or(""), nullptr,
                                          /*allow_exceptions=*/false);
  const bool own = json.is_object() &&
                   json.value("token_file", nlohmann::json()) == IdentityPath(folder, kToken);
  // First what names the rest.
  if (own) std::filesystem::remove(ConnectionFile(home), error);
  if (!error) std::filesystem::remove_all(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("what `espalier login` keeps in ", folder, ": ", error.message()));
  }
  if (context.json()) {
    nlohmann::ordered_json answer;
    answer["coordinator"] = token.coordinator;
    answer["token"] = token.id;
    context.Document(answer);
    return absl::OkStatus();
  }
  context.out() << "logged out"
                << (token.coordinator.empty() ? "" : " of " + Printable(token.coordinator));
  if (!token.id.empty()) {
    context.out() << "; other copies of the token are valid until it ends, or an admin ends it: "
                     "espalier token revoke "
                  << token.id;
  }
  context.out() << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command LogoutCommand() {
  Command c;
  c.name = "logout";
  c.summary = "forget the coordinator and the token of `espalier login`";
  c.usage = "logout";
  c.description =
      "Removes address, CA and key that `espalier login` keeps under --home. The token itself is "
      "ended\nby `espalier token revoke`, which an admin may call.";
  c.examples = {{"on a host that others use, too", "espalier logout"}};
  c.run = RunLogout;
  return c;
}

Command LoginCommand() {
  Command c;
  c.name = "login";
  c.summary = "use a coordinator on another host from now on, by a token";
  c.usage = "login [TOKEN]";
  c.description =
      "Takes a token of `espalier token create`, from standard input if it is not given, checks "
      "that\n"
      "the coordinator is the one that the token means, and keeps address, CA and key under "
      "--home,\n"
      "where commands and the Python package find them.";
  c.examples = {{"as the administrator has sent it", "espalier login esp1.4f1c9a02b7d0.…"},
                {"so that others on this host do not see it", "espalier login < token"}};
  c.run = RunLogin;
  return c;
}

}  // namespace espalier
