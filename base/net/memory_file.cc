#include "base/net/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat("a file in memory (", what, "): ", strerror(errno)));
}

absl::StatusOr<int> Filled(absl::string_view contents) {
  const int fd = memfd_create("espalier-tls", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  while (!contents.empty()) {
    const ssize_t n = write(fd, contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      absl::Status status = Failed("write");
      close(fd);
      return status;
    }
    contents.remove_prefix(static_cast<size_t>(n));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryFile>> MemoryFile::Make(absl::string_view contents) {
  absl::StatusOr<int> fd = Filled(contents);
  if (!fd.ok()) return fd.status();
  return std::unique_ptr<MemoryFile>(new MemoryFile(*fd));
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

absl::Status MemoryFile::Replace(absl::string_view contents) {
  absl::StatusOr<int> fd = Filled(contents);
  if (!fd.ok()) return fd.status();
  const absl::Status status = dup3(*fd, fd_, O_CLOEXEC) < 0 ? Failed("dup3") : absl::OkStatus();
  close(*fd);
  return status;
}

}  // namespace espalier
