#include "base/net/api_keys.h"

#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/net/private_file.h"

namespace espalier {
namespace {

constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kShortestKey = 16;
constexpr size_t kMaxKeys = 10'000;

// Constant-time comparison, except for the length.
bool Equal(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

absl::StatusOr<std::vector<std::string>> KeysIn(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("--api-key-file=", path, " cannot be read"));
  }
  if (absl::Status s = CheckPrivateFile("api-key-file", path); !s.ok()) return s;
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string key(absl::StripAsciiWhitespace(line));
    if (key.empty() || key[0] == '#') continue;
    if (key.size() < kShortestKey) {
      return absl::InvalidArgumentError(absl::StrCat("--api-key-file=", path, ": line ", number,
                                                     ": a key needs ", kShortestKey,
                                                     " characters or more"));
    }
    keys.push_back(key);
    if (keys.size() > kMaxKeys) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-key-file=", path, " has more than ", kMaxKeys, " keys"));
    }
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--api-key-file=", path, " holds no key"));
  }
  return keys;
}

}  // namespace

absl::string_view KeyIn(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

bool IsBearer(const std::string& authorization, const std::string& key) {
  return absl::StartsWithIgnoreCase(authorization, kScheme) && Equal(KeyIn(authorization), key);
}

absl::StatusOr<ApiKeys> ApiKeys::Read(const std::string& path) {
  ApiKeys keys(std::make_shared<State>());
  keys.state_->path = path;
  if (absl::Status status = keys.Reload().status(); !status.ok()) return status;
  return keys;
}

absl::StatusOr<bool> ApiKeys::Reload() {
  absl::StatusOr<std::vector<std::string>> keys = KeysIn(state_->path);
  if (!keys.ok()) return keys.status();
  absl::MutexLock lock(&state_->mutex);
  if (state_->keys == *keys) return false;
  state_->keys = *std::move(keys);
  return true;
}

absl::Status ApiKeys::Check(const std::string& authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError(
        "an API key is required: send the header \"Authorization: Bearer KEY\"");
  }
  const absl::string_view shown = KeyIn(authorization);
  bool known = false;
  absl::MutexLock lock(&state_->mutex);
  for (const std::string& key : state_->keys) known |= Equal(key, shown);
  if (known) return absl::OkStatus();
  return absl::UnauthenticatedError("the API key is not known");
}

ShownKey ApiKeys::shown() const {
  return [state = state_] {
    absl::MutexLock lock(&state->mutex);
    return state->keys.front();
  };
}

}  // namespace espalier
