// The key of one job's calls to a worker's Shards service: it follows from the key that the worker
// demands of the coordinator, so that it need not be sent to that worker.
#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/hmac_sha256.h"

namespace espalier {

inline std::string ShardKey(const std::string& call_key, const std::string& job_id) {
  return absl::BytesToHexString(HmacSha256(call_key, absl::StrCat("shards of ", job_id)));
}

}  // namespace espalier
