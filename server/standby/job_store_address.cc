#include "server/standby/job_store_address.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/net/own_address.h"

namespace espalier {
namespace {

constexpr char kDefaultPrefix[] = "/espalier";

}  // namespace

absl::StatusOr<JobStoreAddress> ParseJobStore(absl::string_view text) {
  JobStoreAddress address;
  if (text == "sqlite") return address;
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--job-store=", text, ": accepted: sqlite, or etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"));
  }
  const size_t slash = rest.find('/');
  for (const absl::string_view endpoint : absl::StrSplit(rest.substr(0, slash), ',')) {
    const absl::StatusOr<HostAndPort> read =
        ParseHostAndPort(std::string(endpoint), absl::StrCat("--job-store=", text));
    if (!read.ok()) return read.status();
    address.endpoints.emplace_back(endpoint);
  }
  address.prefix = slash == rest.npos ? "" : std::string(rest.substr(slash));
  while (absl::EndsWith(address.prefix, "/")) address.prefix.pop_back();
  if (address.prefix.empty()) address.prefix = kDefaultPrefix;
  return address;
}

}  // namespace espalier
