#include "server/data_folder_mode.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

namespace espalier {

void CloseToOthers(const std::string& folder) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return;
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    spdlog::warn("data_dir {} belongs to user {}, who can read and change what is in it", folder,
                 info.st_uid);
  }
  if (info.st_uid != geteuid() || (info.st_mode & 077) == 0) return;
  if (chmod(folder.c_str(), 0700) == 0) {
    spdlog::info("data_dir {} was open to other users (mode {:04o}); now it is not", folder,
                 info.st_mode & 07777);
  } else {
    spdlog::warn("data_dir {} is open to other users (mode {:04o}): chmod 700 it", folder,
                 info.st_mode & 07777);
  }
}

}  // namespace espalier
