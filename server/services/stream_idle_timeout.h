// Cancels streams whose client has neither sent nor read anything for too long: each stream holds a
// thread and one of the calls that CallInterceptor bounds.
#pragma once

#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace grpc {
class ServerContext;
}

namespace espalier {

// Thread-safe.
class StreamIdleTimeout {
 public:
  explicit StreamIdleTimeout(absl::Duration limit);
  ~StreamIdleTimeout();

  // Scope of a read or write that waits for the client. After `limit` the call is cancelled: the
  // read or write fails, and the client gets CANCELLED.
  class Wait {
   public:
    Wait(StreamIdleTimeout* calls, grpc::ServerContext* context);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    StreamIdleTimeout& calls_;
    grpc::ServerContext* const context_;
  };

 private:
  void Scan();

  const absl::Duration limit_;
  absl::Mutex mutex_;
  absl::CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<grpc::ServerContext*, absl::Time> since_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace espalier
