#include "worker/storage/host_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "worker/storage/own_folder.h"

namespace espalier {
namespace {

constexpr char kUnfinished[] = ".tmp";
// A process that has written nothing for so long is gone.
constexpr time_t kUnfinishedSeconds = 3600;
constexpr size_t kHashLength = 64;
constexpr size_t kPiece = size_t{1} << 26;

struct CachedFile {
  timespec used;
  std::string name;
  int64_t bytes = 0;
};

bool IsHash(absl::string_view text) {
  return text.size() == kHashLength &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool WriteAll(int file, const void* data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t written =
        write(file, static_cast<const char*>(data) + at, std::min(bytes - at, kPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int file, std::string* content) {
  for (size_t at = 0; at < content->size();) {
    const ssize_t got = read(file, content->data() + at, std::min(content->size() - at, kPiece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostCache>> HostCache::Open(const std::string& parent,
                                                           int64_t max_bytes) {
  if (max_bytes < 0) return absl::InvalidArgumentError("--cache-bytes: 0 or more");
  const std::string path =
      JoinPath(CacheParent(parent), absl::StrCat("espalier-cache-", geteuid()));
  absl::StatusOr<int> folder = OpenOwnFolder(path);
  if (!folder.ok()) return folder.status();
  return std::unique_ptr<HostCache>(new HostCache(path, *folder, max_bytes));
}

HostCache::~HostCache() { close(folder_); }

std::optional<std::string> HostCache::Read(const std::string& sha256, int64_t bytes) {
  if (!IsHash(sha256)) return std::nullopt;
  const int file = openat(folder_, sha256.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  const absl::Cleanup close_file = [file] {
    if (file >= 0) close(file);
  };
  struct stat info;
  std::string content;
  bool good =
      file >= 0 && fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == bytes;
  if (good) {
    content.resize(static_cast<size_t>(bytes));
    good = ReadAll(file, &content) && Sha256Hex(content) == sha256;
  }
  if (!good) {
    spdlog::warn("{}/{} is not what was downloaded; it is removed and downloaded again", path_,
                 sha256);
    unlinkat(folder_, sha256.c_str(), 0);
    return std::nullopt;
  }
  futimens(file, nullptr);  // used just now
  return content;
}

std::optional<std::string> HostCache::ReadVersion(const std::string& version, int64_t bytes) {
  const std::string name = Sha256Hex(version);
  const int file = openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat info;
  std::string note(version.size() + 1 + kHashLength, '\0');
  const bool good = fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
                    info.st_size == static_cast<off_t>(note.size()) && ReadAll(file, &note);
  if (!good || !absl::StartsWith(note, version + "\n")) return std::nullopt;
  futimens(file, nullptr);
  return Read(note.substr(version.size() + 1), bytes);
}

void HostCache::WriteVersion(const std::string& version, const std::string& content) {
  const std::string sha256 = Sha256Hex(content);
  Write(sha256, content);
  Write(Sha256Hex(version), absl::StrCat(version, "\n", sha256));
}

void HostCache::MakeRoom(int64_t bytes) {
  const int listed = dup(folder_);
  DIR* const folder = listed < 0 ? nullptr : fdopendir(listed);
  if (folder == nullptr) {
    if (listed >= 0) close(listed);
    return;
  }
  rewinddir(folder);  // the position is shared with the other descriptor
  std::vector<CachedFile> files;
  int64_t total = bytes;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    struct stat info;
    if (!IsHash(absl::string_view(name).substr(0, kHashLength)) ||
        fstatat(folder_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (absl::EndsWith(name, kUnfinished)) {
      // Of a process that was killed, or one that still writes.
      if (time(nullptr) - info.st_mtime > kUnfinishedSeconds) unlinkat(folder_, name.c_str(), 0);
      continue;
    }
    files.push_back({info.st_mtim, name, info.st_size});
    total += info.st_size;
  }
  closedir(folder);
  std::sort(files.begin(), files.end(), [](const CachedFile& a, const CachedFile& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const CachedFile& file : files) {
    if (total <= max_bytes_) break;
    if (unlinkat(folder_, file.name.c_str(), 0) == 0) total -= file.bytes;
  }
}

absl::StatusOr<std::string> HostCache::Create(int* file) {
  const absl::StatusOr<std::string> random = RandomId();
  if (!random.ok()) return random.status();
  const std::string temporary = absl::StrCat(Sha256Hex(*random), kUnfinished);
  *file = openat(folder_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                 0600);
  if (*file < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot make a file"));
  return temporary;
}

absl::Status HostCache::Publish(const std::string& temporary, const std::string& name,
                                int64_t bytes) {
  absl::MutexLock lock(&writing_);
  flock(folder_, LOCK_EX);  // other workers of this host look for room, too
  const absl::Cleanup unlock = [this] { flock(folder_, LOCK_UN); };
  MakeRoom(bytes);
  if (renameat(folder_, temporary.c_str(), folder_, name.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlinkat(folder_, temporary.c_str(), 0);
  return absl::ErrnoToStatus(error, absl::StrCat(path_, ": cannot name a file"));
}

class HostCache::FileWriter : public HostCache::Writer {
 public:
  FileWriter(HostCache* cache, int file, std::string temporary)
      : cache_(*cache), file_(file), temporary_(std::move(temporary)) {}
  ~FileWriter() override {
    if (file_ < 0) return;
    close(file_);
    unlinkat(cache_.folder_, temporary_.c_str(), 0);
  }

  absl::Status Append(const void* data, int64_t bytes) override {
    if (bytes > cache_.max_bytes_ - bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          cache_.path_, ": more than --cache-bytes=", cache_.max_bytes_, " in one file"));
    }
    bytes_ += bytes;
    hash_.Add(data, bytes);
    // Not synced: a file that a crash has cut does not have its hash.
    if (WriteAll(file_, data, static_cast<size_t>(bytes))) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat(cache_.path_, ": cannot write"));
  }

  absl::StatusOr<std::string> Keep() override {
    const std::string name = hash_.Hex();
    const int file = std::exchange(file_, -1);
    if (close(file) != 0) {
      const int error = errno;
      unlinkat(cache_.folder_, temporary_.c_str(), 0);
      return absl::ErrnoToStatus(error, absl::StrCat(cache_.path_, ": cannot write"));
    }
    if (absl::Status s = cache_.Publish(temporary_, name, bytes_); !s.ok()) return s;
    return name;
  }

 private:
  HostCache& cache_;
  int file_;
  const std::string temporary_;
  Sha256 hash_;
  int64_t bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<HostCache::Writer>> HostCache::NewFile() {
  int file = -1;
  absl::StatusOr<std::string> temporary = Create(&file);
  if (!temporary.ok()) return temporary.status();
  return std::make_unique<FileWriter>(this, file, *std::move(temporary));
}

class HostCache::OpenedFile : public ReadableFile {
 public:
  OpenedFile(int file, int64_t size) : file_(file), size_(size) {}
  ~OpenedFile() override { close(file_); }
  int64_t size() const override { return size_; }
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    char* next = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = pread(file_, next, std::min(static_cast<size_t>(bytes), kPiece),
                                static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::ErrnoToStatus(errno, "cannot read a file of the cache");
      if (got == 0) return absl::OutOfRangeError("a file of the cache is shorter than it was");
      next += got;
      offset += got;
      bytes -= got;
    }
    return absl::OkStatus();
  }

 private:
  const int file_;
  const int64_t size_;
};

std::unique_ptr<ReadableFile> HostCache::OpenFile(const std::string& sha256) {
  if (!IsHash(sha256)) return nullptr;
  const int file = openat(folder_, sha256.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat info;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file);
    return nullptr;
  }
  futimens(file, nullptr);  // used just now
  return std::make_unique<OpenedFile>(file, info.st_size);
}

void HostCache::Remove(const std::string& sha256) {
  if (IsHash(sha256)) unlinkat(folder_, sha256.c_str(), 0);
}

void HostCache::Write(const std::string& sha256, const std::string& content) {
  const int64_t bytes = static_cast<int64_t>(content.size());
  if (!IsHash(sha256) || bytes > max_bytes_) return;
  int file = -1;
  absl::StatusOr<std::string> temporary = Create(&file);
  absl::Status status = temporary.status();
  if (status.ok()) {
    // Not synced: a file that a crash has cut does not have its hash.
    const bool written = WriteAll(file, content.data(), content.size());
    const int error = errno;
    if (close(file) == 0 && written) {
      status = Publish(*temporary, sha256, bytes);
    } else {
      unlinkat(folder_, temporary->c_str(), 0);
      status = absl::ErrnoToStatus(written ? errno : error, "cannot write");
    }
  }
  if (!status.ok()) {
    spdlog::warn("{}: {} bytes are not kept: {}", path_, bytes, std::string(status.message()));
  }
}

}  // namespace espalier
