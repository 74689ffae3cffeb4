#include "server/recordings/fetched_checkpoint.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "server/recordings/stored_checkpoints.h"
#include "storage/copy_checkpoint.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

std::string CopiesOf(const std::string& job_id, const std::string& reader) {
  return absl::StrCat(job_id, "/", kFetchedFolder, "/", reader);
}

}  // namespace

absl::StatusOr<FetchedCheckpoint> FetchedCheckpoint::Open(const FetchTools& tools,
                                                          const std::string& job_id,
                                                          const std::string& directory,
                                                          const std::string& reader,
                                                          const std::function<bool()>& stopped) {
  const std::string folder = JoinPath(job_id, directory);
  // Its content is checked by who reads it.
  if (!absl::IsNotFound(ReadManifest(*tools.store, folder).status())) {
    return FetchedCheckpoint(folder);
  }
  if (tools.recordings == nullptr) {
    return absl::NotFoundError(absl::StrCat("the checkpoint '", folder, "' is not there"));
  }
  const absl::StatusOr<v1::RecordedCheckpoint> copy = tools.recordings->CopyOf(job_id, directory);
  if (!copy.ok()) return copy.status();
  if (tools.spool == nullptr || tools.spool->url() != copy->spool()) {
    return absl::NotFoundError(absl::StrCat("the checkpoint '", folder, "' is in ", copy->spool(),
                                            " only; start espalierd with --spool=", copy->spool()));
  }
  absl::StatusOr<FetchedCheckpoint> fetched = FetchCopy(tools, job_id, directory, reader, stopped);
  if (fetched.ok()) return fetched;
  const absl::Status status = fetched.status();
  // For a reader a checkpoint that cannot be reached is not there.
  const bool keeps_code =
      absl::IsDataLoss(status) || absl::IsCancelled(status) || absl::IsResourceExhausted(status);
  return absl::Status(keeps_code ? status.code() : absl::StatusCode::kNotFound,
                      absl::StrCat("the checkpoint '", folder, "' cannot be copied back from ",
                                   copy->spool(), ": ", status.message()));
}

absl::StatusOr<FetchedCheckpoint> FetchedCheckpoint::FetchCopy(
    const FetchTools& tools, const std::string& job_id, const std::string& directory,
    const std::string& reader, const std::function<bool()>& stopped) {
  const std::string copies = CopiesOf(job_id, reader);
  FetchedCheckpoint fetched(JoinPath(copies, directory.substr(directory.rfind('/') + 1)));
  fetched.store_ = tools.store;
  fetched.copies_ = copies;
  // What an interrupted reader has left.
  if (absl::Status s = tools.store->Delete(copies); !s.ok()) return s;
  const absl::Status status =
      tools.spool->Fetch(JoinPath(job_id, directory), fetched.folder_, stopped);
  const bool unusable = absl::IsDataLoss(status) || absl::IsNotFound(status);
  if (status.ok() || unusable) tools.recordings->SetCopyUsable(job_id, directory, !unusable);
  if (!status.ok()) return status;
  return fetched;
}

absl::Status RestoreCheckpoint(const FetchTools& tools, const std::string& job_id,
                               const std::string& directory, const std::string& reader,
                               const std::function<bool()>& stopped) {
  if (tools.spool == nullptr || tools.recordings == nullptr) {
    return absl::NotFoundError("there is no spool");
  }
  const absl::StatusOr<v1::RecordedCheckpoint> copy = tools.recordings->CopyOf(job_id, directory);
  if (!copy.ok()) return copy.status();
  if (copy->spool() != tools.spool->url()) {
    return absl::NotFoundError(absl::StrCat("its copy is in ", copy->spool()));
  }
  const absl::StatusOr<FetchedCheckpoint> fetched =
      FetchedCheckpoint::FetchCopy(tools, job_id, directory, reader, stopped);
  absl::Status status = fetched.status();
  if (fetched.ok()) {
    CopyOptions options;
    options.stopped = stopped;
    status = RepairCheckpoint(*tools.store, fetched->folder(), *tools.store,
                              JoinPath(job_id, directory), options);
  }
  if (status.ok() || absl::IsCancelled(status)) return status;
  const bool lost = absl::IsNotFound(status);
  return absl::Status(lost ? absl::StatusCode::kDataLoss : status.code(),
                      absl::StrCat("its copy in ", copy->spool(),
                                   lost                       ? " is lost, too: "
                                   : absl::IsDataLoss(status) ? " is damaged, too: "
                                                              : " cannot be used: ",
                                   status.message()));
}

FetchedCheckpoint::FetchedCheckpoint(FetchedCheckpoint&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      folder_(std::move(other.folder_)),
      copies_(std::move(other.copies_)) {}

FetchedCheckpoint& FetchedCheckpoint::operator=(FetchedCheckpoint&& other) noexcept {
  if (this == &other) return *this;
  Remove();
  store_ = std::exchange(other.store_, nullptr);
  folder_ = std::move(other.folder_);
  copies_ = std::move(other.copies_);
  return *this;
}

FetchedCheckpoint::~FetchedCheckpoint() { Remove(); }

void FetchedCheckpoint::Remove() {
  if (store_ == nullptr) return;
  if (const absl::Status removed = store_->Delete(copies_); !removed.ok()) {
    spdlog::warn("a copy of a spooled checkpoint stays until the replay is over: {}",
                 removed.ToString());
  }
  store_ = nullptr;
}

absl::Status FetchedCheckpoint::RemoveLeft(CheckpointStore& store, const std::string& job_id,
                                           const std::string& reader) {
  return store.Delete(CopiesOf(job_id, reader));
}

}  // namespace espalier
