#include "storage/folder_checkpoint_store.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random_id.h"
#include "storage/atomic_file.h"

namespace espalier {
namespace {

// How often a list begins again because a folder was removed meanwhile.
constexpr int kListTries = 10;

absl::Status CannotList(const std::string& path, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("cannot list '", path, "': ", error.message()));
}

bool IsMissing(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

// Removes `path` but for what is kept, and the folders around that. Goes on after an error.
void RemoveExcept(const std::filesystem::path& path, const std::set<std::string>& kept,
                  std::error_code* error) {
  if (kept.count(path.string()) > 0) return;
  const auto first = kept.lower_bound(path.string() + "/");
  const bool holds_kept = first != kept.end() && absl::StartsWith(*first, path.string() + "/");
  if (!holds_kept) {
    std::error_code failed;
    std::filesystem::remove_all(path, failed);
    if (failed) *error = failed;
    return;
  }
  std::error_code failed;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    entries.push_back(entry->path());
  }
  if (failed && !IsMissing(failed)) *error = failed;
  for (const std::filesystem::path& entry : entries) RemoveExcept(entry, kept, error);
  // Only if nothing is left: what is kept may be made just now.
  std::filesystem::remove(path, failed);
}

}  // namespace

absl::StatusOr<std::string> FolderCheckpointStore::PathOf(const std::string& name) const {
  if (absl::Status s = CheckObjectName(name); !s.ok()) return s;
  const std::string path = JoinPath(root_, name);
  const std::string root = RealPath(root_);
  if (!IsBeneath(RealPath(path), root)) {
    return absl::PermissionDeniedError(
        absl::StrCat("'", path, "' leads out of ", root_, " through a symbolic link"));
  }
  return path;
}

absl::StatusOr<std::string> FolderCheckpointStore::MakeFolderOf(const std::string& name) {
  absl::StatusOr<std::string> path = PathOf(name);
  if (!path.ok()) return path.status();
  const std::string folder = std::filesystem::path(*path).parent_path().string();
  if (absl::Status s = CreateDurableDirectories(files_, folder); !s.ok()) return s;
  return path;
}

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> FolderCheckpointStore::Put(
    const std::string& name) {
  const absl::StatusOr<std::string> path = MakeFolderOf(name);
  if (!path.ok()) return path.status();
  return AtomicFile::Create(files_, *path);
}

absl::Status FolderCheckpointStore::PutIfAbsent(const std::string& name,
                                                const std::string& content) {
  const absl::StatusOr<std::string> path = MakeFolderOf(name);
  if (!path.ok()) return path.status();
  const absl::StatusOr<std::string> writer = RandomId();
  absl::Status status = writer.status();
  if (status.ok()) {
    const absl::StatusOr<std::unique_ptr<AtomicFile>> file =
        AtomicFile::Create(files_, *path, *writer);
    status = file.status();
    if (status.ok()) {
      status = (*file)->Append(content.data(), static_cast<int64_t>(content.size()));
    }
    if (status.ok()) status = (*file)->CommitIfAbsent();
  }
  if (!absl::IsAlreadyExists(status)) return status;
  const absl::StatusOr<std::string> there =
      ReadWholeFile(files_, *path, static_cast<int64_t>(content.size()) + 1);
  return there.ok() && *there == content ? absl::OkStatus() : status;
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FolderCheckpointStore::Open(const std::string& name) {
  const absl::StatusOr<std::string> path = PathOf(name);
  return path.ok() ? files_.Open(*path) : path.status();
}

absl::StatusOr<std::vector<ObjectReader::Object>> FolderCheckpointStore::List(
    const std::string& folder) {
  absl::StatusOr<std::string> path = root_;
  if (!folder.empty()) path = PathOf(folder);
  if (!path.ok()) return path.status();
  // A folder that is removed meanwhile ends the iterator: what comes after it would be missing.
  std::error_code error;
  for (int tries = 0; tries < kListTries; ++tries) {
    absl::StatusOr<std::vector<Object>> objects = ListOnce(*path, &error);
    if (objects.ok() || !IsMissing(error)) return objects;
  }
  return CannotList(*path, error);
}

absl::StatusOr<std::vector<ObjectReader::Object>> FolderCheckpointStore::ListOnce(
    const std::string& path, std::error_code* reason) const {
  std::vector<Object> objects;
  std::error_code& error = *reason;
  std::filesystem::recursive_directory_iterator entry(path, error);
  if (IsMissing(error)) return objects;
  if (error) return CannotList(path, error);
  const std::filesystem::recursive_directory_iterator end;
  while (entry != end) {
    // What is removed meanwhile is left out.
    std::error_code gone;
    if (entry->is_regular_file(gone) &&
        !absl::EndsWith(entry->path().string(), kIncompleteSuffix)) {
      const auto bytes = static_cast<int64_t>(entry->file_size(gone));
      if (!gone) {
        objects.push_back({entry->path().lexically_relative(root_).string(), bytes});
      }
    }
    entry.increment(error);
    if (error) return CannotList(path, error);
  }
  std::sort(objects.begin(), objects.end(),
            [](const Object& a, const Object& b) { return a.name < b.name; });
  return objects;
}

absl::Status FolderCheckpointStore::DeleteExcept(const std::string& name,
                                                 const std::vector<std::string>& keep) {
  const absl::StatusOr<std::string> path = PathOf(name);
  if (!path.ok()) return path.status();
  std::set<std::string> kept;
  for (const std::string& each : keep) {
    const absl::StatusOr<std::string> at = PathOf(each);
    if (!at.ok()) return at.status();
    kept.insert(*at);
  }
  std::error_code error;
  if (kept.empty()) {
    std::filesystem::remove_all(*path, error);
    std::error_code ignored;
    std::filesystem::remove(*path + kIncompleteSuffix, ignored);
  } else {
    RemoveExcept(*path, kept, &error);
  }
  if (!error || IsMissing(error)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot remove '", *path, "': ", error.message()));
}

std::string FolderCheckpointStore::NameOf(const std::string& path) const {
  return std::filesystem::path(path).lexically_relative(root_).string();
}

}  // namespace espalier
