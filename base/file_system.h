// The files that checkpoints need, behind an interface so that tests can fill the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Every error names the path and what the system said; a full disk is ResourceExhausted.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(const void* data, int64_t bytes) = 0;
  virtual absl::Status Sync() = 0;   // durable once this returns
  virtual absl::Status Close() = 0;  // further calls are programmer errors
};

// Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  // OutOfRange if the file ends before.
  virtual absl::Status Read(int64_t offset, int64_t bytes, void* out) const = 0;
  // FailedPrecondition if the file has been written to or cut since it was opened. Being renamed or
  // removed changes nothing for whoever has it open.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
};

// A stretch of a file.
struct FileRange {
  std::shared_ptr<const ReadableFile> file;
  int64_t offset = 0, bytes = 0;
};

// The stretches one behind the other; their first `bytes` bytes.
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
  // Makes renames and creations in the directory durable. Unimplemented where the file system has
  // no such thing.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Names, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
};

std::unique_ptr<FileSystem> NewPosixFileSystem();

// Makes the directory and those above it that are missing, and all their names durable. From the
// top down, each name synced before anything is made below it: so whatever was killed here before,
// or ranges beside this, has left in doubt at most the name of the lowest directory that exists above
// `path`, and that is synced too. A name further up that is there is taken to be durable, which is
// for others to see to who make directories there.
absl::Status CreateDurableDirectories(FileSystem& files, const std::string& path);
// Writes a whole file so that it is either there, complete and durable, or not at all: a temporary
// name, fsync, rename, fsync of the directory.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 const std::string& content);
// ResourceExhausted if the file is larger than `limit`.
absl::StatusOr<std::string> ReadWholeFile(FileSystem& files, const std::string& path,
                                          int64_t limit);

std::string JoinPath(const std::string& directory, const std::string& name);

}  // namespace espalier
