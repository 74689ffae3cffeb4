#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/nearest.h"
#include "base/net/transport_security.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/cli/time_text.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

constexpr char kDefaultTtl[] = "1h";
constexpr int kDefaultUses = 1;

// "90s", "30m", "1h30m", "7d".
absl::StatusOr<absl::Duration> Ttl(const std::string& text) {
  absl::Duration ttl;
  absl::string_view days = text;
  double number = 0;
  if (absl::ConsumeSuffix(&days, "d") && absl::SimpleAtod(days, &number)) {
    ttl = absl::Hours(24) * number;
  } else if (!absl::ParseDuration(text, &ttl)) {
    ttl = absl::ZeroDuration();
  }
  if (ttl > absl::ZeroDuration()) return ttl;
  return UsageError(
      absl::StrCat("--ttl is \"", Printable(text), "\"; accepted: a time, as 30m, 1h or 7d"));
}

bool IsWorkers(const v1::AccessToken& token) {
  return std::find(token.roles().begin(), token.roles().end(), "worker") != token.roles().end();
}

std::string StateOf(const v1::AccessToken& token) {
  if (token.certificates_refused()) return "revoked with its certificates";
  if (token.revoked()) return "revoked";
  if (token.expires_unix_ms() <= absl::ToUnixMillis(absl::Now())) return "expired";
  return IsWorkers(token) && token.uses_left() == 0 ? "used up" : "valid";
}

absl::Status Create(Context& context, Client* client) {
  const ParsedFlags& flags = context.flags();
  if (!flags.Has("role")) {
    return UsageError("token create needs --role=worker, or for people --role=train,infer");
  }
  const absl::StatusOr<absl::Duration> ttl = Ttl(flags.Text("ttl", kDefaultTtl));
  if (!ttl.ok()) return ttl.status();
  v1::CreateTokenRequest request;
  for (const absl::string_view role : absl::StrSplit(flags.Text("role"), ',')) {
    request.add_roles(std::string(role));
  }
  const bool workers = request.roles_size() == 1 && request.roles(0) == "worker";
  if (!workers && flags.Has("uses")) {
    return UsageError("--uses goes with --role=worker; other tokens are keys until they expire");
  }
  request.set_owner(flags.Text("owner"));
  request.set_ttl_seconds(absl::ToDoubleSeconds(*ttl));
  if (workers) request.set_uses(static_cast<int>(flags.Int("uses", kDefaultUses)));
  const absl::StatusOr<v1::CreateTokenReply> made = client->CreateToken(request);
  if (!made.ok()) return made.status();
  if (context.json()) {
    context.Document(ToJson(*made));
    return absl::OkStatus();
  }
  // Alone on standard output, for scripts.
  context.out() << made->text() << std::endl;
  const v1::AccessToken& token = made->token();
  std::ostream& note = *context.env().err;
  note << "token " << token.id() << ", for "
       << (workers ? absl::StrCat(token.uses(), token.uses() == 1 ? " worker" : " workers")
                   : absl::StrJoin(token.roles(), ", "))
       << (token.owner().empty() ? "" : " as " + Printable(token.owner())) << ", until "
       << LocalTime(token.expires_unix_ms()) << " " << LocalZone(token.expires_unix_ms())
       << "; it is shown only now\n";
  if (workers) {
    note << "on the worker's host, which must reach " << made->coordinator()
         << ":\n  espalier-worker --join=TOKEN\n";
  } else {
    note << "on the host of the person, which must reach " << made->coordinator()
         << (made->http().empty() ? "" : " and https://" + made->http())
         << ":\n  espalier login TOKEN\n";
  }
  if (IsLoopback(made->coordinator())) {
    note << "The coordinator listens on loopback, where other hosts do not reach it: espalierd "
            "--listen=HOST:PORT\n";
  }
  note << std::flush;
  return absl::OkStatus();
}

absl::Status List(Context& context, Client* client) {
  const absl::StatusOr<std::vector<v1::AccessToken>> tokens = client->ListTokens();
  if (!tokens.ok()) return tokens.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["tokens"] = nlohmann::ordered_json::array();
    for (const v1::AccessToken& token : *tokens) {
      json["tokens"].push_back(ToJson(token));
      json["tokens"].back()["state"] = StateOf(token);
    }
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"token", Align::kLeft},
               {"roles"},
               {.title = "owner", .optional = true},
               {"state"},
               {.title = "uses left", .align = Align::kRight, .optional = true},
               {absl::StrCat("expires, ", LocalZone(absl::ToUnixMillis(absl::Now())))},
               {.title = "last used", .optional = true},
               {.title = "made by", .optional = true},
               {.title = "certificates until", .optional = true}});
  for (const v1::AccessToken& token : *tokens) {
    table.Row({Printable(token.id()), Printable(absl::StrJoin(token.roles(), ",")),
               Printable(token.owner()), StateOf(token),
               IsWorkers(token) ? absl::StrCat(token.uses_left(), " of ", token.uses()) : "",
               LocalTime(token.expires_unix_ms()), LocalTime(token.last_used_unix_ms()),
               Printable(token.made_by()),
               token.certificates_refused() ? "" : LocalTime(token.certificates_until_unix_ms())});
  }
  context.out() << (table.empty() ? "no tokens\n" : table.Render(context.terminal())) << std::flush;
  return absl::OkStatus();
}

