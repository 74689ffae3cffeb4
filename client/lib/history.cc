// What was recorded of runs, and the answers to replays of them.
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {

absl::Status Client::QueryHistory(const v1::QueryHistoryRequest& request,
                                  const std::function<absl::Status(const v1::HistoryRow&)>& row,
                                  Canceller* canceller) {
  const absl::Time give_up = absl::Now() + impl_->options.retry_for;
  Backoff pauses(absl::Milliseconds(100), absl::Seconds(2));
  bool any = false;
  while (true) {
    grpc::ClientContext context;
    impl_->Prepare(&context, absl::InfiniteDuration());
    const CancellableCall call(canceller, &context);
    auto reader = impl_->replay->Query(&context, request);
    v1::QueryHistoryReply reply;
    while (reader->Read(&reply)) {
      for (const v1::HistoryRow& next : reply.rows()) {
        any = true;
        if (absl::Status s = row(next); !s.ok()) {
          context.TryCancel();
          reader->Finish();
          return s;
        }
      }
    }
    const grpc::Status status = reader->Finish();
    // Rows that `row` has are not given to it again.
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || any ||
        absl::Now() + pauses.next() > give_up) {
      return impl_->FromGrpc(status);
    }
    absl::SleepFor(pauses.Take());
  }
}

}  // namespace espalier
