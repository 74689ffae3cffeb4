// Replays of recorded runs.
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/random_id.h"
#include "client/lib/call.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {

absl::StatusOr<v1::ReplayEstimate> Client::EstimateReplay(const v1::ReplaySpec& spec) {
  v1::EstimateReplayRequest request;
  *request.mutable_spec() = spec;
  auto reply =
      Call<v1::EstimateReplayReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::Estimate,
                                    request, impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_estimate());
}

absl::StatusOr<v1::ReplayInfo> Client::StartReplay(const v1::ReplaySpec& spec,
                                                   const std::string& key) {
  v1::StartReplayRequest request;
  *request.mutable_spec() = spec;
  request.set_idempotency_key(key);
  if (key.empty()) {
    const absl::StatusOr<std::string> random = RandomId();
    if (!random.ok()) return random.status();
    request.set_idempotency_key(*random);
  }
  auto reply = Call<v1::StartReplayReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::Start,
                                          request, impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_replay());
}

absl::Status Client::WatchReplay(const std::string& replay_id, bool with_rows,
                                 const std::function<bool(const v1::ReplayEvent&)>& event,
                                 Canceller* canceller) {
  v1::WatchReplayRequest request;
  request.set_replay_id(replay_id);
  request.set_with_rows(with_rows);
  // All rows are sent again after a new connection.
  std::set<std::tuple<std::string, std::string, std::string, int64_t>> seen;
  const auto watch = [&](const auto& alive) -> grpc::Status {
    grpc::ClientContext context;
    impl_->Prepare(&context, absl::InfiniteDuration());
    const CancellableCall call(canceller, &context);
    auto reader = impl_->replay->Watch(&context, request);
    v1::ReplayEvent next;
    while (reader->Read(&next)) {
      alive();
      const v1::HistoryRow& row = next.row();
      if (next.has_row() &&
          !seen.emplace(row.job_id(), row.name(), row.reduction(), row.step()).second) {
        continue;
      }
      if (!event(next)) {
        context.TryCancel();
        reader->Finish();
        return grpc::Status::OK;
      }
    }
    return reader->Finish();
  };
  return KeepWatching(*impl_, watch, [] { return true; });
}

absl::StatusOr<v1::ReplayInfo> Client::CancelReplay(const std::string& replay_id) {
  v1::CancelReplayRequest request;
  request.set_replay_id(replay_id);
  auto reply = Call<v1::CancelReplayReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::Cancel,
                                           request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_replay());
}

absl::StatusOr<v1::ReplayInfo> Client::GetReplay(const std::string& replay_id) {
  v1::GetReplayRequest request;
  request.set_replay_id(replay_id);
  auto reply = Call<v1::GetReplayReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::Get,
                                        request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_replay());
}

absl::Status Client::DeleteReplay(const std::string& replay_id) {
  v1::DeleteReplayRequest request;
  request.set_replay_id(replay_id);
  return Call<v1::DeleteReplayReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::Delete,
                                     request, impl_->options.call_timeout)
      .status();
}

absl::StatusOr<std::vector<v1::ReplayInfo>> Client::ListReplays(const std::string& run) {
  v1::ListReplaysRequest request;
  request.set_run(run);
  auto reply = Call<v1::ListReplaysReply>(*impl_, impl_->replay.get(), &v1::Replay::Stub::List,
                                          request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::ReplayInfo>(reply->replays().begin(), reply->replays().end());
}

}  // namespace espalier
