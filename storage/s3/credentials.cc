#include "storage/s3/credentials.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json/bounded_json.h"
#include "storage/s3/answers.h"
#include "storage/s3/endpoint.h"
#include "storage/s3/instance_metadata.h"
#include "storage/s3/sigv4.h"

namespace espalier::s3 {
namespace {

// New ones are fetched this long before the old ones expire, as AWS's programs do.
constexpr absl::Duration kBeforeExpiry = absl::Minutes(5);
constexpr absl::Duration kBetweenLooks = absl::Seconds(30);
constexpr int64_t kMaxTokenBytes = 64 << 10;

absl::Status Unusable(absl::string_view place, absl::string_view problem) {
  return absl::FailedPreconditionError(
      absl::StrCat("AWS credentials of ", place, " cannot be used: ", problem));
}

std::string ValueOf(const Profile& profile, const char* key) {
  const auto found = profile.find(key);
  return found == profile.end() ? "" : found->second;
}

absl::StatusOr<Credentials> OfEnvironment(const CredentialTools& tools) {
  Credentials found;
  found.access_key_id = tools.environment("AWS_ACCESS_KEY_ID");
  found.secret_access_key = tools.environment("AWS_SECRET_ACCESS_KEY");
  found.session_token = tools.environment("AWS_SESSION_TOKEN");
  found.source = "the environment";
  if (found.access_key_id.empty() && found.secret_access_key.empty()) {
    return absl::NotFoundError("AWS_ACCESS_KEY_ID is not set");
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    return Unusable(found.source,
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together; one is not set");
  }
  return found;
}

absl::StatusOr<Credentials> OfFile(const CredentialTools& tools, const std::string& path) {
  const std::string name = ProfileName(tools.environment);
  const absl::StatusOr<Profile> profile = ReadProfile(*tools.files, path, name);
  if (absl::IsNotFound(profile.status())) return profile.status();
  if (!profile.ok()) return Unusable(path, profile.status().message());
  Credentials found;
  found.access_key_id = ValueOf(*profile, "aws_access_key_id");
  found.secret_access_key = ValueOf(*profile, "aws_secret_access_key");
  found.session_token = ValueOf(*profile, "aws_session_token");
  found.source = absl::StrCat("profile '", name, "' of ", path);
  if (!found.access_key_id.empty() && !found.secret_access_key.empty()) return found;
  for (const char* other : {"sso_session", "sso_start_url", "credential_process", "source_profile",
                            "role_arn", "login_session"}) {
    if (!profile->contains(other)) continue;
    return Unusable(found.source,
                    absl::StrCat("it has ", other,
                                 ", which is not supported; write keys with `aws configure "
                                 "export-credentials --format env` into the environment"));
  }
  if (!found.access_key_id.empty() || !found.secret_access_key.empty()) {
    return Unusable(found.source,
                    "aws_access_key_id and aws_secret_access_key go together; one is missing");
  }
  return absl::NotFoundError(absl::StrCat(path, ": profile '", name, "' has no keys"));
}

absl::StatusOr<Credentials> OfSharedFiles(const CredentialTools& tools) {
  absl::StatusOr<Credentials> found = OfFile(tools, CredentialsFile(tools.environment));
  if (!absl::IsNotFound(found.status())) return found;
  absl::StatusOr<Credentials> other = OfFile(tools, ConfigFile(tools.environment));
  if (!absl::IsNotFound(other.status())) return other;
  return absl::NotFoundError(absl::StrCat(std::string(found.status().message()), "; ",
                                          std::string(other.status().message())));
}

absl::StatusOr<Credentials> OfWebIdentity(const CredentialTools& tools) {
  const std::string file = tools.environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = tools.environment("AWS_ROLE_ARN");
  if (file.empty()) return absl::NotFoundError("AWS_WEB_IDENTITY_TOKEN_FILE is not set");
  const std::string place = "the web identity (AWS_WEB_IDENTITY_TOKEN_FILE)";
  if (role.empty()) return Unusable(place, "AWS_ROLE_ARN is not set");
  const absl::StatusOr<std::string> token = ReadWholeFile(*tools.files, file, kMaxTokenBytes);
  if (!token.ok()) return Unusable(place, token.status().message());

  std::string url = tools.environment("AWS_ENDPOINT_URL_STS");
  if (url.empty()) url = tools.environment("AWS_ENDPOINT_URL");
  if (url.empty()) {
    const absl::StatusOr<Endpoint> endpoint =
        FindEndpoint(tools.environment, *tools.files, *tools.http);
    if (!endpoint.ok()) return endpoint.status();
    url = absl::StrCat("https://sts.", endpoint->region, ".amazonaws.com",
                       absl::StartsWith(endpoint->region, "cn-") ? ".cn" : "");
  }
  std::string session = tools.environment("AWS_ROLE_SESSION_NAME");
  if (session.empty()) {
    session = absl::StrCat("espalier-", absl::ToUnixSeconds(tools.pauses->Now()));
  }
  const std::string body =
      CanonicalQuery({{"Action", "AssumeRoleWithWebIdentity"},
                      {"Version", "2011-06-15"},
                      {"RoleArn", role},
                      {"RoleSessionName", session},
                      {"WebIdentityToken", std::string(absl::StripAsciiWhitespace(*token))}});
  HttpRequest request;
  request.method = "POST";
  request.url = absl::StrCat(absl::StripSuffix(url, "/"), "/");
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
  request.body = body;
  request.timeout = absl::Seconds(30);
  Credentials found;
  const absl::Status asked = Retry(tools.retry, *tools.pauses, [&]() -> absl::Status {
    const absl::StatusOr<HttpResponse> response = tools.http->Send(request);
    if (!response.ok()) return response.status();
    if (response->status != 200) {
      const ErrorAnswer error = ParseError(response->body);
      const std::string problem =
          absl::StrCat("STS answers ", response->status, " ", error.code, ": ", error.message);
      if (response->status >= 500 || response->status == 429 || error.code == "Throttling" ||
          error.code == "IDPCommunicationError") {
        return absl::UnavailableError(problem);
      }
      return Unusable(place, problem);
    }
    absl::StatusOr<Credentials> parsed = ParseAssumedRole(response->body);
    if (!parsed.ok()) return Unusable(place, parsed.status().message());
    found = *std::move(parsed);
    return absl::OkStatus();
  });
  if (!asked.ok()) return asked;
  found.source = absl::StrCat("the web identity of ", role);
  return found;
}

absl::StatusOr<Credentials> OfJson(const std::string& text, const std::string& source) {
  using nlohmann::json;
  const absl::StatusOr<json> parsed = ParseBoundedJson<json>(text, kRequestJson);
  if (!parsed.ok()) return Unusable(source, absl::StrCat("the answer ", parsed.status().message()));
  const auto value = [&](const char* name) {
    if (!parsed->is_object()) return std::string();
    const auto found = parsed->find(name);
    return found != parsed->end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::string code = value("Code");
  if (!code.empty() && code != "Success") {
    return Unusable(source, absl::StrCat(code, ": ", value("Message")));
  }
  Credentials found{value("AccessKeyId"), value("SecretAccessKey"), value("Token")};
  found.source = source;
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    return Unusable(source, "the answer has no AccessKeyId and SecretAccessKey");
  }
  const std::string expires = value("Expiration");
  std::string problem;
  if (!expires.empty() && !absl::ParseTime(absl::RFC3339_full, expires, &found.expires, &problem)) {
    return Unusable(source, absl::StrCat("Expiration: ", problem));
  }
  return found;
}

// The token must not be sent over a network in the clear.
bool IsHostOfContainers(absl::string_view url) {
  if (absl::StartsWith(url, "https://")) return true;
  if (!absl::ConsumePrefix(&url, "http://")) return false;
  absl::string_view host = url.substr(0, url.find_first_of("/?#"));
  if (host.find('@') != absl::string_view::npos) return false;
  if (absl::StartsWith(host, "[")) {
    host = host.substr(1, host.find(']') - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == "169.254.170.2" ||
         host == "169.254.170.23" || host == "fd00:ec2::23";
}

absl::StatusOr<Credentials> OfContainer(const CredentialTools& tools) {
  const std::string relative = tools.environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = tools.environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) {
    url = absl::StrCat("http://169.254.170.2", relative[0] == '/' ? "" : "/", relative);
  }
  if (url.empty()) return absl::NotFoundError("AWS_CONTAINER_CREDENTIALS_FULL_URI is not set");
  const std::string place = absl::StrCat("the container endpoint ", url);
  if (!IsHostOfContainers(url)) {
    return Unusable(place,
                    "accepted: https://, or http:// to an address of this host or of the "
                    "container agent");
  }
  HttpRequest request;
  request.url = url;
  request.connect_timeout = absl::Seconds(2);
  request.timeout = absl::Seconds(10);
  request.through_proxy = false;
  std::string authorization = tools.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file = tools.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) {
    absl::StatusOr<std::string> read = ReadWholeFile(*tools.files, file, kMaxTokenBytes);
    if (!read.ok()) return Unusable(place, read.status().message());
    authorization = *std::move(read);
  }
  if (!authorization.empty()) {
    request.headers = {{"Authorization", std::string(absl::StripAsciiWhitespace(authorization))}};
  }
  absl::StatusOr<Credentials> found;
  const absl::Status asked = Retry(tools.retry, *tools.pauses, [&]() -> absl::Status {
    const absl::StatusOr<HttpResponse> response = tools.http->Send(request);
    if (!response.ok()) return response.status();
    if (response->status >= 500 || response->status == 429) {
      return absl::UnavailableError(absl::StrCat(place, " answers ", response->status));
    }
    if (response->status != 200) {
      return Unusable(place, absl::StrCat("it answers ", response->status));
    }
    found = OfJson(response->body, place);
    return found.status();
  });
  if (!asked.ok()) return asked;
  return found;
}

absl::StatusOr<Credentials> OfInstance(const CredentialTools& tools) {
  const absl::StatusOr<std::string> text =
      InstanceMetadata(tools.environment, *tools.http).RoleCredentials();
  if (!text.ok()) return text.status();
  return OfJson(*text, "the instance's role");
}

}  // namespace

absl::StatusOr<Credentials> FindCredentials(const CredentialTools& tools) {
  struct Place {
    const char* name;
    absl::StatusOr<Credentials> (*look)(const CredentialTools&);
  };
  constexpr Place kPlaces[] = {{"environment", OfEnvironment},
                               {"shared files", OfSharedFiles},
                               {"web identity", OfWebIdentity},
                               {"container", OfContainer},
                               {"instance metadata", OfInstance}};
  std::vector<std::string> looked;
  for (const Place& place : kPlaces) {
    absl::StatusOr<Credentials> found = place.look(tools);
    if (!absl::IsNotFound(found.status())) return found;
    looked.push_back(absl::StrCat(place.name, " (", std::string(found.status().message()), ")"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no AWS credentials were found; set AWS_ACCESS_KEY_ID and "
                   "AWS_SECRET_ACCESS_KEY, or another of the places that were looked at: ",
                   absl::StrJoin(looked, ", ")));
}

bool CredentialCache::HasValid() const {
  return !current_.access_key_id.empty() && tools_.pauses->Now() < current_.expires;
}

absl::StatusOr<Credentials> CredentialCache::Get() {
  {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const absl::Time now = tools_.pauses->Now();
      const bool lasts = now + kBeforeExpiry < current_.expires;
      // A service that does not answer holds up one caller while there are valid ones.
      if (HasValid() && (lasts || now < look_again_ || looking_)) return current_;
      if (!looking_) break;
      looked_.Wait(&mutex_);
    }
    looking_ = true;
  }
  absl::StatusOr<Credentials> found = FindCredentials(tools_);
  absl::MutexLock lock(&mutex_);
  looking_ = false;
  looked_.SignalAll();
  // Also after success: a service may hand out its old ones until shortly before they end.
  look_again_ = tools_.pauses->Now() + kBetweenLooks;
  if (found.ok()) current_ = *found;
  return !found.ok() && HasValid() ? current_ : found;
}

void CredentialCache::Refused(const Credentials& credentials) {
  absl::MutexLock lock(&mutex_);
  if (current_.access_key_id == credentials.access_key_id &&
      current_.session_token == credentials.session_token) {
    current_ = {};
  }
}

}  // namespace espalier::s3
