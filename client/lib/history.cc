// What was recorded of runs, and the answers to replays of them.
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {

absl::Status Client::QueryHistory(const v1::QueryHistoryRequest& request,
                                  const std::function<absl::Status(const v1::HistoryRow&)>& row,
                                  Canceller* canceller) {
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  const CancellableCall call(canceller, &context);
  auto reader = impl_->replay->Query(&context, request);
  v1::QueryHistoryReply reply;
  while (reader->Read(&reply)) {
    for (const v1::HistoryRow& next : reply.rows()) {
      if (absl::Status s = row(next); !s.ok()) {
        context.TryCancel();
        reader->Finish();
        return s;
      }
    }
  }
  return impl_->FromGrpc(reader->Finish());
}

}  // namespace espalier
