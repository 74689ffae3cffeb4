#include "worker/storage/object_upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/net/grpc_status.h"
#include "base/random_id.h"

namespace espalier {

ObjectUpload::ObjectUpload(ObjectUploadOptions options, std::string id)
    : options_(std::move(options)),
      id_(std::move(id)),
      retries_(options_.patience, options_.cancellation) {}

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> ObjectUpload::Begin(
    ObjectUploadOptions options) {
  absl::StatusOr<std::string> id = RandomId();
  if (!id.ok()) return id.status();
  std::unique_ptr<ObjectUpload> upload(new ObjectUpload(std::move(options), *std::move(id)));
  const absl::Status status = upload->Connect();
  if (!status.ok()) {
    if (absl::Status again = upload->Reconnect(status); !again.ok()) return again;
  }
  return upload;
}

ObjectUpload::~ObjectUpload() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  StatusOfStream().IgnoreError();
}

absl::Status ObjectUpload::At(const absl::Status& status) const {
  return absl::Status(
      status.code(),
      absl::StrCat("'", options_.name, "' to the coordinator: ", std::string(status.message())));
}

absl::Status ObjectUpload::StatusOfStream() {
  stream_->WritesDone();
  for (v1::PutObjectReply rest; stream_->Read(&rest);) continue;  // as gRPC requires
  const absl::Status status = FromGrpc(stream_->Finish(), "put");
  stream_.reset();
  call_.reset();
  context_.reset();
  return status.ok() ? absl::UnavailableError("the stream ended before its object") : status;
}

absl::Status ObjectUpload::Connect() {
  call_.reset();
  context_ = std::make_unique<grpc::ClientContext>();
  call_.emplace(options_.cancellation, [context = context_.get()] { context->TryCancel(); });
  stream_ = options_.stub->PutObject(context_.get());
  v1::PutObjectRequest message;
  *message.mutable_begin()->mutable_caller() = options_.caller;
  message.mutable_begin()->set_name(options_.name);
  message.mutable_begin()->set_upload(id_);
  v1::PutObjectReply reply;
  if (!stream_->Write(message) || !stream_->Read(&reply)) return StatusOfStream();
  if (reply.received() < received_ || reply.received() > bytes_) {
    return absl::DataLossError(absl::StrCat("the coordinator has ", reply.received(), " of ",
                                            bytes_, " bytes, of which it acknowledged ",
                                            received_));
  }
  if (reply.received() > received_) retries_.Progress();
  received_ = reply.received();
  DropReceived();
  for (const v1::PutObjectRequest& chunk : pending_) {
    if (!stream_->Write(chunk)) return StatusOfStream();
  }
  return absl::OkStatus();
}

absl::Status ObjectUpload::Reconnect(absl::Status status) {
  while (!status.ok()) {
    if (!retries_.Again(status)) return At(status);
    status = Connect();
  }
  return status;
}

absl::Status ObjectUpload::ReadReply(bool* durable) {
  v1::PutObjectReply reply;
  if (!stream_->Read(&reply)) return StatusOfStream();
  received_ = std::max(received_, reply.received());
  *durable = reply.durable();
  retries_.Progress();
  DropReceived();
  return absl::OkStatus();
}

void ObjectUpload::DropReceived() {
  while (!pending_.empty()) {
    const v1::PutObjectRequest::Chunk& first = pending_.front().chunk();
    if (first.offset() + static_cast<int64_t>(first.data().size()) > received_) break;
    pending_.pop_front();
  }
}

absl::Status ObjectUpload::SendFull() {
  if (filling_.empty()) return absl::OkStatus();
  bool durable = false;
  while (pending_.size() >= kMostPending) {
    const absl::Status status = ReadReply(&durable);
    if (!status.ok()) {
      if (absl::Status again = Reconnect(status); !again.ok()) return again;
    }
  }
  v1::PutObjectRequest& chunk = pending_.emplace_back();
  chunk.mutable_chunk()->set_offset(bytes_ - static_cast<int64_t>(filling_.size()));
  chunk.mutable_chunk()->set_data(std::move(filling_));
  filling_.clear();
  if (stream_ != nullptr && stream_->Write(chunk)) return absl::OkStatus();
  return Reconnect(stream_ == nullptr ? absl::UnavailableError("there is no stream")
                                      : StatusOfStream());
}

absl::Status ObjectUpload::Append(const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  hash_.Add(data, bytes);
  while (bytes > 0) {
    const int64_t here =
        std::min<int64_t>(bytes, kChunkBytes - static_cast<int64_t>(filling_.size()));
    if (filling_.empty()) filling_.reserve(kChunkBytes);
    filling_.append(next, static_cast<size_t>(here));
    bytes_ += here;
    next += here;
    bytes -= here;
    if (static_cast<int64_t>(filling_.size()) < kChunkBytes) continue;
    if (absl::Status s = SendFull(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ObjectUpload::Commit() {
  if (absl::Status s = SendFull(); !s.ok()) return s;
  v1::PutObjectRequest commit;
  commit.mutable_commit()->set_bytes(bytes_);
  commit.mutable_commit()->set_sha256(hash_.Hex());
  while (true) {
    absl::Status status;
    bool durable = false;
    if (stream_ == nullptr || !stream_->Write(commit)) {
      status = stream_ == nullptr ? absl::UnavailableError("there is no stream") : StatusOfStream();
    }
    while (status.ok() && !durable) status = ReadReply(&durable);
    if (durable) break;
    if (absl::Status again = Reconnect(status); !again.ok()) return again;
  }
  StatusOfStream().IgnoreError();  // it is durable, however the stream ends
  return absl::OkStatus();
}

}  // namespace espalier
