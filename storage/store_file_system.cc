#include "storage/store_file_system.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status ReadOnly(const std::string& path) {
  return absl::PermissionDeniedError(absl::StrCat("'", path, "' is in a store that is only read"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> StoreFileSystem::Create(const std::string& path) {
  return ReadOnly(path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> StoreFileSystem::Open(const std::string& path) {
  return store_.Open(path);
}

absl::Status StoreFileSystem::Rename(const std::string& from, const std::string&) {
  return ReadOnly(from);
}

absl::Status StoreFileSystem::Remove(const std::string& path) { return ReadOnly(path); }

absl::Status StoreFileSystem::CreateDirectories(const std::string& path) { return ReadOnly(path); }

absl::Status StoreFileSystem::SyncDirectory(const std::string& path) { return ReadOnly(path); }

absl::StatusOr<std::vector<std::string>> StoreFileSystem::List(const std::string& path) {
  absl::StatusOr<std::vector<ObjectReader::Object>> objects = store_.List(path);
  if (!objects.ok()) return objects.status();
  if (objects->empty())
    return absl::NotFoundError(absl::StrCat("there is nothing in '", path, "'"));
  const size_t skip = path.empty() ? 0 : path.size() + 1;
  std::set<std::string> names;
  for (const ObjectReader::Object& object : *objects) {
    const size_t end = object.name.find('/', skip);
    names.insert(object.name.substr(skip, end == std::string::npos ? end : end - skip));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace espalier
