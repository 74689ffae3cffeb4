#include "server/services/stream_idle_timeout.h"

#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/time/clock.h"

namespace espalier {

StreamIdleTimeout::StreamIdleTimeout(absl::Duration limit)
    : limit_(limit), thread_([this] { Scan(); }) {}

StreamIdleTimeout::~StreamIdleTimeout() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    stopped_.SignalAll();
  }
  thread_.join();
}

void StreamIdleTimeout::Scan() {
  const absl::Duration tick = std::clamp(limit_ / 4, absl::Milliseconds(10), absl::Seconds(5));
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    stopped_.WaitWithTimeout(&mutex_, tick);
    const absl::Time now = absl::Now();
    for (auto& [context, since] : since_) {
      if (now - since < limit_) continue;
      since = absl::InfiniteFuture();
      spdlog::warn("rpc peer={} is cut off: silent for {}", context->peer(),
                   absl::FormatDuration(limit_));
      context->TryCancel();
    }
  }
}

StreamIdleTimeout::Wait::Wait(StreamIdleTimeout* calls, grpc::ServerContext* context)
    : calls_(*calls), context_(context) {
  absl::MutexLock lock(&calls_.mutex_);
  calls_.since_[context_] = absl::Now();
}

StreamIdleTimeout::Wait::~Wait() {
  absl::MutexLock lock(&calls_.mutex_);
  calls_.since_.erase(context_);
}

}  // namespace espalier