absl::Status Revoke(Context& context, Client* client, const std::string& id) {
  const absl::StatusOr<v1::AccessToken> token = client->RevokeToken(id, context.flags().Has("now"));
  if (!token.ok()) return token.status();
  if (context.json()) {
    context.Document(ToJson(*token));
    return absl::OkStatus();
  }
  context.out() << Printable(token->id()) << " is revoked\n";
  if (token->certificates_refused()) {
    context.out() << "Workers that joined with it are out as soon as their leases end\n";
  } else if (token->certificates_until_unix_ms() > absl::ToUnixMillis(absl::Now())) {
    context.out() << "Workers that joined with it stay until their certificates end, the last at "
                  << LocalTime(token->certificates_until_unix_ms()) << " "
                  << LocalZone(token->certificates_until_unix_ms()) << "\n";
  }
  context.out() << std::flush;
  return absl::OkStatus();
}

absl::Status RunToken(Context& context) {
  const auto& args = context.flags().positional();
  const std::string verb = args.empty() ? "list" : args[0];
  const std::vector<std::string> verbs = {"create", "list", "revoke"};
  if (std::find(verbs.begin(), verbs.end(), verb) == verbs.end()) {
    const std::string near = Nearest(verb, verbs);
    return UsageError(absl::StrCat("token ", Printable(verb), ": accepted are ",
                                   absl::StrJoin(verbs, ", "),
                                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }
  for (const char* flag : {"role", "owner", "ttl", "uses"}) {
    if (context.flags().Has(flag) && verb != "create") {
      return UsageError(absl::StrCat("--", flag, " goes with create, not with ", verb));
    }
  }
  if (context.flags().Has("now") && verb != "revoke") {
    return UsageError(absl::StrCat("--now goes with revoke, not with ", verb));
  }
  const absl::Status arguments = verb == "revoke" ? CheckArguments(context, 2, 2, "the token's id")
                                                  : CheckArguments(context, 0, 1, "");
  if (!arguments.ok()) return arguments;
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (verb == "create") return Create(context, *client);
  if (verb == "revoke") return Revoke(context, *client, args[1]);
  return List(context, *client);
}

}  // namespace

Command TokenCommand() {
  Command c;
  c.name = "token";
  c.summary = "create, list and revoke tokens, by which workers and people get access";
  c.usage = "token [list | create --role=ROLE[,ROLE...] [flags] | revoke ID [--now]]";
  c.description =
      "A token is one text: the coordinator's address, a secret, and the hash of its CA, so that\n"
      "its holder trusts nobody else. A worker exchanges it for a certificate (espalier-worker\n"
      "--join); for people it is a key (espalier login). The coordinator must run with "
      "--tls=auto.\n"
      "create prints the token alone on standard output.";
  c.flags = {
      {"role", FlagType::kText, "ROLES",
       "create: worker; or, for people and programs, monitor, or some of admin, train and "
       "infer"},
      {"owner", FlagType::kText, "NAME", "create: to whom belongs what its holder makes"},
      {"ttl", FlagType::kText, "TIME",
       absl::StrCat("create: how long it is valid, as 30m, 1h or 7d (", kDefaultTtl, ")")},
      {"uses", FlagType::kInt, "N",
       absl::StrCat("create --role=worker: workers that may join with it (", kDefaultUses, ")"), 0,
       1, 10000},
      {"now", FlagType::kSwitch, "",
       "revoke: also shut out workers that joined with it; otherwise each stays until its "
       "certificate ends"}};
  c.examples = {{"eight workers may join within an hour",
                 "espalier token create --role=worker --ttl=1h --uses=8"},
                {"for Alice, for a month",
                 "espalier token create --role=train,infer --owner=alice --ttl=30d"},
                {"nobody joins with it any more", "espalier token revoke 4f1c9a02b7d0"}};
  c.run = RunToken;
  return c;
}

}  // namespace espalier
