#include "server/store/idempotency.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace espalier {
namespace {

constexpr size_t kMaxKey = 256;
constexpr char kOwnerEnds[] = "\n";  // no owner's name has it

// Map fields are serialized in no fixed order by default.
std::string Canonical(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializePartialToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string RequestSha256(const google::protobuf::MessageLite& request) {
  return Sha256Hex(Canonical(request));
}

IdempotencyRecord MakeIdempotencyRecord(const std::string& method, const std::string& key,
                                        const google::protobuf::MessageLite& request,
                                        const google::protobuf::MessageLite& reply) {
  return {method, key, RequestSha256(request), reply.SerializeAsString()};
}

std::string OwnersKey(const std::string& owner, const std::string& key) {
  const bool as_it_is = owner.empty() && !absl::StrContains(key, kOwnerEnds);
  return key.empty() || as_it_is ? key : absl::StrCat(owner, kOwnerEnds, key);
}

absl::string_view CallersKey(absl::string_view key) {
  const size_t at = key.find(kOwnerEnds);
  return at == key.npos ? key : key.substr(at + 1);
}

absl::Status KeyWasUsedBefore(absl::string_view key, absl::string_view recorded,
                              absl::string_view method) {
  return absl::InvalidArgumentError(absl::StrCat(
      "idempotency_key '", CallersKey(key), "' was used before for ", recorded,
      recorded == method ? " with another request" : "", "; use a new key for a new request"));
}

absl::Status CheckIdempotencyKey(const std::string& given) {
  const absl::string_view key = CallersKey(given);
  if (key.size() <= kMaxKey) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("idempotency_key has ", key.size(),
                                                 " bytes; at most ", kMaxKey, " are allowed"));
}

absl::Status Idempotency::RunOnce(const std::string& method, const std::string& key,
                                  const google::protobuf::MessageLite& request,
                                  google::protobuf::MessageLite* reply,
                                  const std::function<absl::Status()>& body) {
  if (key.empty()) return body();
  if (absl::Status status = CheckIdempotencyKey(key); !status.ok()) return status;
  {
    absl::MutexLock lock(&mutex_);
    while (!running_.insert(key).second) ended_.Wait(&mutex_);
  }
  const absl::Cleanup end = [&] {
    absl::MutexLock lock(&mutex_);
    running_.erase(key);
    ended_.SignalAll();
  };
  absl::StatusOr<std::optional<std::string>> known =
      store_->FindReply(method, key, RequestSha256(request));
  if (!known.ok()) return known.status();
  if (!known->has_value()) return body();
  if (!reply->ParseFromString(**known)) {
    return absl::DataLossError("job store: a recorded reply does not parse");
  }
  return absl::OkStatus();
}

}  // namespace espalier
