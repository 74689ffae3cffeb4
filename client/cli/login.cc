#include <filesystem>
#include <istream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/net/access_token.h"
#include "base/net/identity_folder.h"
#include "base/net/pinned_ca.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"

namespace espalier {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr char kToken[] = "token", kCa[] = "ca.pem";

// Writes what later commands and the Python package read (ReadAddresses).
absl::Status Keep(const std::string& home, const AccessTokenText& token, const std::string& text,
                  const std::string& ca, Addresses* kept) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string folder = JoinPath(home, "login");
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
    std::getline(*context.env().in, text);
  } else {
    text = context.flags().positional()[0];
  }
  text = std::string(absl::StripAsciiWhitespace(text));
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

}  // namespace

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
