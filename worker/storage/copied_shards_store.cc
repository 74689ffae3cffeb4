#include "worker/storage/copied_shards_store.h"

#include <spdlog/spdlog.h>

#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/manifest.h"
#include "worker/storage/remote_file.h"

namespace espalier {
namespace {

// For all peers together: a peer that does not answer must not hold up recovery for long.
constexpr absl::Duration kFindTimeout = absl::Seconds(10);
constexpr absl::Duration kFindTimeoutOfPeer = absl::Seconds(3);

std::string BaseName(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string Text(const absl::Status& status) { return absl::Utf8SafeCHexEscape(status.message()); }

}  // namespace

// Writes to the store and to the cache at once.
class CopiedShardsStore::CopyingUpload : public CheckpointStore::Upload {
 public:
  CopyingUpload(CopiedShardsStore* store, std::string name,
                std::unique_ptr<CheckpointStore::Upload> upload,
                std::unique_ptr<HostCache::Writer> copy)
      : store_(*store),
        name_(std::move(name)),
        upload_(std::move(upload)),
        copy_(std::move(copy)) {}

  absl::Status Append(const void* data, int64_t bytes) override {
    if (absl::Status s = upload_->Append(data, bytes); !s.ok()) return s;
    if (copy_ == nullptr) return absl::OkStatus();
    if (absl::Status s = copy_->Append(data, bytes); !s.ok()) GiveUpCopy(s);
    return absl::OkStatus();
  }

  absl::Status Commit() override {
    if (absl::Status s = upload_->Commit(); !s.ok()) return s;
    if (copy_ == nullptr) return absl::OkStatus();
    absl::StatusOr<std::string> sha256 = copy_->Keep();
    if (!sha256.ok()) {
      GiveUpCopy(sha256.status());
      return absl::OkStatus();
    }
    const std::string shard = BaseName(name_);
    store_.copies_.Kept(store_.job_id_, shard, *sha256);
    if (store_.pusher_.has_value()) store_.pusher_->Push(shard, *sha256);
    return absl::OkStatus();
  }

 private:
  void GiveUpCopy(const absl::Status& why) {
    spdlog::warn("no copy of {} is kept on this host: {}", name_, Text(why));
    copy_.reset();
  }

  CopiedShardsStore& store_;
  const std::string name_;
  const std::unique_ptr<CheckpointStore::Upload> upload_;
  std::unique_ptr<HostCache::Writer> copy_;
};

// Reads a copy, if there is one, until that fails; then the store.
class CopiedShardsStore::CopiedFile : public ReadableFile {
 public:
  CopiedFile(std::string name, int64_t size, std::unique_ptr<ReadableFile> copy,
             std::atomic<int64_t>* copy_count, std::shared_ptr<CheckpointStore> store,
             std::shared_ptr<Counts> counts)
      : name_(std::move(name)),
        size_(size),
        copy_count_(copy_count),
        store_(std::move(store)),
        counts_(std::move(counts)),
        copy_(std::move(copy)) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    std::shared_ptr<const ReadableFile> copy, original;
    {
      absl::MutexLock lock(&mutex_);
      copy = copy_;
    }
    if (copy != nullptr) {
      const absl::Status status = copy->Read(offset, bytes, out);
      if (status.ok()) {
        *copy_count_ += bytes;
        return status;
      }
      spdlog::warn("{} is read from the checkpoint store: {}", name_, Text(status));
    }
    {
      absl::MutexLock lock(&mutex_);
      copy_ = nullptr;
      if (original_ == nullptr) {
        absl::StatusOr<std::unique_ptr<ReadableFile>> opened = store_->Open(name_);
        if (!opened.ok()) return opened.status();
        original_ = *std::move(opened);
      }
      original = original_;
    }
    absl::Status status = original->Read(offset, bytes, out);
    if (status.ok()) counts_->store += bytes;
    return status;
  }

