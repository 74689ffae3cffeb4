#include "server/object_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "storage/s3_checkpoint_store.h"

namespace espalier {
namespace {

absl::Status ErrorOfStore(const std::string& flag, const std::string& url,
                          const absl::Status& status) {
  return absl::FailedPreconditionError(
      absl::StrCat("--", flag, "=", url, ": ", std::string(status.message())));
}

// Returns an error if the objects are elsewhere.
absl::Status CheckRecord(const ObjectStoreUse& use, const std::string& url, const std::string& mark,
                         s3::S3CheckpointStore& store, JobStore* jobs) {
  const absl::StatusOr<std::string> known = jobs->GetBlob(use.record);
  if (absl::IsNotFound(known.status()) || (known.ok() && *known == url)) return absl::OkStatus();
  if (!known.ok()) return known.status();
  const absl::StatusOr<std::string> owner = store.Owner();
  if (!owner.ok()) return owner.status();
  if (*owner == mark) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "what was stored so far is in ", *known, ": give --", use.flag, "=", *known,
      ", or copy all that is below it, with the object .espalier-owner, to the other place first"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenObjectStore(
    const ObjectStoreUse& use, JobStore* jobs, std::shared_ptr<const std::atomic<bool>> cancelled) {
  absl::StatusOr<std::unique_ptr<s3::S3CheckpointStore>> opened =
      s3::S3CheckpointStore::Create(use.url);
  absl::Status status = opened.status();
  if (status.ok()) status = (*opened)->Check();
  // A hash: who sees the bucket need not see the folder.
  const std::string mark = Sha256Hex(use.identity);
  std::string url;
  if (status.ok() && !use.record.empty()) {
    url = (*opened)->url();
    status = CheckRecord(use, url, mark, **opened, jobs);
  }
  if (status.ok()) status = (*opened)->Claim(mark);
  if (status.ok() && !use.record.empty()) status = jobs->PutBlob(use.record, url);
  if (!status.ok()) return ErrorOfStore(use.flag, use.url, status);
  if (cancelled == nullptr) return std::unique_ptr<CheckpointStore>(*std::move(opened));
  return std::unique_ptr<CheckpointStore>((*opened)->Until(std::move(cancelled)));
}

absl::Status CheckObjectStore(const std::string& flag, const std::string& url) {
  absl::StatusOr<std::unique_ptr<s3::S3CheckpointStore>> opened =
      s3::S3CheckpointStore::Create(url);
  const absl::Status status = opened.ok() ? (*opened)->Check() : opened.status();
  return status.ok() ? status : ErrorOfStore(flag, url, status);
}

}  // namespace espalier
