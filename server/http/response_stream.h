// The response of one request, queued between the responder and the connection.
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

// The connection's strand pops parts; any thread pushes them. May outlive connection and server: it
// refers to them only through `wake`, which Close drops.
class ResponseStream {
 public:
  struct Part {
    // kAborted: the responder is gone without ending the stream.
    enum Kind { kComplete, kHeader, kChunk, kEnd, kAborted } kind;
    int status = 200;
    std::string content_type;
    std::string data;
    HttpResponder::Headers headers;
  };

  // `wake` notifies the connection of new parts, from any thread and without blocking.
  ResponseStream(size_t max_unsent, std::function<void()> wake);

  // Counts this response in `open` and its queued bytes in `unsent` until it closes.
  void CountTowards(std::shared_ptr<std::atomic<int>> open,
                    std::shared_ptr<std::atomic<size_t>> unsent);
  void Push(Part part);
  bool TestAndSetStarted();  // returns whether it was called before
  void OnClose(std::function<void()> closed);
  bool closed();

  // The rest runs on the strand.

  // Pops the next part, if any. The part popped before counts as sent.
  bool Pop(Part* part);
  // More than max_unsent bytes of a stream are queued: the client does not read.
  bool overflow();
  // The client has disconnected (`notify`), or the answer is complete.
  void Close(bool notify, bool wake = true);

 private:
  void AddPendingBytes(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemovePendingBytes(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_unsent_;
  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of chunks
  // Size of the largest queued chunk; an upper bound once that has been popped.
  size_t largest_ ABSL_GUARDED_BY(mutex_) = 0;
  bool largest_gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflow_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;       // no more parts are accepted
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;  // closed before the answer was complete
  std::shared_ptr<std::atomic<int>> open_requests_ ABSL_GUARDED_BY(mutex_);     // null: not counted
  std::shared_ptr<std::atomic<size_t>> server_unsent_ ABSL_GUARDED_BY(mutex_);  // null: not counted
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // queued or being sent
  size_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the part popped last
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // null once closed
};

class StreamResponder : public HttpResponder {
 public:
  explicit StreamResponder(std::shared_ptr<ResponseStream> response)
      : response_(std::move(response)) {}
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
