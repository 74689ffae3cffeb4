#include "base/net/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {

absl::Status CheckPrivateFile(const std::string& flag, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();
  const bool ours = info.st_uid == geteuid() || info.st_uid == 0;
  const mode_t open_to_others = info.st_mode & (info.st_uid == 0 ? 037 : 077);
  if (ours && open_to_others == 0) return absl::OkStatus();
  if (!ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", path, " belongs to user ", info.st_uid,
                     ", who can read and change the keys: give it to this user (chown ", geteuid(),
                     ") or to root"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, "=", path, " is open to other users (mode ",
      absl::StrFormat("%04o", info.st_mode & 07777), "): chmod 600 ", path,
      "; for a secret of Kubernetes, set defaultMode: 0400; then make new keys if others may have "
      "read these"));
}

}  // namespace espalier
