#include "client/cli/launch/whole_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status WriteWholeFile(const std::string& path, const std::string& text, bool replace) {
  const auto cannot = [&](const std::string& what, int number) {
    return absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", what, ": ", std::strerror(number)));
  };
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  if (error) return cannot(folder.string(), error.value());
  std::string next = path + ".XXXXXX";
  const int file = mkostemp(next.data(), O_CLOEXEC);  // of mode 0600
  if (file < 0) return cannot(next, errno);
  const absl::Cleanup remove = [&] { unlink(next.c_str()); };
  size_t done = 0;
  int failed = 0;
  while (done < text.size() && failed == 0) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n > 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) failed = errno;
  }
  // A power cut must not leave an empty file: it says what to stop.
  if (failed == 0 && fsync(file) != 0) failed = errno;
  if (close(file) != 0 && failed == 0) failed = errno;
  if (failed != 0) return cannot(next, failed);
  const int made = replace ? rename(next.c_str(), path.c_str()) : link(next.c_str(), path.c_str());
  if (made != 0 && !replace && errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  return made == 0 ? absl::OkStatus() : cannot("as " + next, errno);
}

}  // namespace espalier
