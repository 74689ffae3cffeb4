#include "server/storage/uploads.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Over() {
  return absl::AbortedError("the upload is over, or goes on in another stream; begin a new one");
}

}  // namespace

absl::StatusOr<Uploads::Stream> Uploads::Begin(const std::string& name, const std::string& id) {
  if (id.size() < 32 || id.size() > 64) {
    return absl::InvalidArgumentError("upload: accepted are 32 to 64 random characters");
  }
  DropOld();
  Stream stream;
  stream.uploads_ = this;
  stream.id_ = id;
  std::shared_ptr<Upload> upload;
  {
    absl::MutexLock lock(&mutex_);
    stream.number_ = next_stream_++;
    std::shared_ptr<Upload>& entry = uploads_[id];
    if (entry == nullptr && uploads_.size() > kMost) {
      uploads_.erase(id);
      return absl::ResourceExhaustedError(absl::StrCat(kMost, " uploads are open"));
    }
    if (entry != nullptr) {
      upload = entry;
    } else {
      entry = std::make_shared<Upload>();
      entry->name = name;
      upload = entry;
    }
    if (upload->name != name) {
      return absl::InvalidArgumentError(
          absl::StrCat("upload: this one is of '", upload->name, "', not of '", name, "'"));
    }
  }
  absl::MutexLock lock(&upload->mutex);
  const bool is_new = upload->stream == 0;
  upload->stream = stream.number_;
  upload->used = clock_.Now();
  if (is_new) {
    absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> out = store_.Put(name);
    if (!out.ok()) {
      absl::MutexLock forget(&mutex_);
      uploads_.erase(id);
      return out.status();
    }
    upload->out = *std::move(out);
  } else if (upload->out == nullptr && upload->sha256.empty()) {
    return Over();
  }
  return stream;
}

std::shared_ptr<Uploads::Upload> Uploads::Find(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const auto found = uploads_.find(id);
  return found == uploads_.end() ? nullptr : found->second;
}

int64_t Uploads::Stream::received() const {
  const std::shared_ptr<Upload> upload = uploads_->Find(id_);
  if (upload == nullptr) return 0;
  absl::MutexLock lock(&upload->mutex);
  return upload->received;
}

absl::Status Uploads::Stream::Append(int64_t offset, const std::string& data) {
  const std::shared_ptr<Upload> upload = uploads_->Find(id_);
  if (upload == nullptr) return Over();
  absl::MutexLock lock(&upload->mutex);
  if (upload->stream != number_ || upload->out == nullptr) return Over();
  upload->used = uploads_->clock_.Now();
  const auto bytes = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > upload->received) {
    return absl::InvalidArgumentError(absl::StrCat("chunk.offset is ", offset, ", and ",
                                                   upload->received, " bytes have arrived"));
  }
  const int64_t known = upload->received - offset;
  if (known >= bytes) return absl::OkStatus();
  const absl::Status status = upload->out->Append(data.data() + known, bytes - known);
  if (!status.ok()) {
    upload->out.reset();
    return status;
  }
  upload->hash.Add(data.data() + known, bytes - known);
  upload->received += bytes - known;
  return absl::OkStatus();
}

absl::Status Uploads::Stream::Commit(int64_t bytes, const std::string& sha256) {
  const std::shared_ptr<Upload> upload = uploads_->Find(id_);
  if (upload == nullptr) return Over();
  absl::MutexLock lock(&upload->mutex);
  if (upload->stream != number_) return Over();
  upload->used = uploads_->clock_.Now();
  const bool committed = !upload->sha256.empty();
  if (!committed && upload->out == nullptr) return Over();
  const std::string found = committed ? upload->sha256 : upload->hash.Hex();
  if (bytes != upload->received || sha256 != found) {
    if (!committed) upload->out.reset();
    return absl::DataLossError(absl::StrCat("'", upload->name, "': ", upload->received,
                                            " bytes with the SHA-256 ", found, " have arrived, of ",
                                            bytes, " with ", sha256.substr(0, 64)));
  }
  if (committed) return absl::OkStatus();
  const std::unique_ptr<CheckpointStore::Upload> out = std::move(upload->out);
  if (absl::Status status = out->Commit(); !status.ok()) return status;
  upload->sha256 = found;
  return absl::OkStatus();
}

void Uploads::DropOld() {
  std::vector<std::shared_ptr<Upload>> dropped;  // destroyed without the lock: removes files
  absl::MutexLock lock(&mutex_);
  for (auto entry = uploads_.begin(); entry != uploads_.end();) {
    Upload& upload = *entry->second;
    bool old = false;
    if (upload.mutex.TryLock()) {  // else it is in use
      old = upload.stream != 0 && clock_.Now() - upload.used > kKeep;
      upload.mutex.Unlock();
    }
    if (old) dropped.push_back(std::move(entry->second));
    entry = old ? uploads_.erase(entry) : std::next(entry);
  }
}

}  // namespace espalier
