#include "server/jobs/checkpoint_folders.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "storage/manifest.h"

namespace espalier {
namespace {

void RemoveAllBut(const std::filesystem::path& folder, const std::filesystem::path& name) {
  std::error_code failed;
  std::vector<std::filesystem::path> others;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().filename() != name) others.push_back(it->path());
  }
  for (const std::filesystem::path& other : others) std::filesystem::remove_all(other, failed);
}

}  // namespace

std::string CheckpointWithinJob(const std::string& directory) {
  // Normalized, as a worker could report a path with "..".
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return (path.parent_path().filename() / path.filename()).string();
}

void RemoveCheckpoints(const std::string& job_folder, const std::string& keep) {
  std::error_code failed;
  const std::filesystem::path folder(job_folder), kept(keep);
  if (keep.empty()) {
    std::filesystem::remove_all(folder, failed);
    return;
  }
  if (!std::filesystem::exists(folder / kept / kManifestFile, failed)) {
    spdlog::warn("the checkpoint {} is not there; nothing in {} is removed", keep, job_folder);
    return;
  }
  RemoveAllBut(folder, kept.parent_path());
  RemoveAllBut(folder / kept.parent_path(), kept.filename());
}

}  // namespace espalier
