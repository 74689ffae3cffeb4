#include "client/cli/history/mlflow_client.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/backoff.h"
#include "client/cli/flags.h"
#include "client/cli/history/row_values.h"
#include "client/cli/proto_json.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using MlflowJson = nlohmann::json;

constexpr int kTries = 4;
constexpr int kAnswerSeconds = 60;
constexpr size_t kLongestKey = 240;  // servers accept 250

std::string EscapedForUrl(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~", c)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string Variable(const std::function<const char*(const char*)>& getenv, const char* name) {
  const char* const value = getenv ? getenv(name) : nullptr;
  return value == nullptr ? "" : value;
}

bool IsOverload(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

// The text of an answer's field, or a status that says what the answer lacks.
absl::StatusOr<std::string> TextAt(const MlflowJson& answer, const std::vector<std::string>& path) {
  const MlflowJson* at = &answer;
  for (const std::string& name : path) {
    if (!at->is_object() || !at->contains(name)) {
      return absl::InternalError(
          absl::StrCat("the MLflow server's answer has no ", absl::StrJoin(path, ".")));
    }
    at = &(*at)[name];
  }
  if (!at->is_string()) {
    return absl::InternalError(
        absl::StrCat("the MLflow server's answer has no text ", absl::StrJoin(path, ".")));
  }
  return at->get<std::string>();
}

}  // namespace

absl::StatusOr<MlflowClient> MlflowClient::Make(
    const std::string& url, const std::function<const char*(const char*)>& getenv,
    std::function<void(absl::Duration)> sleep) {
  const auto wrong = [](absl::string_view what) {
    return UsageError(absl::StrCat("--mlflow: ", what,
                                   "; accepted: the URL of a tracking server, as "
                                   "http://127.0.0.1:5000"));
  };
  MlflowClient client;
  client.sleep_ = std::move(sleep);
  absl::string_view rest = url;
  const bool https = absl::ConsumePrefix(&rest, "https://");
  if (!https && !absl::ConsumePrefix(&rest, "http://")) {
    return wrong(absl::StrCat("\"", Printable(url), "\" is no http:// or https:// URL"));
  }
  const char* const scheme = https ? "https://" : "http://";
  const size_t slash = rest.find('/');
  absl::string_view authority = rest.substr(0, slash);
  if (slash != absl::string_view::npos) {
    client.prefix_ = std::string(absl::StripSuffix(rest.substr(slash), "/"));
  }
  if (client.prefix_.find_first_of("?# \r\n") != std::string::npos) {
    return wrong("the URL has a query, a fragment or a space");
  }
  std::string user = Variable(getenv, "MLFLOW_TRACKING_USERNAME");
  std::string password = Variable(getenv, "MLFLOW_TRACKING_PASSWORD");
  if (const size_t at = authority.rfind('@'); at != absl::string_view::npos) {
    const std::pair<std::string, std::string> given =
        absl::StrSplit(authority.substr(0, at), absl::MaxSplits(':', 1));
    std::tie(user, password) = given;
    authority.remove_prefix(at + 1);
  }
  const std::string token = Variable(getenv, "MLFLOW_TRACKING_TOKEN");
  if (!user.empty()) {
    client.authorization_ =
        absl::StrCat("Basic ", absl::Base64Escape(absl::StrCat(user, ":", password)));
  } else if (!token.empty()) {
    client.authorization_ = absl::StrCat("Bearer ", token);
  }
  if (client.authorization_.find_first_of("\r\n") != std::string::npos) {
    return wrong("MLFLOW_TRACKING_TOKEN has more than one line");
  }
  GatewayTls tls;
  const std::string roots = Variable(getenv, "MLFLOW_TRACKING_SERVER_CERT_PATH");
  if (https && !roots.empty()) {
    auto pem = ReadNonemptyFile(roots);
    if (!pem.ok()) return pem.status();
    tls.ca = *std::move(pem);
  }
  auto gateway = MakeGateway(absl::StrCat(scheme, authority), https, tls, "");
  if (!gateway.ok()) return wrong(gateway.status().message());
  client.gateway_ = *std::move(gateway);
  client.gateway_.answer_seconds = kAnswerSeconds;
  client.gateway_.words.what = "MLflow server";
  client.gateway_.words.flag = "--mlflow";
  client.gateway_.words.remedy =
      "Start one with `mlflow server`, or name another: --mlflow=http://HOST:PORT";
  client.gateway_.words.trust = "MLFLOW_TRACKING_SERVER_CERT_PATH=FILE";
  client.page_ = absl::StrCat(scheme, authority, client.prefix_);
  return client;
}

absl::StatusOr<HttpReply> MlflowClient::Send(const HttpRequest& request) {
  Backoff pauses(absl::Milliseconds(500), absl::Seconds(5));
  for (int tries = 1;; ++tries) {
    auto reply = Exchange(gateway_, request);
    const bool again = reply.ok() ? IsOverload(reply->status) : MayPass(reply.status());
    if (!again || tries == kTries) return reply;
    sleep_(pauses.Take());
  }
}

