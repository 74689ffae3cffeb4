#include "server/storage/uploads.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Replaced() { return absl::AbortedError("the upload goes on in another stream"); }

}  // namespace

void Uploads::Upload::End(const absl::Status& why) {
  over = absl::AbortedError(
      absl::StrCat("the upload is over: ", std::string(why.message()), "; begin a new one"));
  out.reset();
}

absl::StatusOr<Uploads::Stream> Uploads::Begin(const std::string& name, const std::string& id) {
  if (id.size() < 32 || id.size() > 64) {
    return absl::InvalidArgumentError("upload: accepted are 32 to 64 random characters");
  }
  DropOld();
  std::shared_ptr<Upload> upload;
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = next_stream_++;
    std::shared_ptr<Upload>& entry = uploads_[id];
    if (entry == nullptr && uploads_.size() > kMost) {
      uploads_.erase(id);
      return absl::ResourceExhaustedError(absl::StrCat(kMost, " uploads are open"));
    }
    if (entry == nullptr) {
      entry = std::make_shared<Upload>();
      entry->name = name;
    }
    upload = entry;
    if (upload->name != name) {
      return absl::InvalidArgumentError(
          absl::StrCat("upload: this one is of '", upload->name, "', not of '", name, "'"));
    }
    ++upload->streams;
  }
  Stream stream(&clock_, upload, number);
  absl::MutexLock lock(&upload->mutex);
  const bool is_new = upload->stream == 0;
  upload->stream = std::max(upload->stream, number);
  if (is_new) {
    absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> out = store_.Put(name);
    if (!out.ok()) {
      upload->End(out.status());
      absl::MutexLock forget(&mutex_);
      uploads_.erase(id);
      return out.status();
    }
    upload->out = *std::move(out);
  } else if (!upload->over.ok()) {
    return upload->over;
  }
  return stream;
}

Uploads::Stream::~Stream() {
  if (upload_ == nullptr) return;
  absl::MutexLock lock(&upload_->mutex);
  upload_->used = clock_->Now();
  --upload_->streams;
}

int64_t Uploads::Stream::received() const {
  absl::MutexLock lock(&upload_->mutex);
  return upload_->received;
}

absl::Status Uploads::Stream::Append(int64_t offset, const std::string& data) {
  absl::MutexLock lock(&upload_->mutex);
  if (upload_->stream != number_) return Replaced();
  if (!upload_->over.ok()) return upload_->over;
  if (upload_->out == nullptr) return absl::AbortedError("the object has been committed");
  const auto bytes = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > upload_->received) {
    return absl::InvalidArgumentError(absl::StrCat("chunk.offset is ", offset, ", and ",
                                                   upload_->received, " bytes have arrived"));
  }
  const int64_t known = upload_->received - offset;
  if (known >= bytes) return absl::OkStatus();
  const absl::Status status = upload_->out->Append(data.data() + known, bytes - known);
  if (!status.ok()) {
    upload_->End(status);
    return status;
  }
  upload_->hash.Add(data.data() + known, bytes - known);
  upload_->received += bytes - known;
  return absl::OkStatus();
}

absl::Status Uploads::Stream::Commit(int64_t bytes, const std::string& sha256) {
  absl::MutexLock lock(&upload_->mutex);
  if (upload_->stream != number_) return Replaced();
  if (!upload_->over.ok()) return upload_->over;
  const bool committed = !upload_->sha256.empty();
  const std::string found = committed ? upload_->sha256 : upload_->hash.Hex();
  if (bytes != upload_->received || sha256 != found) {
    const absl::Status differs = absl::DataLossError(
        absl::StrCat("'", upload_->name, "': ", upload_->received, " bytes with the SHA-256 ",
                     found, " have arrived, of ", bytes, " with ", sha256.substr(0, 64)));
    if (!committed) upload_->End(differs);
    return differs;
  }
  if (committed) return absl::OkStatus();
  const std::unique_ptr<CheckpointStore::Upload> out = std::move(upload_->out);
  if (absl::Status status = out->Commit(); !status.ok()) {
    upload_->End(status);
    return status;
  }
  upload_->sha256 = found;
  return absl::OkStatus();
}

void Uploads::DropOld() {
  std::vector<std::shared_ptr<Upload>> dropped;  // destroyed without the lock: removes files
  absl::MutexLock lock(&mutex_);
  for (auto entry = uploads_.begin(); entry != uploads_.end();) {
    Upload& upload = *entry->second;
    bool old = false;
    if (upload.streams == 0 && upload.mutex.TryLock()) {
      old = clock_.Now() - upload.used > kKeep;
      upload.mutex.Unlock();
    }
    if (old) dropped.push_back(std::move(entry->second));
    entry = old ? uploads_.erase(entry) : std::next(entry);
  }
}

}  // namespace espalier
