#include "base/net/api_keys.h"

#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/net/private_file.h"
#include "base/sha256.h"

namespace espalier {
namespace {

constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kShortestKey = 16;
constexpr size_t kMaxKeys = 10'000;
constexpr size_t kLongestOwner = 64;
constexpr int kMostPriority = 1000;  // of a job
constexpr char kWorkersOwner[] = "key-workers";

// Constant-time comparison, except for the length.
bool Equal(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool IsOwnerName(absl::string_view name) {
  if (name.empty() || name.size() > kLongestOwner) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("._@-", c)) return false;
  }
  return true;
}

// Roles that let a worker join.
constexpr Roles kJoins = Role::kAdmin | Role::kWorker;

}  // namespace

absl::string_view KeyIn(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

bool IsBearer(const std::string& authorization, const std::string& key) {
  return absl::StartsWithIgnoreCase(authorization, kScheme) && Equal(KeyIn(authorization), key);
}

absl::Status CheckRolesAndOwner(Roles roles, absl::string_view owner) {
  for (const Roles alone : {Roles(Role::kWorker), Roles(Role::kMonitor)}) {
    if (!roles.Intersects(alone) || roles == alone) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the role ", alone.ToString(),
                     ", which sees what belongs to all, stands alone: use another key for the "
                     "other roles"));
  }
  if (!owner.empty() && !IsOwnerName(owner)) {
    return absl::InvalidArgumentError(
        absl::StrCat("owner=", absl::StripAsciiWhitespace(owner), ": an owner has 1 to ",
                     kLongestOwner, " characters, each a letter, a digit or one of . _ @ -"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ApiKeys::Key> ApiKeys::ParseLine(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  Key key{words[0], Caller::Unrestricted()};
  if (key.key.size() < kShortestKey) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key needs ", kShortestKey, " characters or more"));
  }
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view value = words[i];
    if (absl::ConsumePrefix(&value, "role=")) {
      absl::StatusOr<Roles> roles = ParseRoles(value);
      if (!roles.ok()) return roles.status();
      key.holder.roles = *roles;
      if (absl::Status s = CheckRolesAndOwner(*roles, ""); !s.ok()) return s;
    } else if (absl::ConsumePrefix(&value, "owner=")) {
      // Not an empty one, as none.
      if (value.empty()) value = " ";
      if (absl::Status s = CheckRolesAndOwner(key.holder.roles, value); !s.ok()) return s;
      key.holder.owner = std::string(value);
    } else if (absl::ConsumePrefix(&value, "max-priority=")) {
      if (!absl::SimpleAtoi(value, &key.holder.max_priority) || key.holder.max_priority < 0 ||
          key.holder.max_priority > kMostPriority) {
        return absl::InvalidArgumentError(absl::StrCat(
            "max-priority=", value, ": a number from 0 to ", kMostPriority, " is accepted"));
      }
    } else {
      return absl::InvalidArgumentError(
          "after the key, only role=ROLE[,ROLE...], owner=NAME and max-priority=N are known");
    }
  }
  if (key.holder.owner.empty() && key.holder.Has(Role::kWorker)) {
    key.holder.owner = kWorkersOwner;
  } else if (key.holder.owner.empty() && !key.holder.Has(Role::kAdmin)) {
    Sha256 sum;
    sum.Add(key.key);
    key.holder.owner = absl::StrCat("key-", sum.Hex().substr(0, 12));
  }
  return key;
}

absl::StatusOr<std::vector<ApiKeys::Key>> ApiKeys::ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("--api-key-file=", path, " cannot be read"));
  }
  if (absl::Status s = CheckPrivateFile("api-key-file", path); !s.ok()) return s;
  std::vector<Key> keys;
  std::set<std::string> seen;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    absl::StatusOr<Key> key = ParseLine(text);
    if (key.ok() && !seen.insert(key->key).second) {
      key = absl::InvalidArgumentError("the key stands in an earlier line, too");
    }
    if (!key.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-key-file=", path, ": line ", number, ": ", key.status().message()));
    }
    keys.push_back(*std::move(key));
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

absl::StatusOr<ApiKeys> ApiKeys::Read(const std::string& path) {
  ApiKeys keys(std::make_shared<State>());
  keys.state_->path = path;
  if (absl::Status status = keys.Reload().status(); !status.ok()) return status;
  return keys;
}

absl::StatusOr<bool> ApiKeys::Reload() {
  absl::StatusOr<std::vector<Key>> keys = ReadFile(state_->path);
  if (!keys.ok()) return keys.status();
  absl::MutexLock lock(&state_->mutex);
  if (state_->keys == *keys) return false;
  state_->keys = *std::move(keys);
  return true;
}

absl::StatusOr<Caller> ApiKeys::Identify(const std::string& authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError(
        "an API key is required: send the header \"Authorization: Bearer KEY\"");
  }
  const absl::string_view shown = KeyIn(authorization);
  absl::MutexLock lock(&state_->mutex);
  const Key* found = nullptr;
  for (const Key& key : state_->keys) {
    if (Equal(key.key, shown)) found = &key;
  }
  if (found != nullptr) return found->holder;
  return absl::UnauthenticatedError("the API key is not known");
}

ShownKey ApiKeys::shown() const {
  return [state = state_] {
    absl::MutexLock lock(&state->mutex);
    for (const Key& key : state->keys) {
      if (key.holder.Has(kJoins)) return key.key;
    }
    return state->keys.front().key;
  };
}

bool ApiKeys::MayJoin() const {
  absl::MutexLock lock(&state_->mutex);
  for (const Key& key : state_->keys) {
    if (key.holder.Has(kJoins)) return true;
  }
  return false;
}

}  // namespace espalier