absl::StatusOr<MlflowJson> MlflowClient::Call(const std::string& method, const std::string& call,
                                              const MlflowJson& request) {
  HttpRequest http;
  http.method = method;
  http.path = absl::StrCat(prefix_, "/api/2.0/mlflow/", call);
  if (!authorization_.empty()) http.headers.emplace_back("Authorization", authorization_);
  if (method == "GET") {
    char separator = '?';
    for (const auto& [name, value] : request.items()) {
      absl::StrAppend(&http.path, std::string(1, separator), name, "=",
                      EscapedForUrl(value.get<std::string>()));
      separator = '&';
    }
  } else {
    http.headers.emplace_back("Content-Type", "application/json");
    http.body = Dump(request);
  }
  auto reply = Send(http);
  if (!reply.ok()) return reply.status();
  const MlflowJson answer = MlflowJson::parse(reply->body, nullptr, /*allow_exceptions=*/false);
  if (reply->status == 200 && answer.is_object()) return answer;
  const bool known = answer.is_object() && answer.contains("error_code");
  if (known && answer["error_code"] == "RESOURCE_DOES_NOT_EXIST") return MlflowJson();
  std::string message =
      absl::StrCat("the MLflow server at ", page_, " answers ", call, " with HTTP ", reply->status);
  if (answer.is_object() && answer.contains("message") && answer["message"].is_string()) {
    absl::StrAppend(&message, ": ", answer["message"].get<std::string>());
  } else if (reply->status != 401 && reply->status != 403) {
    absl::StrAppend(&message, ". Is it an MLflow server? Name the URL of its start page");
  }
  if (reply->status == 401 || reply->status == 403) {
    absl::StrAppend(&message,
                    ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
                    "MLFLOW_TRACKING_TOKEN, of somebody who may write there");
    return absl::PermissionDeniedError(message);
  }
  return absl::FailedPreconditionError(message);
}

absl::StatusOr<std::string> MlflowClient::ExperimentId(const std::string& name) {
  auto found = Call("GET", "experiments/get-by-name", {{"experiment_name", name}});
  if (!found.ok()) return found.status();
  if (!found->is_null()) {
    auto id = TextAt(*found, {"experiment", "experiment_id"});
    const auto stage = TextAt(*found, {"experiment", "lifecycle_stage"});
    if (id.ok() && stage.ok() && *stage == "deleted") {
      return absl::FailedPreconditionError(
          absl::StrCat("the experiment ", name,
                       " of the MLflow server is deleted. Restore it: "
                       "mlflow experiments restore --experiment-id ",
                       *id));
    }
    return id;
  }
  auto made = Call("POST", "experiments/create", {{"name", name}});
  if (!made.ok()) return made.status();
  return TextAt(*made, {"experiment_id"});
}

absl::StatusOr<std::string> MlflowClient::FindRun(const std::string& experiment_id,
                                                  const std::string& tag,
                                                  const std::string& value) {
  // Filters have no escapes.
  if (absl::StrContains(value, '\'')) return std::string();
  auto found = Call("POST", "runs/search",
                    {{"experiment_ids", {experiment_id}},
                     {"filter", absl::StrCat("tags.`", tag, "` = '", value, "'")},
                     {"run_view_type", "ACTIVE_ONLY"},
                     {"max_results", 1}});
  if (!found.ok()) return found.status();
  if (!found->contains("runs") || !(*found)["runs"].is_array() || (*found)["runs"].empty()) {
    return std::string();
  }
  return TextAt((*found)["runs"][0], {"info", "run_id"});
}

absl::StatusOr<std::string> MlflowClient::CreateRun(
    const std::string& experiment_id, const std::string& name, int64_t start_unix_ms,
    const std::vector<std::pair<std::string, std::string>>& tags) {
  MlflowJson all = MlflowJson::array();
  for (const auto& [key, value] : tags) all.push_back({{"key", key}, {"value", value}});
  auto made = Call("POST", "runs/create",
                   {{"experiment_id", experiment_id},
                    {"run_name", name},
                    {"start_time", start_unix_ms},
                    {"tags", std::move(all)}});
  if (!made.ok()) return made.status();
  return TextAt(*made, {"run", "info", "run_id"});
}

absl::Status MlflowClient::LogBatch(const std::string& run_id,
                                    const std::vector<MlflowMetric>& metrics) {
  MlflowJson all = MlflowJson::array();
  for (const MlflowMetric& metric : metrics) {
    all.push_back({{"key", metric.key},
                   {"value", JsonNumber(metric.value)},
                   {"timestamp", metric.unix_ms},
                   {"step", metric.step}});
  }
  return Call("POST", "runs/log-batch", {{"run_id", run_id}, {"metrics", std::move(all)}}).status();
}

absl::Status MlflowClient::FinishRun(const std::string& run_id, int64_t end_unix_ms) {
  return Call("POST", "runs/update",
              {{"run_id", run_id}, {"status", "FINISHED"}, {"end_time", end_unix_ms}})
      .status();
}

std::string MlflowClient::PageOf(const std::string& experiment_id) const {
  return absl::StrCat(page_, "/#/experiments/", experiment_id);
}

std::string MlflowKey(absl::string_view label) {
  std::string key;
  for (const char c : absl::StrReplaceAll(label, {{", ", " "}, {")", ""}, {"]", ""}})) {
    const bool kept = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                      absl::StrContains("_-. :/", c) || static_cast<unsigned char>(c) >= 0x80;
    key += c == '(' ? '/' : c == '[' ? ' ' : kept ? c : '_';
  }
  // Servers take keys as paths.
  std::vector<std::string> parts = absl::StrSplit(key, '/', absl::SkipEmpty());
  for (std::string& part : parts) {
    if (part == "." || part == "..") part = std::string(part.size(), '_');
  }
  key = absl::StrJoin(parts, "/");
  if (key.size() > kLongestKey) key.resize(ValidUtf8(key.substr(0, kLongestKey)));
  return key.empty() ? "_" : key;
}

}  // namespace espalier
