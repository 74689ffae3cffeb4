#include "server/storage/block_hashes.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "base/sha256.h"

namespace espalier {

absl::StatusOr<std::vector<std::string>> BlockHashes::Of(const std::string& name) {
  std::shared_ptr<File> file;
  {
    absl::MutexLock lock(&mutex_);
    if (files_.size() >= kMostFiles && files_.count(name) == 0) files_.clear();
    std::shared_ptr<File>& entry = files_[name];
    if (entry == nullptr) entry = std::make_shared<File>();
    file = entry;
  }
  absl::MutexLock lock(&file->mutex);
  if (file->known) return file->blocks;
  const absl::StatusOr<std::unique_ptr<ReadableFile>> open = store_.Open(name);
  if (!open.ok()) return open.status();
  std::vector<std::string> blocks;
  std::string block;
  for (int64_t at = 0; at < (*open)->size(); at += kBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kBlockBytes, (*open)->size() - at)));
    const absl::Status status = (*open)->Read(at, static_cast<int64_t>(block.size()), block.data());
    if (!status.ok()) return status;
    blocks.push_back(absl::HexStringToBytes(Sha256Hex(block)));
  }
  file->blocks = blocks;
  file->known = true;
  return blocks;
}

}  // namespace espalier
