// One request's answer on its way from whoever answers to the connection.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/http/http_server.h"

namespace espalier {

// The connection's strand takes parts out; any thread puts them in. May outlive connection and
// server: it holds nothing of theirs but `wake`, which is dropped when it closes.
class ResponseStream {
 public:
  struct Part {
    // kAborted: nobody is left who could end the stream.
    enum Kind { kComplete, kHeader, kChunk, kEnd, kAborted } kind;
    int status = 200;
    std::string content_type;
    std::string data;
    HttpResponder::Headers headers;
  };

  // `wake` tells the connection, from any thread and without blocking, that there is something new.
  ResponseStream(size_t max_unsent, std::function<void()> wake);

  // Is one of the open ones until it closes, and what it holds by then is part of the bytes that
  // are unsent.
  void CountTowards(std::shared_ptr<std::atomic<int>> open, std::shared_ptr<std::atomic<size_t>> unsent);
  void Push(Part part);
  bool TestAndSetStarted();  // whether it had been called before
  void OnClose(std::function<void()> closed);
  bool closed();

  // The rest run on the strand.

  // The part before has been sent.
  bool Pop(Part* part);
  // More of a stream waits than may: its client does not read.
  bool overflow();
  // The client has gone, or the answer is complete (`notify` false).
  void Close(bool notify, bool wake = true);

 private:
  void AddPendingBytes(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemovePendingBytes(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_unsent_;
  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of chunks
  // Of the chunks that wait, the largest one's; more once that has been taken.
  size_t largest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool largest_gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflow_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // no more parts are taken
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;    // closed before the answer was complete
  std::shared_ptr<std::atomic<int>> open_requests_ ABSL_GUARDED_BY(mutex_);  // null: it is not counted
  std::shared_ptr<std::atomic<size_t>> server_unsent_ ABSL_GUARDED_BY(mutex_);  // likewise
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // bytes of parts that wait or are being sent
  size_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of these, those of the part taken last
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // null once closed
};

class StreamResponder : public HttpResponder {
 public:
  explicit StreamResponder(std::shared_ptr<ResponseStream> response) : response_(std::move(response)) {}
  ~StreamResponder() override;

  void Send(int status, std::string content_type, std::string body, Headers headers) override;
  void StartStream(int status, std::string content_type, Headers headers) override;
  void Write(std::string data) override;
  void End() override;
  void OnClose(std::function<void()> closed) override { response_->OnClose(std::move(closed)); }

 private:
  const std::shared_ptr<ResponseStream> response_;
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> ended_ = false;
};

}  // namespace espalier
