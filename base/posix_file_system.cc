#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"

namespace espalier {
namespace {

absl::Status ErrnoStatus(const char* what, const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot ", what, " '", path, "': ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(absl::StrCat(message, "; free some space there"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Append(const void* data, int64_t bytes) override {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written =
          write(fd_, next, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 26)));
      if (written < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus("write", path_, errno);
      }
      next += written;
      bytes -= written;
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return fsync(fd_) == 0 ? absl::OkStatus() : ErrnoStatus("sync", path_, errno);
  }
  absl::Status Close() override {
    const int closed = close(fd_);
    fd_ = -1;
    return closed == 0 ? absl::OkStatus() : ErrnoStatus("close", path_, errno);
  }

 private:
  int fd_;
  const std::string path_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(int fd, const struct stat& info, std::string path)
      : fd_(fd), size_(info.st_size), written_(info.st_mtim), path_(std::move(path)) {}
  ~PosixReadableFile() override { close(fd_); }

  int64_t size() const override { return size_; }
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    char* next = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got =
          pread(fd_, next, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 26)), offset);
      if (got < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus("read", path_, errno);
      }
      if (got == 0) {
        return absl::OutOfRangeError(absl::StrCat("'", path_, "' ends before byte ", offset));
      }
      next += got;
      offset += got;
      bytes -= got;
    }
    return absl::OkStatus();
  }
  absl::Status CheckUnchanged() const override {
    struct stat now;
    if (fstat(fd_, &now) != 0) return ErrnoStatus("look at", path_, errno);
    if (now.st_size == size_ && now.st_mtim.tv_sec == written_.tv_sec &&
        now.st_mtim.tv_nsec == written_.tv_nsec) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat("'", path_,
                                                      "' was modified while in use (it had ", size_,
                                                      " bytes and has ", now.st_size, ")"));
  }

 private:
  const int fd_;
  const int64_t size_;
  const struct timespec written_;
  const std::string path_;
};

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoStatus("create", path, errno);
    return std::make_unique<PosixWritableFile>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // O_NONBLOCK: opening a FIFO must not block.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ErrnoStatus("open", path, errno);
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no regular file"));
    }
    return std::make_unique<PosixReadableFile>(fd, info, path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                                 : ErrnoStatus("rename", from, errno);
  }
  absl::Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus("remove", path, errno);
  }
  absl::Status CreateDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    return error ? ErrnoStatus("make the directory", path, error.value()) : absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus("open", path, errno);
    const int synced = fsync(fd), error = errno;
    close(fd);
    if (synced != 0 && error == EINVAL) {
      return absl::UnimplementedError(absl::StrCat(
          "the file system of '", path,
          "' cannot sync directories; keep checkpoints and artifacts on one that can"));
    }
    return synced == 0 ? absl::OkStatus() : ErrnoStatus("sync", path, error);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return ErrnoStatus("list", path, errno);
    std::vector<std::string> names;
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(directory);
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

std::unique_ptr<FileSystem> NewPosixFileSystem() { return std::make_unique<PosixFileSystem>(); }

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIf(
    const std::string& path, const std::function<absl::Status(const FilePlace&)>& check) {
  const int handle = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (handle < 0) return ErrnoStatus("open", path, errno);
  const absl::Cleanup close_handle = [handle] { close(handle); };
  struct stat info;
  if (fstat(handle, &info) != 0) return ErrnoStatus("look at", path, errno);
  const std::string entry = absl::StrCat("/proc/self/fd/", handle);
  std::error_code error;
  const FilePlace place = {std::filesystem::read_symlink(entry, error).string(), info.st_dev,
                           info.st_ino};
  if (error) return ErrnoStatus("find the place of", path, error.value());
  if (absl::Status allowed = check(place); !allowed.ok()) return allowed;
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no regular file"));
  }
  const int fd = open(entry.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("open", path, errno);
  return std::make_unique<PosixReadableFile>(fd, info, path);
}

std::string JoinPath(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

std::string RealPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (error) return path;
  return (real.has_filename() ? real : real.parent_path()).string();  // without a slash at the end
}

bool IsBeneath(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.compare(0, folder.size(), folder) == 0 &&
         path[folder.size()] == '/';
}

absl::Status ReadRanges(const std::vector<FileRange>& ranges, int64_t bytes, void* out) {
  char* next = static_cast<char*>(out);
  for (const FileRange& run : ranges) {
    const int64_t here = std::min(run.bytes, bytes);
    if (here == 0) break;
    absl::Status status = run.file->CheckUnchanged();
    if (status.ok()) status = run.file->Read(run.offset, here, next);
    if (!status.ok()) return status;
    next += here;
    bytes -= here;
  }
  return bytes == 0 ? absl::OkStatus()
                    : absl::OutOfRangeError(absl::StrCat(bytes, " bytes more than there are"));
}

absl::Status CreateDurableDirectories(FileSystem& files, const std::string& path) {
  const auto parent_of = [](std::filesystem::path p) -> std::filesystem::path {
    if (!p.has_filename()) p = p.parent_path();  // "a/b/"
    return p.has_parent_path() ? p.parent_path() : ".";
  };
  std::vector<std::string> made = {path};
  std::filesystem::path found = parent_of(path);
  const auto has_parent = [&] { return found != parent_of(found); };  // not "." or "/"
  for (; has_parent() && absl::IsNotFound(files.List(found.string()).status());
       found = parent_of(found)) {
    made.push_back(found.string());
  }
  if (has_parent()) {
    // Its creator may have been killed before syncing it. Directories that we cannot open, or
    // read-only ones, were made by others.
    absl::Status s = files.SyncDirectory(parent_of(found).string());
    if (!s.ok() && !absl::IsPermissionDenied(s) && !absl::IsUnimplemented(s)) return s;
  }
  for (auto it = made.rbegin(); it != made.rend(); ++it) {
    if (absl::Status s = files.CreateDirectories(*it); !s.ok()) return s;
    if (absl::Status s = files.SyncDirectory(parent_of(*it).string()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 const std::string& content) {
  const std::string temporary = path + ".tmp";
  auto write = [&]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<WritableFile>> file = files.Create(temporary);
    if (!file.ok()) return file.status();
    absl::Status s = (*file)->Append(content.data(), static_cast<int64_t>(content.size()));
    if (s.ok()) s = (*file)->Sync();
    if (s.ok()) s = (*file)->Close();
    if (s.ok()) s = files.Rename(temporary, path);
    return s;
  };
  if (absl::Status s = write(); !s.ok()) {
    files.Remove(temporary).IgnoreError();
    return s;
  }
  const size_t slash = path.rfind('/');
  return files.SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

absl::StatusOr<std::string> ReadWholeFile(FileSystem& files, const std::string& path,
                                          int64_t limit) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::string> content = ReadWhole(**file, limit);
  if (!absl::IsResourceExhausted(content.status())) return content;
  return absl::ResourceExhaustedError(absl::StrCat("'", path, "' ", content.status().message()));
}

absl::StatusOr<std::string> ReadWhole(const ReadableFile& file, int64_t limit) {
  if (file.size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("has ", file.size(), " bytes; at most ", limit));
  }
  std::string content(static_cast<size_t>(file.size()), '\0');
  absl::Status s = file.Read(0, file.size(), content.data());
  if (!s.ok()) return s;
  return content;
}

}  // namespace espalier
