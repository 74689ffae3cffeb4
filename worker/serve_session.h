// Runs the commands of a stream on a session's rank.
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "worker/session_job.h"

namespace espalier {

using SessionStream = grpc::ServerReaderWriter<v1::RankResult, v1::RankCommand>;

// Connects the rank to its peers, says that it is ready, and runs commands until the stream ends.
// Returns the error of a command, after which the session is over.
absl::Status ServeSession(SessionJob& job, SessionStream* stream);

}  // namespace espalier
