#include "server/http/response_stream.h"

#include <algorithm>
#include <utility>

namespace espalier {

ResponseStream::ResponseStream(size_t max_unsent, std::function<void()> wake)
    : max_unsent_(max_unsent), wake_(std::move(wake)) {}

void ResponseStream::CountTowards(std::shared_ptr<std::atomic<int>> open,
                                  std::shared_ptr<std::atomic<size_t>> unsent) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  ++*open;
  open_requests_ = std::move(open);
  server_unsent_ = std::move(unsent);
  *server_unsent_ += pending_bytes_;
}

void ResponseStream::AddPendingBytes(size_t bytes) {
  pending_bytes_ += bytes;
  if (server_unsent_ != nullptr) *server_unsent_ += bytes;
}

void ResponseStream::RemovePendingBytes(size_t bytes) {
  pending_bytes_ -= bytes;
  if (server_unsent_ != nullptr) *server_unsent_ -= bytes;
}

void ResponseStream::Push(Part part) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || overflow_) return;
  if (part.kind == Part::kChunk) {
    // A single part may be of any size, whatever is queued behind it: a client that reads can
    // receive any answer.
    unsent_ += part.data.size();
    largest_ = std::max(largest_, part.data.size());
    if (unsent_ > max_unsent_ && largest_gone_) {
      largest_ = part.data.size();
      for (const Part& other : parts_) largest_ = std::max(largest_, other.data.size());
      largest_gone_ = false;
    }
    overflow_ = unsent_ - std::min(unsent_, largest_) > max_unsent_;
  }
  if (overflow_) {
    parts_.clear();
  } else {
    AddPendingBytes(part.data.size());
    parts_.push_back(std::move(part));
  }
  wake_();
}

bool ResponseStream::TestAndSetStarted() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(started_, true);
}

void ResponseStream::OnClose(std::function<void()> closed) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_) {
      on_close_ = std::move(closed);
      return;
    }
    if (!client_gone_) return;
  }
  closed();
}

bool ResponseStream::closed() {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

bool ResponseStream::Pop(Part* part) {
  absl::MutexLock lock(&mutex_);
  RemovePendingBytes(std::exchange(in_flight_bytes_, 0));
  if (parts_.empty()) return false;
  *part = std::move(parts_.front());
  in_flight_bytes_ = part->data.size();
  parts_.pop_front();
  if (part->kind == Part::kChunk) {
    unsent_ -= part->data.size();
    largest_gone_ = largest_gone_ || part->data.size() == largest_;
  }
  return true;
}

bool ResponseStream::overflow() {
  absl::MutexLock lock(&mutex_);
  return overflow_;
}

void ResponseStream::Close(bool notify, bool wake) {
  std::function<void()> closed;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    client_gone_ = notify;
    parts_.clear();
    if (open_requests_ != nullptr) --*open_requests_;
    open_requests_ = nullptr;
    RemovePendingBytes(pending_bytes_);
    in_flight_bytes_ = 0;
    server_unsent_ = nullptr;
    closed = std::move(on_close_);
    on_close_ = nullptr;
    if (wake) wake_();
    wake_ = nullptr;
  }
  if (notify && closed) closed();
}

StreamResponder::~StreamResponder() {
  if (!response_->TestAndSetStarted()) {
    response_->Push({ResponseStream::Part::kComplete,
                     500,
                     "application/json",
                     R"({"error":{"message":"the request was dropped","type":"server_error"}})",
                     {}});
  } else if (streaming_ && !ended_) {
    response_->Push({ResponseStream::Part::kAborted, 200, "", "", {}});
  }
}

void StreamResponder::Send(int status, std::string content_type, std::string body,
                           Headers headers) {
  if (response_->TestAndSetStarted()) return;
  response_->Push({ResponseStream::Part::kComplete, status, std::move(content_type),
                   std::move(body), std::move(headers)});
}

void StreamResponder::StartStream(int status, std::string content_type, Headers headers) {
  if (response_->TestAndSetStarted()) return;
  streaming_ = true;
  response_->Push(
      {ResponseStream::Part::kHeader, status, std::move(content_type), "", std::move(headers)});
}

void StreamResponder::Write(std::string data) {
  if (!data.empty()) response_->Push({ResponseStream::Part::kChunk, 200, "", std::move(data), {}});
}

void StreamResponder::End() {
  if (!ended_.exchange(true)) response_->Push({ResponseStream::Part::kEnd, 200, "", "", {}});
}

}  // namespace espalier
