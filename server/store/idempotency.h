// Mutating calls carry a key: the same call repeated gets the answer of the first one.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message_lite.h"
#include "server/store/job_store.h"

namespace espalier {

// Equal requests have equal ones, whatever the order of their maps; hexadecimal.
std::string RequestSha256(const google::protobuf::MessageLite& request);

// The record that makes `reply` the answer to `request` under `key`.
IdempotencyRecord MakeIdempotencyRecord(const std::string& method, const std::string& key,
                    const google::protobuf::MessageLite& request,
                    const google::protobuf::MessageLite& reply);

// InvalidArgument if the key is too long to be kept.
absl::Status CheckIdempotencyKey(const std::string& key);

// Thread-safe. Calls that carry a key run one after another, so that a repetition that overtakes
// the first call waits for its answer.
class Idempotency {
 public:
  explicit Idempotency(const JobStore* store) : store_(store) {}

  // Without a key runs `body`. With one, answers from the store if the call was made before;
  // otherwise runs `body`, which must write MakeIdempotencyRecord(...) in the transaction that makes its effect
  // durable. A failed call is not recorded: it may be repeated under its key.
  absl::Status RunOnce(const std::string& method, const std::string& key,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* reply,
                    const std::function<absl::Status()>& body);

 private:
  const JobStore* const store_;
  absl::Mutex mutex_;
};

}  // namespace espalier
