#include "storage/s3_upload.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier::s3 {
namespace {

constexpr int64_t kPartBytes = int64_t{8} << 20;
constexpr int kPartsOfOneSize = 2500;
constexpr int kMostParts = 10'000;  // S3's limit
constexpr size_t kPartsAtOnce = 3;

}  // namespace

S3Upload::~S3Upload() {
  if (!begun_ || done_) return;
  Await(0).IgnoreError();
  // Once: who gave it up must not wait for a store that does not answer.
  if (absl::Status s = client_->AbortUploadOnce(upload_); !s.ok()) {
    spdlog::warn(
        "the parts of an upload that was given up remain until what it belongs to is removed: {}",
        std::string(s.message()));
  }
}

int64_t S3Upload::PartBytes() const { return kPartBytes << (parts_ / kPartsOfOneSize); }

absl::Status S3Upload::Await(size_t count) {
  while (on_their_way_.size() > count) {
    absl::StatusOr<std::string> etag = on_their_way_.front().get();
    on_their_way_.pop_front();
    status_.Update(etag.status());
    if (etag.ok()) etags_.push_back(*std::move(etag));
  }
  return status_;
}

absl::Status S3Upload::SendPart() {
  if (parts_ == kMostParts) {
    status_ = absl::ResourceExhaustedError(absl::StrCat(
        S3Url{client_->bucket(), key_}.ToString(), " would have more than ", kMostParts,
        " parts (290 GB); of a checkpoint: train on more workers, so that each writes less"));
    return status_;
  }
  if (!begun_) {
    absl::StatusOr<std::string> id = client_->BeginUpload(key_, tag_);
    status_.Update(id.status());
    if (!id.ok()) return status_;
    upload_ = {key_, *std::move(id)};
    begun_ = true;
  }
  if (absl::Status s = Await(kPartsAtOnce - 1); !s.ok()) return s;
  auto content = std::make_shared<const std::string>(std::move(buffer_));
  buffer_.clear();
  on_their_way_.push_back(std::async(
      std::launch::async, [client = client_, upload = upload_, number = ++parts_, content] {
        return client->UploadPart(upload, number, *content);
      }));
  return absl::OkStatus();
}

absl::Status S3Upload::Append(const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (status_.ok() && bytes > 0) {
    // Not before there is more: an object of one part needs no parts.
    if (static_cast<int64_t>(buffer_.size()) == PartBytes()) {
      if (absl::Status s = SendPart(); !s.ok()) return s;
    }
    const int64_t room = PartBytes() - static_cast<int64_t>(buffer_.size());
    const int64_t taken = std::min(room, bytes);
    buffer_.append(next, static_cast<size_t>(taken));
    next += taken;
    bytes -= taken;
  }
  return status_;
}

absl::Status S3Upload::Commit() {
  if (!status_.ok()) return status_;
  if (!begun_) {
    status_ = client_->Put(key_, buffer_, {.tag = tag_});
    return status_;
  }
  if (absl::Status s = SendPart(); !s.ok()) return s;
  if (absl::Status s = Await(0); !s.ok()) return s;
  status_ = client_->CompleteUpload(upload_, etags_, tag_);
  done_ = status_.ok();
  return status_;
}

}  // namespace espalier::s3
