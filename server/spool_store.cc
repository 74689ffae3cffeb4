#include "server/spool_store.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/sha256.h"
#include "server/object_store.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

constexpr char kFlag[] = "spool";
constexpr char kObjectScheme[] = "s3://";
// In a folder: whose it is.
constexpr char kOwnerFile[] = ".espalier-owner";
constexpr int64_t kMostOwnerBytes = 1024;

bool IsWithin(const std::string& inner, const std::string& outer) {
  return inner == outer || absl::StartsWith(inner, absl::StrCat(outer, "/"));
}

std::string PathOfFolder(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  std::filesystem::path path = std::filesystem::weakly_canonical(absolute, error);
  if (error) path = absolute.lexically_normal();
  return std::string(absl::StripSuffix(path.string(), "/"));
}

absl::Status FlagError(const std::string& value, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("--", kFlag, "=", value, ": ", what));
}

// Makes the folder and marks it, once: later it is that of a disk that is not mounted if it lacks
// the mark.
absl::Status ClaimFolder(const SpoolUse& use, const std::string& path, const std::string& mark,
                         FileSystem& files, FolderCheckpointStore* store, JobStore* jobs) {
  const std::string claimed_blob = absl::StrCat("spool/claimed/", Sha256Hex(path));
  const absl::StatusOr<std::string> before = jobs->GetBlob(claimed_blob);
  if (!absl::IsNotFound(before.status())) return before.status();
  if (absl::Status s = CreateDurableDirectories(files, path); !s.ok()) {
    return FlagError(use.spool, absl::StrCat(s.message(), "; it must be writable"));
  }
  const absl::Status claimed = store->PutIfAbsent(kOwnerFile, mark);
  if (absl::IsAlreadyExists(claimed)) {
    return FlagError(
        use.spool,
        "it has the checkpoints of another coordinator's jobs; give another folder, or, "
        "if that one is gone for good and its job store is used here, remove "
        ".espalier-owner in it");
  }
  if (!claimed.ok()) return FlagError(use.spool, std::string(claimed.message()));
  return jobs->PutBlob(claimed_blob, path);
}

absl::StatusOr<OpenedSpool> OpenFolder(const SpoolUse& use, const std::string& path,
                                       FileSystem& files, JobStore* jobs) {
  auto store = std::make_unique<FolderCheckpointStore>(files, path);
  // A hash, as in a bucket: who sees the spool need not see the data folder.
  const std::string mark = Sha256Hex(use.identity);
  if (absl::Status s = ClaimFolder(use, path, mark, files, store.get(), jobs); !s.ok()) return s;
  OpenedSpool opened;
  opened.url = path;
  opened.check = [folder = store.get(), path, mark]() -> absl::Status {
    const absl::StatusOr<std::string> found = ReadObject(*folder, kOwnerFile, kMostOwnerBytes);
    if (found.ok() && *found == mark) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the file ", kOwnerFile, " of this coordinator is not in ", path,
                     "; is its disk mounted? If what it had is lost, give another --spool"));
  };
  opened.store = std::move(store);
  return opened;
}

}  // namespace

absl::StatusOr<OpenedSpool> OpenSpool(const SpoolUse& use, FileSystem& files, JobStore* jobs,
                                      std::shared_ptr<const std::atomic<bool>> cancelled) {
  const bool bucket = absl::StartsWith(use.spool, kObjectScheme);
  const std::string url =
      bucket ? std::string(absl::StripSuffix(use.spool, "/")) : PathOfFolder(use.spool);
  for (const std::string& other : use.others) {
    if (other.empty() || absl::StartsWith(other, kObjectScheme) != bucket) continue;
    const std::string place =
        bucket ? std::string(absl::StripSuffix(other, "/")) : PathOfFolder(other);
    if (IsWithin(url, place) || IsWithin(place, url)) {
      return FlagError(use.spool,
                       absl::StrCat("copies must not be where the originals are, in ", place));
    }
  }
  if (!bucket) return OpenFolder(use, url, files, jobs);
  absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      OpenObjectStore({kFlag, url, use.identity, ""}, jobs, std::move(cancelled));
  if (!store.ok()) return store.status();
  OpenedSpool opened;
  opened.url = url;
  opened.store = *std::move(store);
  return opened;
}

}  // namespace espalier