 private:
  const std::string name_;
  const int64_t size_;
  std::atomic<int64_t>* const copy_count_;  // of counts_
  const std::shared_ptr<CheckpointStore> store_;
  const std::shared_ptr<Counts> counts_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const ReadableFile> copy_ ABSL_GUARDED_BY(mutex_);
  mutable std::shared_ptr<const ReadableFile> original_ ABSL_GUARDED_BY(mutex_);
};

CopiedShardsStore::CopiedShardsStore(std::shared_ptr<CheckpointStore> store,
                                     const std::string& job_id, ShardCopies* copies,
                                     const ShardPlaces& places)
    : store_(std::move(store)), job_id_(job_id), copies_(*copies) {
  for (const v1::ShardPeer& peer : places.peers) {
    peers_.push_back(std::make_shared<ShardPeerClient>(peer, job_id));
  }
  if (places.keep_on.has_value()) pusher_.emplace(*places.keep_on, job_id, &copies_.cache());
}

CopiedShardsStore::~CopiedShardsStore() { Cancel(); }

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> CopiedShardsStore::Put(
    const std::string& name) {
  absl::StatusOr<std::unique_ptr<Upload>> upload = store_->Put(name);
  if (!upload.ok()) return upload.status();
  absl::StatusOr<std::unique_ptr<HostCache::Writer>> copy = copies_.cache().NewFile();
  if (!copy.ok()) {
    spdlog::warn("no copy of {} is kept on this host: {}", name, Text(copy.status()));
    copy = nullptr;
  }
  return std::make_unique<CopyingUpload>(this, name, *std::move(upload), *std::move(copy));
}

void CopiedShardsStore::LookForCopies(const std::string& manifest) {
  const size_t slash = manifest.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : manifest.substr(0, slash);
  absl::StatusOr<Manifest> read = ReadManifest(*store_, folder);
  if (!read.ok()) return;  // who opens it will see why
  std::map<std::string, KnownShard> known;
  std::set<std::string> missing;
  for (const ManifestFile& file : read->files) {
    known[PathOf(folder, file)] = KnownShard{file.sha256, file.bytes, nullptr};
    if (copies_.cache().OpenFile(file.sha256) == nullptr) missing.insert(file.sha256);
  }
  const absl::Time deadline = absl::Now() + kFindTimeout;
  for (const std::shared_ptr<ShardPeerClient>& peer : peers_) {
    const absl::Duration left = deadline - absl::Now();
    if (missing.empty() || left <= absl::ZeroDuration()) break;
    absl::StatusOr<std::set<std::string>> found =
        peer->Find({missing.begin(), missing.end()}, std::min(left, kFindTimeoutOfPeer));
    if (!found.ok()) {
      spdlog::warn("copies of shards: {}", Text(found.status()));
      continue;
    }
    for (auto& [name, shard] : known) {
      if (missing.count(shard.sha256) != 0 && found->count(shard.sha256) != 0) shard.peer = peer;
    }
    for (const std::string& sha256 : *found) missing.erase(sha256);
  }
  absl::MutexLock lock(&mutex_);
  known.merge(known_);
  known_ = std::move(known);
}

std::unique_ptr<ReadableFile> CopiedShardsStore::OpenCopy(const KnownShard& shard,
                                                          std::atomic<int64_t>** count) {
  std::unique_ptr<ReadableFile> own = copies_.cache().OpenFile(shard.sha256);
  if (own != nullptr && own->size() == shard.bytes) {
    *count = &counts_->own_disk;
    return own;
  }
  if (shard.peer == nullptr) return nullptr;
  *count = &counts_->peers;
  return NewRemoteFile(shard.bytes, [peer = shard.peer, sha256 = shard.sha256](
                                        int64_t offset, int64_t bytes, void* out) {
    return peer->Read(sha256, offset, bytes, out);
  });
}

absl::StatusOr<std::unique_ptr<ReadableFile>> CopiedShardsStore::Open(const std::string& name) {
  bool trusted;
  std::optional<KnownShard> shard;
  {
    absl::MutexLock lock(&mutex_);
    trusted = !distrusted_;
    const auto known = known_.find(name);
    if (known != known_.end()) shard = known->second;
  }
  if (trusted && BaseName(name) == kManifestFile) LookForCopies(name);
  if (!shard.has_value()) return store_->Open(name);
  std::atomic<int64_t>* count = nullptr;
  std::unique_ptr<ReadableFile> copy = trusted ? OpenCopy(*shard, &count) : nullptr;
  return std::make_unique<CopiedFile>(name, shard->bytes, std::move(copy), count, store_, counts_);
}

bool CopiedShardsStore::Distrust() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, shard] : known_) copies_.cache().Remove(shard.sha256);
  distrusted_ = true;
  return counts_->own_disk > 0 || counts_->peers > 0;
}

v1::ShardSources CopiedShardsStore::sources() const {
  v1::ShardSources sources;
  sources.set_own_disk(counts_->own_disk);
  sources.set_peers(counts_->peers);
  sources.set_store(counts_->store);
  return sources;
}

void CopiedShardsStore::Cancel() {
  for (const std::shared_ptr<ShardPeerClient>& peer : peers_) peer->Cancel();
}

}  // namespace espalier
