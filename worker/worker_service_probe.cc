// WorkerService: whether this worker sees the coordinator's data folder.
#include <unistd.h>

#include "base/net/grpc_status.h"
#include "storage/data_dir_id.h"
#include "worker/worker_service.h"

namespace espalier {
namespace {

constexpr int64_t kMaxDataDirIdBytes = 256;

}  // namespace

grpc::Status WorkerService::Probe(grpc::ServerContext* context, const v1::ProbeRequest* request,
                                  v1::ProbeReply* reply) {
  if (absl::Status s = Authorize(*context); !s.ok()) return ToGrpc(s);
  {
    absl::MutexLock lock(&mutex_);
    if (!request->join_key().empty() && request->join_key() != join_key_) {
      return ToGrpc(absl::FailedPreconditionError("another worker answers at this address"));
    }
  }
  const std::string folder = options_.data_dir.empty() ? request->data_dir() : options_.data_dir;
  const std::string file = JoinPath(folder, kDataDirIdFile);
  absl::StatusOr<std::string> id = ReadWholeFile(*options_.files, file, kMaxDataDirIdBytes);
  reply->set_sees_data_dir(id.ok() && *id == request->data_dir_id());
  reply->set_may_write(reply->sees_data_dir() && access(folder.c_str(), W_OK) == 0);
  return grpc::Status::OK;
}

}  // namespace espalier
