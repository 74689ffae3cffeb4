// A session of one command.
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {

absl::StatusOr<v1::SessionReply> Client::RunInSession(
    const v1::OpenSessionRequest& request,
    const std::function<v1::SessionCommand(const v1::OpenSessionReply&)>& command,
    Canceller* canceller) {
  v1::OpenSessionReply opened;
  {
    grpc::ClientContext context;
    impl_->Prepare(&context, impl_->options.plan_timeout);
    const CancellableCall call(canceller, &context);
    const grpc::Status status = impl_->sessions->Open(&context, request, &opened);
    if (!status.ok()) return impl_->FromGrpc(status);
  }
  const absl::Cleanup close = [&] {
    grpc::ClientContext context;
    impl_->Prepare(&context, impl_->options.call_timeout);
    v1::CloseSessionRequest over;
    over.set_session_id(opened.session_id());
    v1::CloseSessionReply reply;
    // Otherwise it ends by itself after its grace time.
    impl_->sessions->Close(&context, over, &reply);
  };
  v1::SessionCommand message = command(opened);
  message.set_session_id(opened.session_id());
  message.set_number(1);
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  const CancellableCall call(canceller, &context);
  const auto stream = impl_->sessions->Run(&context);
  if (stream->Write(message)) stream->WritesDone();
  v1::SessionReply all, part;
  bool complete = false;
  while (stream->Read(&part)) {
    if (part.number() != 1) continue;  // of the stream's beginning
    complete = !part.more();
    all.MergeFrom(part);
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return impl_->FromGrpc(status);
  if (!complete) return absl::UnavailableError("the session ended before it answered; try again");
  if (all.code() != 0) return absl::Status(static_cast<absl::StatusCode>(all.code()), all.error());
  return all;
}

}  // namespace espalier
