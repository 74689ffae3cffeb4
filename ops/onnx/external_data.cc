#include "ops/onnx/external_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier::onnx_import {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status Bad(const std::string& location, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("keeps its data in the file '", location, "', ", why));
}

// Opens the path component by component, so that nothing can be swapped between check and use.
absl::StatusOr<Descriptor> Open(const std::string& folder, const std::string& location) {
  Descriptor at(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return Bad(location, absl::StrCat("whose folder: ", std::strerror(errno)));
  const std::vector<std::string> parts = absl::StrSplit(location, '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty() || parts[i] == "." || parts[i] == ".." ||
        parts[i].find('\0') != std::string::npos) {
      return Bad(location,
                 "which is no plain relative path; expected one beneath the model's folder, "
                 "without '.', '..' or empty parts");
    }
    const bool last = i + 1 == parts.size();
    // O_NONBLOCK: a pipe must not block.
    const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (last ? O_NONBLOCK : O_DIRECTORY);
    Descriptor next(openat(at.get(), parts[i].c_str(), flags));
    if (next.get() < 0) {
      const bool link = errno == ELOOP || errno == ENOTDIR;
      return Bad(location, link ? "which leads through a symbolic link or something else that is "
                                  "no folder; expected a plain file beneath the model's folder"
                                : absl::StrCat("which cannot be read: ", std::strerror(errno)));
    }
    at = std::move(next);
  }
  struct stat info;
  if (fstat(at.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Bad(location, "which is no plain file");
  }
  return at;
}

}  // namespace

absl::StatusOr<ExternalData> FindExternalData(const onnx::TensorProto& tensor,
                                              const std::string& folder, int64_t size) {
  ExternalData data;
  data.folder = folder;
  int64_t length = size;
  for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
    int64_t* number = entry.key() == "offset"   ? &data.offset
                      : entry.key() == "length" ? &length
                                                : nullptr;
    if (entry.key() == "location") data.location = entry.value();
    if (number != nullptr && (!absl::SimpleAtoi(entry.value(), number) || *number < 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has the ", entry.key(), " '", entry.value(), "' in its external data"));
    }
  }
  const std::string& location = data.location;
  if (location.empty()) return absl::InvalidArgumentError("names no file for its external data");
  if (folder.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("keeps its data in another file, '", location,
                     "', and only the ONNX file was given; give the folder of both, or embed the "
                     "weights"));
  }
  if (length != size) {
    return Bad(location, absl::StrCat("where it has ", length, " bytes; its shape needs ", size));
  }
  absl::StatusOr<Descriptor> file = Open(folder, location);
  if (!file.ok()) return file.status();
  struct stat info;
  if (fstat(file->get(), &info) != 0 || data.offset > info.st_size ||
      size > info.st_size - data.offset) {
    return Bad(location, absl::StrCat("which has ", info.st_size, " bytes; ", size, " at offset ",
                                      data.offset, " are needed"));
  }
  return data;
}

absl::Status ReadExternalData(const ExternalData& data, int64_t offset, int64_t bytes, char* out) {
  absl::StatusOr<Descriptor> file = Open(data.folder, data.location);
  if (!file.ok()) return file.status();
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pread(file->get(), out + done, bytes - done, data.offset + offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Bad(data.location, absl::StrCat("which cannot be read: ",
                                             n == 0 ? "it became shorter" : std::strerror(errno)));
    }
    done += n;
  }
  return absl::OkStatus();
}

}  // namespace espalier::onnx_import
