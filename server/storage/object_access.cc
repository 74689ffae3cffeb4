#include "server/storage/object_access.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/data_folder_names.h"
#include "storage/object_reader.h"

namespace espalier {
namespace {

bool IsOfJob(const v1::StorageCaller& caller, const std::string& name) {
  // Served models ("serving/<name>") have no folder.
  if (caller.job_id().empty() || absl::StrContains(caller.job_id(), '/')) return false;
  return absl::StartsWith(name, absl::StrCat(kCheckpointsFolder, "/", caller.job_id(), "/"));
}

// A replay's segment, "<job>@<replay>.<number>", reads what its job has written. See
// ReplayAttemptName.
bool IsOfReplayedJob(const v1::StorageCaller& caller, const std::string& name) {
  const size_t at = caller.job_id().find('@');
  if (at == std::string::npos || at == 0) return false;
  if (absl::StrContains(caller.job_id(), '/')) return false;
  return absl::StartsWith(
      name, absl::StrCat(kCheckpointsFolder, "/", caller.job_id().substr(0, at), "/"));
}

absl::Status Denied(const v1::StorageCaller& caller, const std::string& name) {
  return absl::PermissionDeniedError(
      absl::StrCat("'", absl::CHexEscape(name.substr(0, 300)), "' is not of job '",
                   absl::CHexEscape(caller.job_id().substr(0, 300)), "'"));
}

}  // namespace

absl::Status ObjectAccess::CheckCaller(const v1::StorageCaller& caller) const {
  absl::Status status = workers_.CheckAssigned(caller.lease(), caller.job_id());
  if (!status.ok()) return status;
  return rendezvous_.CheckCurrent(caller.job_id(), caller.attempt());
}

absl::Status ObjectAccess::CheckWrite(const v1::StorageCaller& caller,
                                      const std::string& name) const {
  absl::Status status = CheckObjectName(name);
  if (status.ok() && !IsOfJob(caller, name)) status = Denied(caller, name);
  return status.ok() ? CheckCaller(caller) : status;
}

absl::Status ObjectAccess::CheckRead(const v1::StorageCaller& caller,
                                     const std::string& name) const {
  absl::Status status = CheckObjectName(name);
  const bool artifact = absl::StartsWith(name, absl::StrCat(kArtifactsFolder, "/"));
  // The job's own folder may be listed.
  const std::string folder = absl::StrCat(name, "/");
  if (status.ok() && !artifact && !IsOfJob(caller, folder) && !IsOfReplayedJob(caller, folder)) {
    status = Denied(caller, name);
  }
  return status.ok() ? CheckCaller(caller) : status;
}

}  // namespace espalier
