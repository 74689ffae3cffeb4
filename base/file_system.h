// File system interface, so that tests can inject failures such as a full disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Errors name the path and the system's message; a full disk is ResourceExhausted.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(const void* data, int64_t bytes) = 0;
  virtual absl::Status Sync() = 0;   // durable once this returns
  virtual absl::Status Close() = 0;  // no calls may follow
};

// Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  // Returns OutOfRange if the file is shorter.
  virtual absl::Status Read(int64_t offset, int64_t bytes, void* out) const = 0;
  // Returns FailedPrecondition if the file has been modified or truncated since it was opened.
  // Renaming or removing it does not affect open files.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
};

// A byte range of a file.
struct FileRange {
  std::shared_ptr<const ReadableFile> file;
  int64_t offset = 0, bytes = 0;
};

// Reads the first `bytes` bytes of the concatenated ranges.
absl::Status ReadRanges(const std::vector<FileRange>& ranges, int64_t bytes, void* out);

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Makes renames and creations in the directory durable. Unimplemented if the file system does not
  // support it.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Returns sorted names without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
};

std::unique_ptr<FileSystem> NewPosixFileSystem();

// Where a file is once all symbolic links are followed, and which file it is.
struct FilePlace {
  std::string path;
  uint64_t device = 0, inode = 0;
};

// Opens a regular file if `check` accepts its place. The path is looked up once, so links
// that change meanwhile cannot make it open another file than the one that was checked. Nothing is
// opened before the check, as opening a device may already do something.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIf(
    const std::string& path, const std::function<absl::Status(const FilePlace&)>& check);

// Creates the directory and its missing parents, and makes all their names durable. Works from the
// top down and syncs each name before it creates anything below: a killed or concurrent call
// therefore leaves at most the lowest existing directory above `path` unsynced, which is synced,
// too. Assumes that higher existing names are durable: other code that creates directories there
// must ensure it.
absl::Status CreateDurableDirectories(FileSystem& files, const std::string& path);
// Writes a file atomically and durably: temporary name, fsync, rename, fsync of the directory.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 const std::string& content);
// Returns ResourceExhausted if the file is larger than `limit`.
absl::StatusOr<std::string> ReadWholeFile(FileSystem& files, const std::string& path,
                                          int64_t limit);
// The same of an open file.
absl::StatusOr<std::string> ReadWhole(const ReadableFile& file, int64_t limit);

std::string JoinPath(const std::string& directory, const std::string& name);
// Returns the absolute path without "..", with the links followed in the part that exists.
std::string RealPath(const std::string& path);
// Whether `path` is in `folder` or a folder of it; both as RealPath returns them.
bool IsBeneath(const std::string& path, const std::string& folder);

}  // namespace espalier
