// Idempotency keys of mutating calls: a repeated call gets the answer of the first one.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "server/store/job_store.h"

namespace espalier {

// The period in which a client may repeat a call.
inline constexpr absl::Duration kRepliesKept = absl::Hours(7 * 24);

// Returns the hash of a request in hexadecimal. Equal requests have equal hashes, whatever the
// order of their map fields.
std::string RequestSha256(const google::protobuf::MessageLite& request);

// Returns the record that makes `reply` the answer to `request` under `key`.
IdempotencyRecord MakeIdempotencyRecord(const std::string& method, const std::string& key,
                                        const google::protobuf::MessageLite& request,
                                        const google::protobuf::MessageLite& reply);

// Returns the key under which a call of an owner (empty: nobody's) is recorded: keys of different
// owners are apart, whatever the caller's part is.
std::string OwnersKey(const std::string& owner, const std::string& key);
// Returns the request with that key in the place of its own.
template <typename Request>
Request WithOwnersKey(Request request, const std::string& owner) {
  request.set_idempotency_key(OwnersKey(owner, request.idempotency_key()));
  return request;
}
// Returns the caller's part of such a key.
absl::string_view CallersKey(absl::string_view key);

// Returns the error for a key that was recorded for `recorded`, when it comes with another request
// of `method`.
absl::Status KeyWasUsedBefore(absl::string_view key, absl::string_view recorded,
                              absl::string_view method);

// Returns InvalidArgument if the key is too long to be stored.
absl::Status CheckIdempotencyKey(const std::string& key);

// Thread-safe. Calls with the same key run one at a time, so a repetition that overtakes the first
// call waits for its answer.
class Idempotency {
 public:
  explicit Idempotency(const JobStore* store) : store_(store) {}

  // Without a key, runs `body`. With one, answers from the store if the call was made before;
  // otherwise runs `body`, which must write MakeIdempotencyRecord(...) in the transaction that
  // makes its effect durable. A failed call is not recorded and may be repeated under its key.
  absl::Status RunOnce(const std::string& method, const std::string& key,
                       const google::protobuf::MessageLite& request,
                       google::protobuf::MessageLite* reply,
                       const std::function<absl::Status()>& body);

 private:
  const JobStore* const store_;
  absl::Mutex mutex_;
  absl::CondVar ended_;
  std::set<std::string> running_ ABSL_GUARDED_BY(mutex_);  // keys
};

}  // namespace espalier
