#include "storage/dataset_roots.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::StatusOr<std::unique_ptr<DatasetRoots>> DatasetRoots::Create(
    const std::vector<std::string>& roots, s3::S3World world) {
  std::vector<std::string> folders;
  std::vector<s3::S3Url> prefixes;
  for (const std::string& root : roots) {
    if (absl::StartsWith(root, s3::kScheme)) {
      absl::StatusOr<s3::S3Url> prefix = s3::ParseS3Url(root);
      if (!prefix.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--dataset-root=", root, ": ", std::string(prefix.status().message())));
      }
      prefixes.push_back(*std::move(prefix));
      continue;
    }
    folders.push_back(root);
    std::error_code error;
    const char* problem = nullptr;
    if (root.empty() || root[0] != '/') {
      problem = "it must be an absolute path";
    } else if (!fs::is_directory(root, error)) {
      problem = "there is no such folder";
    } else if (RealPath(root) == "/") {
      problem = "it holds every file of this host; name the folder of the datasets";
    }
    if (problem == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("--dataset-root=", root, ": ", problem));
  }
  return std::unique_ptr<DatasetRoots>(
      new DatasetRoots(std::move(folders), std::move(prefixes), std::move(world)));
}

void DatasetRoots::Exclude(const std::string& path) {
  if (path.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (std::find(excluded_.begin(), excluded_.end(), path) == excluded_.end()) {
    excluded_.push_back(path);
  }
}

absl::Status DatasetRoots::Refused() const {
  if (roots_.empty()) {
    return absl::PermissionDeniedError(
        "files of this host are not opened for clients; upload the file, or have espalierd and its "
        "workers started with --dataset-root=FOLDER");
  }
  return absl::PermissionDeniedError(
      absl::StrCat("it is no file that may be read beneath a folder of --dataset-root (",
                   absl::StrJoin(roots_, ", "), "); move it there, or upload it"));
}

absl::Status DatasetRoots::RefusedObject() const {
  return absl::PermissionDeniedError(absl::StrCat(
      "objects of S3 are opened for clients only beneath the prefixes of --dataset-root (",
      prefixes_.empty() ? "it has none"
                        : absl::StrJoin(prefixes_, ", ",
                                        [](std::string* out, const s3::S3Url& prefix) {
                                          out->append(prefix.ToString());
                                        }),
      "); have espalierd and its workers started with --dataset-root=s3://BUCKET/PREFIX, or upload "
      "the file"));
}

absl::StatusOr<std::unique_ptr<s3::S3File>> DatasetRoots::OpenObject(const std::string& url) const {
  const absl::StatusOr<s3::S3Url> object = s3::ParseS3Url(url);
  if (!object.ok()) return object.status();
  const bool allowed =
      std::any_of(prefixes_.begin(), prefixes_.end(), [&](const s3::S3Url& prefix) {
        return object->bucket == prefix.bucket && !object->key.empty() &&
               (prefix.key.empty() || IsBeneath(object->key, prefix.key));
      });
  if (!allowed) return RefusedObject();
  std::shared_ptr<s3::S3Client> client;
  {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<s3::S3Client>& kept = clients_[object->bucket];
    if (kept == nullptr) kept = std::make_shared<s3::S3Client>(world_, object->bucket);
    client = kept;
  }
  return s3::S3File::Open(std::move(client), object->key);
}

bool DatasetRoots::IsExcluded(const FilePlace& place) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(excluded_.begin(), excluded_.end(), [&](const std::string& path) {
    struct stat info;
    const bool same = stat(path.c_str(), &info) == 0 && info.st_dev == place.device &&
                      info.st_ino == place.inode;  // also by another name (a hard link)
    return same || IsBeneath(place.path, RealPath(path));
  });
}

absl::StatusOr<std::unique_ptr<ReadableFile>> DatasetRoots::Open(const std::string& path) const {
  if (absl::StartsWith(path, s3::kScheme)) return OpenObject(path);
  // By name alone first: what is outside must not be told from what does not exist.
  const std::string named = fs::path(path).lexically_normal().string();
  std::vector<std::string> real_roots;
  bool beneath = false;
  for (const std::string& root : roots_) {
    real_roots.push_back(RealPath(root));
    beneath = beneath || IsBeneath(named, real_roots.back()) ||
              IsBeneath(named, (fs::path(root) / "").lexically_normal().parent_path().string());
  }
  if (!beneath) return Refused();
  return OpenIf(path, [&](const FilePlace& place) {
    const bool allowed =
        std::any_of(real_roots.begin(), real_roots.end(),
                    [&](const std::string& root) { return IsBeneath(place.path, root); });
    return allowed && !IsExcluded(place) ? absl::OkStatus() : Refused();
  });
}

}  // namespace espalier
