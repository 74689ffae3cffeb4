#include "server/jobs/check_joining_worker.h"

#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/data_dir_id.h"

namespace espalier {
namespace {

constexpr absl::Duration kProbeTimeout = absl::Seconds(3);
constexpr int64_t kMaxIdBytes = 256;

std::string RandomId() {
  std::random_device source;
  return absl::StrFormat("%08x%08x%08x%08x", source(), source(), source(), source());
}

}  // namespace

absl::StatusOr<DataDir> IdentifyDataDir(FileSystem& files, const std::string& path) {
  DataDir data_dir{path, ""};
  const std::string file = JoinPath(path, kDataDirIdFile);
  absl::StatusOr<std::string> known = ReadWholeFile(files, file, kMaxIdBytes);
  if (known.ok() && !known->empty()) {
    data_dir.id = *std::move(known);
    return data_dir;
  }
  data_dir.id = RandomId();
  if (absl::Status s = WriteFileAtomically(files, file, data_dir.id); !s.ok()) return s;
  return data_dir;
}

absl::StatusOr<bool> CheckJoiningWorker(const WorkerDialer& dial, const DataDir& data_dir,
                                        const v1::JoinRequest& request) {
  v1::ProbeRequest probe;
  probe.set_join_key(request.idempotency_key());
  probe.set_data_dir(data_dir.path);
  probe.set_data_dir_id(data_dir.id);
  Member worker;
  worker.address = request.address();
  worker.call_key = request.call_key();
  const std::unique_ptr<WorkerClient> client = dial(worker);
  const absl::StatusOr<v1::ProbeReply> reply = client->Probe(probe, kProbeTimeout);
  if (!reply.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator cannot reach this worker at ", request.address().substr(0, 300), " (",
        std::string(reply.status().message()),
        "); start it with --listen=HOST:PORT on an address that the coordinator's host reaches, or "
        "name such an address with --advertise=HOST:PORT"));
  }
  return reply->sees_data_dir() && reply->may_write();
}

}  // namespace espalier
