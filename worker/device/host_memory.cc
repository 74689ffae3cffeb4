#include "worker/device/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

class Mapping : public HostMemory {
 public:
  using HostMemory::HostMemory;
  ~Mapping() override {
    if (bytes() > 0) munmap(data(), static_cast<size_t>(bytes()));
  }
};

absl::Status Refused(int64_t bytes, const std::string& folder, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no ", bytes, " bytes for swapped tensors",
      folder.empty() ? "" : absl::StrCat(" in ", folder), ": ", std::strerror(error),
      folder.empty() ? "; swap to a folder with --swap-dir, or limit memory.host_bytes"
                     : "; give --swap-dir another folder, or limit memory.host_bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostMemory>> MapHostMemory(int64_t bytes,
                                                          const std::string& folder) {
  if (bytes <= 0) return std::make_unique<Mapping>(nullptr, 0);
  int file = -1;
  if (!folder.empty()) {
    file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return Refused(bytes, folder, errno);
    // Reserves the disk space now: a later write into the mapping would raise SIGBUS.
    if (const int error = posix_fallocate(file, 0, bytes); error != 0) {
      close(file);
      return Refused(bytes, folder, error);
    }
  }
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  if (data == MAP_FAILED) return Refused(bytes, folder, error);
  return std::make_unique<Mapping>(static_cast<char*>(data), bytes);
}

}  // namespace espalier
