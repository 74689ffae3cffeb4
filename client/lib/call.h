// How the client's .cc files call the coordinator: with a deadline, and again while it is
// unavailable.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "client/lib/client_impl.h"

namespace espalier {

// One unary call, retried while the coordinator is unavailable.
template <typename Reply, typename Stub, typename Request>
absl::StatusOr<Reply> Call(const Client::Impl& impl, Stub* stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Reply*),
                           const Request& request, absl::Duration timeout,
                           Canceller* canceller = nullptr) {
  const absl::Time give_up = absl::Now() + impl.options.retry_for;
  Backoff pauses(absl::Milliseconds(100), absl::Seconds(2));
  while (true) {
    grpc::ClientContext context;
    impl.Prepare(&context, timeout);
    const CancellableCall call(canceller, &context);
    Reply reply;
    const grpc::Status status = (stub->*method)(&context, request, &reply);
    if (status.ok()) return reply;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
        absl::Now() + pauses.next() > give_up) {
      return impl.FromGrpc(status);
    }
    absl::SleepFor(pauses.Take());
  }
}

// Calls `watch` until it returns OK: again, for at most watch_retry_for, each time that the
// coordinator is unavailable. It opens a stream, reads it to its end, and calls its argument
// whenever something has come. `lost` is called once when a connection is lost, and returns whether
// to go on.
template <typename Watch, typename Lost>
absl::Status KeepWatching(const Client::Impl& impl, const Watch& watch, const Lost& lost) {
  Backoff pauses(absl::Milliseconds(200), absl::Seconds(2));
  absl::Time give_up = absl::InfiniteFuture();
  const auto alive = [&] {
    give_up = absl::InfiniteFuture();
    pauses.Reset();
  };
  while (true) {
    const grpc::Status status = watch(alive);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return impl.FromGrpc(status);
    if (give_up == absl::InfiniteFuture()) {
      give_up = absl::Now() + impl.options.watch_retry_for;
      if (!lost()) return absl::OkStatus();
    }
    if (absl::Now() + pauses.next() > give_up) return impl.FromGrpc(status);
    absl::SleepFor(pauses.Take());
  }
}

// Gathers the pages of a list in one reply. `items` returns a reply's.
template <typename Request, typename Page, typename Items>
auto AllPages(Request request, int64_t limit, const Page& page, const Items& items)
    -> decltype(page(request)) {
  constexpr int64_t kMostPerPage = 1000;
  decltype(page(request)) all = absl::UnknownError("no page");
  for (int64_t left = limit;;) {
    request.set_page_size(static_cast<int32_t>(limit > 0 ? std::min(left, kMostPerPage) : 0));
    auto reply = page(request);
    if (!reply.ok()) return reply;
    const std::string next = reply->next_page_token();
    left -= items(&*reply)->size();
    if (all.ok()) {
      items(&*all)->MergeFrom(*items(&*reply));
      all->set_next_page_token(next);
    } else {
      all = std::move(reply);
    }
    if (next.empty() || (limit > 0 && left <= 0)) return all;
    request.set_page_token(next);
  }
}

}  // namespace espalier
