#include "server/http/exchange.h"

#include <algorithm>
#include <utility>

namespace espalier {

Exchange::Exchange(size_t max_unsent, std::function<void()> wake)
    : max_unsent_(max_unsent), wake_(std::move(wake)) {}

void Exchange::CountIn(std::shared_ptr<std::atomic<int>> open,
                       std::shared_ptr<std::atomic<size_t>> unsent) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  ++*open;
  open_ = std::move(open);
  all_unsent_ = std::move(unsent);
  *all_unsent_ += held_;
}

void Exchange::Hold(size_t bytes) {
  held_ += bytes;
  if (all_unsent_ != nullptr) *all_unsent_ += bytes;
}

void Exchange::LetGo(size_t bytes) {
  held_ -= bytes;
  if (all_unsent_ != nullptr) *all_unsent_ -= bytes;
}

void Exchange::Put(Part part) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || overflow_) return;
  if (part.kind == Part::kChunk) {
    // One part may be of any size, whatever is written behind it before the connection takes it:
    // nothing is too large to be sent to one who reads.
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
    Hold(part.data.size());
    parts_.push_back(std::move(part));
  }
  wake_();
}

bool Exchange::Started() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(started_, true);
}

void Exchange::OnClose(std::function<void()> closed) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_) {
      on_close_ = std::move(closed);
      return;
    }
    if (!gone_) return;
  }
  closed();
}

bool Exchange::closed() {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

bool Exchange::Take(Part* part) {
  absl::MutexLock lock(&mutex_);
  LetGo(std::exchange(taken_, 0));
  if (parts_.empty()) return false;
  *part = std::move(parts_.front());
  taken_ = part->data.size();
  parts_.pop_front();
  if (part->kind == Part::kChunk) {
    unsent_ -= part->data.size();
    largest_gone_ = largest_gone_ || part->data.size() == largest_;
  }
  return true;
}

bool Exchange::overflow() {
  absl::MutexLock lock(&mutex_);
  return overflow_;
}

void Exchange::Close(bool notify, bool wake) {
  std::function<void()> closed;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    gone_ = notify;
    parts_.clear();
    if (open_ != nullptr) --*open_;
    open_ = nullptr;
    LetGo(held_);
    taken_ = 0;
    all_unsent_ = nullptr;
    closed = std::move(on_close_);
    on_close_ = nullptr;
    if (wake) wake_();
    wake_ = nullptr;
  }
  if (notify && closed) closed();
}

ExchangeResponder::~ExchangeResponder() {
  if (!exchange_->Started()) {
    exchange_->Put({Exchange::Part::kWhole,
                    500,
                    "application/json",
                    R"({"error":{"message":"the request was dropped","type":"server_error"}})",
                    {}});
  } else if (streaming_ && !ended_) {
    exchange_->Put({Exchange::Part::kLost, 200, "", "", {}});
  }
}

void ExchangeResponder::Send(int status, std::string content_type, std::string body,
                             Headers headers) {
  if (exchange_->Started()) return;
  exchange_->Put({Exchange::Part::kWhole, status, std::move(content_type), std::move(body),
                  std::move(headers)});
}

void ExchangeResponder::StartStream(int status, std::string content_type, Headers headers) {
  if (exchange_->Started()) return;
  streaming_ = true;
  exchange_->Put(
      {Exchange::Part::kHeader, status, std::move(content_type), "", std::move(headers)});
}

void ExchangeResponder::Write(std::string data) {
  if (!data.empty()) exchange_->Put({Exchange::Part::kChunk, 200, "", std::move(data), {}});
}

void ExchangeResponder::End() {
  if (!ended_.exchange(true)) exchange_->Put({Exchange::Part::kEnd, 200, "", "", {}});
}

}  // namespace espalier
