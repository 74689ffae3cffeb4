// Runs of experiments.
#include <utility>

#include "client/lib/call.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {

absl::StatusOr<std::vector<v1::Recording>> Client::ListRuns(const std::string& run) {
  v1::ListRunsRequest request;
  request.set_run(run);
  auto reply = AllPages(
      std::move(request), /*limit=*/0,
      [&](const v1::ListRunsRequest& page) {
        return Call<v1::ListRunsReply>(*impl_, impl_->recordings.get(), &v1::Recordings::Stub::List,
                                       page, impl_->options.call_timeout);
      },
      [](v1::ListRunsReply* runs) { return runs->mutable_runs(); });
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Recording>(reply->runs().begin(), reply->runs().end());
}

absl::StatusOr<v1::Recording> Client::GetRun(const std::string& run) {
  v1::GetRunRequest request;
  request.set_run(run);
  auto reply = Call<v1::GetRunReply>(*impl_, impl_->recordings.get(), &v1::Recordings::Stub::Get,
                                     request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_run());
}

absl::StatusOr<v1::ListRunValuesReply> Client::ListRunValues(const std::string& run,
                                                             const std::string& pattern) {
  v1::ListRunValuesRequest request;
  request.set_run(run);
  request.set_pattern(pattern);
  return Call<v1::ListRunValuesReply>(*impl_, impl_->recordings.get(),
                                      &v1::Recordings::Stub::ListValues, request,
                                      impl_->options.plan_timeout);
}

absl::StatusOr<v1::DiffRunsReply> Client::DiffRuns(const std::string& a, const std::string& b) {
  v1::DiffRunsRequest request;
  request.set_a(a);
  request.set_b(b);
  return Call<v1::DiffRunsReply>(*impl_, impl_->recordings.get(), &v1::Recordings::Stub::Diff,
                                 request, impl_->options.call_timeout);
}

}  // namespace espalier
