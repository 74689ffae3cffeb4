#include "storage/s3_checkpoint_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/random_id.h"
#include "storage/s3/s3_file.h"
#include "storage/s3_upload.h"

namespace espalier::s3 {
namespace {

constexpr char kProbe[] = ".espalier-probe-", kOwner[] = ".espalier-owner";
constexpr int kTries = 3;
constexpr int64_t kMaxOwnerBytes = 1024;

bool IsAtOrBeneath(absl::string_view key, absl::string_view name) {
  return absl::ConsumePrefix(&key, name) && (key.empty() || key[0] == '/');
}

}  // namespace

absl::StatusOr<std::unique_ptr<S3CheckpointStore>> S3CheckpointStore::Create(const std::string& url,
                                                                             S3World world) {
  absl::StatusOr<S3Url> parsed = ParseS3Url(url);
  if (!parsed.ok()) return parsed.status();
  return std::unique_ptr<S3CheckpointStore>(new S3CheckpointStore(
      parsed->key.empty() ? "" : parsed->key + "/",
      std::make_shared<S3Client>(std::move(world), std::move(parsed->bucket))));
}

std::unique_ptr<S3CheckpointStore> S3CheckpointStore::Until(
    std::shared_ptr<const std::atomic<bool>> cancelled) {
  std::unique_ptr<S3CheckpointStore> store(
      new S3CheckpointStore(root_, client_->Until(std::move(cancelled))));
  absl::MutexLock lock(&checking_);
  absl::MutexLock its_lock(&store->checking_);
  store->checked_ = checked_;
  return store;
}

absl::StatusOr<std::string> S3CheckpointStore::KeyOf(const std::string& name) const {
  if (absl::Status s = CheckObjectName(name); !s.ok()) return s;
  return root_ + name;
}

absl::Status S3CheckpointStore::Check() {
  absl::MutexLock lock(&checking_);
  if (checked_) return absl::OkStatus();
  const absl::StatusOr<std::string> id = RandomId();
  if (!id.ok()) return id.status();
  const std::string key = absl::StrCat(root_, kProbe, *id);
  absl::Status first = client_->Put(key, "first", {.if_absent = true});
  // An earlier attempt may have written it, though its answer was lost.
  if (absl::IsAlreadyExists(first)) first = absl::OkStatus();
  if (!first.ok()) return first;
  const absl::Status second = client_->Put(key, "second", {.if_absent = true});
  if (absl::Status s = client_->Delete(key); !s.ok()) return s;
  if (second.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server of s3://", client_->bucket(),
                     " ignores If-None-Match, so two writers could replace each other's "
                     "checkpoints; use a server that knows it (AWS, MinIO since 2024, Ceph since "
                     "Squid), or no object store"));
  }
  if (!absl::IsAlreadyExists(second)) return second;
  checked_ = true;
  return absl::OkStatus();
}

absl::Status S3CheckpointStore::Claim(const std::string& owner) {
  const std::string key = root_ + kOwner;
  const absl::Status put = PutFirst(key, owner);
  if (!absl::IsAlreadyExists(put)) return put;
  const std::string url = S3Url{client_->bucket(), key}.ToString();
  return absl::FailedPreconditionError(absl::StrCat(
      "this prefix is that of a coordinator with another data folder or --job-store, whose jobs "
      "have the same names: give each a prefix of its own; only if the other one is gone for good, "
      "remove what is below the prefix, with ",
      url));
}

absl::StatusOr<std::string> S3CheckpointStore::Owner() {
  const absl::StatusOr<std::unique_ptr<S3File>> file = S3File::Open(client_, root_ + kOwner);
  if (absl::IsNotFound(file.status())) return std::string();
  if (!file.ok()) return file.status();
  return ReadWhole(**file, kMaxOwnerBytes);
}

std::string S3CheckpointStore::url() const {
  return S3Url{client_->bucket(), std::string(absl::StripSuffix(root_, "/"))}.ToString();
}

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> S3CheckpointStore::Put(
    const std::string& name) {
  absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::string> tag = RandomId();
  if (!tag.ok()) return tag.status();
  return std::make_unique<S3Upload>(client_, *std::move(key), *std::move(tag));
}

absl::Status S3CheckpointStore::PutFirst(const std::string& key, const std::string& content) {
  absl::Status put;
  for (int i = 0; i < kTries; ++i) {
    put = client_->Put(key, content, {.if_absent = true});
    if (!absl::IsAlreadyExists(put)) return put;
    const absl::StatusOr<std::unique_ptr<S3File>> there = S3File::Open(client_, key);
    if (absl::IsNotFound(there.status())) continue;  // it was removed meanwhile
    if (!there.ok()) return there.status();
    const absl::StatusOr<std::string> text =
        ReadWhole(**there, static_cast<int64_t>(content.size()));
    if (absl::IsNotFound(text.status()) || absl::IsFailedPrecondition(text.status())) continue;
    if (text.ok() && *text == content) return absl::OkStatus();
    return text.ok() || absl::IsResourceExhausted(text.status()) ? put : text.status();
  }
  return put;
}

absl::Status S3CheckpointStore::PutIfAbsent(const std::string& name, const std::string& content) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  if (absl::Status s = Check(); !s.ok()) return s;
  return PutFirst(*key, content);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> S3CheckpointStore::Open(const std::string& name) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  return S3File::Open(client_, *key);
}

absl::StatusOr<std::vector<ObjectReader::Object>> S3CheckpointStore::List(
    const std::string& folder) {
  std::string prefix = root_;
  if (!folder.empty()) {
    const absl::StatusOr<std::string> key = KeyOf(folder);
    if (!key.ok()) return key.status();
    prefix = *key + "/";
  }
  absl::StatusOr<std::vector<ListedObject>> listed = client_->List(prefix);
  if (!listed.ok()) return listed.status();
  std::vector<Object> objects;
  for (const ListedObject& object : *listed) {
    std::string name = object.key.substr(root_.size());
    // Others make markers of folders ("a/"), which are no objects of ours.
    if (!CheckObjectName(name).ok() || absl::StartsWith(name, kProbe) || name == kOwner) continue;
    objects.push_back({std::move(name), object.bytes});
  }
  return objects;
}

absl::Status S3CheckpointStore::DeleteExcept(const std::string& name,
                                             const std::vector<std::string>& keep) {
  const absl::StatusOr<std::string> key = KeyOf(name);
  if (!key.ok()) return key.status();
  std::vector<std::string> kept;
  for (const std::string& each : keep) {
    absl::StatusOr<std::string> of = KeyOf(each);
    if (!of.ok()) return of.status();
    kept.push_back(*std::move(of));
  }
  const auto is_removed = [&](const std::string& candidate) {
    return IsAtOrBeneath(candidate, *key) &&
           std::none_of(kept.begin(), kept.end(),
                        [&](const std::string& other) { return IsAtOrBeneath(candidate, other); });
  };
  // Uploads first: one that is completed in between is listed with the objects.
  const absl::StatusOr<std::vector<PendingUpload>> uploads = client_->ListUploads(*key);
  if (!uploads.ok()) return uploads.status();
  for (const PendingUpload& upload : *uploads) {
    if (!is_removed(upload.key)) continue;
    if (absl::Status s = client_->AbortUpload(upload); !s.ok()) return s;
  }
  const absl::StatusOr<std::vector<ListedObject>> objects = client_->List(*key);
  if (!objects.ok()) return objects.status();
  for (const ListedObject& object : *objects) {
    if (!is_removed(object.key)) continue;
    if (absl::Status s = client_->Delete(object.key); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace espalier::s3
