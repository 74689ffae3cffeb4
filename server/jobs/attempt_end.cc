#include "server/jobs/attempt_end.h"

#include "absl/strings/str_cat.h"

namespace espalier {

bool IsJobError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

bool IsWorkerLoss(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kAborted ||
         code == absl::StatusCode::kCancelled || code == absl::StatusCode::kDeadlineExceeded ||
         code == absl::StatusCode::kFailedPrecondition;
}

AttemptEnd AttemptEnd::Stopped() {
  AttemptEnd end;
  end.kind = kStopped;
  return end;
}

AttemptEnd AttemptEnd::Failed(const absl::Status& status) {
  AttemptEnd end;
  end.kind = IsWorkerLoss(status.code()) && status.code() != absl::StatusCode::kFailedPrecondition
                 ? kWorkersLost
                 : kFailed;
  end.reason = std::string(status.message());
  return end;
}

AttemptEnd AttemptEnd::TooFewWorkers(const WorkerMemory& present, const WorkerMemory& enough,
                                     const absl::Status& refusal) {
  const auto describe = [](const WorkerMemory& memory) {
    return absl::StrCat(memory.workers, " workers with ", memory.bytes, " bytes, ", memory.smallest,
                        " in the smallest");
  };
  AttemptEnd end;
  end.kind = kTooFewWorkers;
  end.reason = present.workers < enough.workers
                   ? absl::StrCat("the memory of ", present.workers, " of ", enough.workers,
                                  " workers is not enough; waiting for more to join. ")
                   : absl::StrCat("the memory of ", describe(present), ", is not enough where ",
                                  describe(enough), ", was; waiting for larger ones to join. ");
  absl::StrAppend(&end.reason, refusal.message());
  return end;
}

}  // namespace espalier
