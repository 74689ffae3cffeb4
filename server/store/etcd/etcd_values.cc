// EtcdStore: artifacts, served models and blobs, each a value of its own.
#include <map>

#include "absl/strings/str_cat.h"
#include "server/store/etcd/etcd_store.h"
#include "server/store/parse_stored.h"

namespace espalier {
namespace {

constexpr char kArtifact[] = "artifact", kServed[] = "served", kBlob[] = "blob";

}  // namespace

absl::Status EtcdStore::WriteOne(const std::string& name, const std::string* bytes,
                                 const IdempotencyRecord* idempotency_record) {
  absl::MutexLock lock(&mutex_);
  EtcdChange change;
  if (bytes != nullptr) {
    change.Put(name, *bytes);
  } else {
    change.Delete(name);
  }
  AddReply(idempotency_record, &change);
  return etcd_.Commit(change);
}

absl::Status EtcdStore::PutArtifact(const ArtifactRecord& record,
                                    const IdempotencyRecord* idempotency_record) {
  etcd_records::Artifact stored;
  stored.set_artifact(record.artifact.SerializeAsString());
  stored.set_folder(record.folder);
  const std::string bytes = stored.SerializeAsString();
  return WriteOne(EtcdKeys::Name(kArtifact, record.artifact.name()), &bytes, idempotency_record);
}

absl::Status EtcdStore::DeleteArtifact(const std::string& name,
                                       const IdempotencyRecord* idempotency_record) {
  return WriteOne(EtcdKeys::Name(kArtifact, name), nullptr, idempotency_record);
}

absl::StatusOr<std::vector<ArtifactRecord>> EtcdStore::Artifacts() const {
  int64_t revision = 0;
  const auto values = ReadFolder(kArtifact, &revision);
  if (!values.ok()) return values.status();
  std::vector<ArtifactRecord> records;
  for (const auto& [name, bytes] : *values) {
    etcd_records::Artifact stored;
    absl::Status status = ParseStored(bytes, "artifact", &stored);
    ArtifactRecord& record = records.emplace_back();
    if (status.ok()) status = ParseStored(stored.artifact(), "artifact", &record.artifact);
    if (!status.ok()) return status;
    record.folder = stored.folder();
  }
  return records;
}

absl::Status EtcdStore::PutServed(const v1::ServeModelRequest& request,
                                  const IdempotencyRecord* idempotency_record) {
  const std::string bytes = request.SerializeAsString();
  return WriteOne(EtcdKeys::Name(kServed, request.name()), &bytes, idempotency_record);
}

absl::Status EtcdStore::DeleteServed(const std::string& name,
                                     const IdempotencyRecord* idempotency_record) {
  return WriteOne(EtcdKeys::Name(kServed, name), nullptr, idempotency_record);
}

absl::StatusOr<std::vector<v1::ServeModelRequest>> EtcdStore::Served() const {
  int64_t revision = 0;
  const auto values = ReadFolder(kServed, &revision);
  if (!values.ok()) return values.status();
  std::vector<v1::ServeModelRequest> requests;
  for (const auto& [name, bytes] : *values) {
    absl::Status status = ParseStored(bytes, "served model", &requests.emplace_back());
    if (!status.ok()) return status;
  }
  return requests;
}

absl::Status EtcdStore::PutBlob(const std::string& name, const std::string& value) {
  return WriteOne(EtcdKeys::Name(kBlob, name), &value, nullptr);
}

absl::Status EtcdStore::DeleteBlob(const std::string& name) {
  return WriteOne(EtcdKeys::Name(kBlob, name), nullptr, nullptr);
}

absl::StatusOr<std::string> EtcdStore::GetBlob(const std::string& name) const {
  auto found = etcd_.Read({EtcdKeys::Name(kBlob, name)});
  if (!found.ok()) return found.status();
  if (!found->front().has_value()) {
    return absl::NotFoundError(absl::StrCat("nothing is stored as '", name, "'"));
  }
  return *std::move(found->front());
}

}  // namespace espalier
