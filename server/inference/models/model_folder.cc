#include "server/inference/models/model_folder.h"

#include <cstdint>
#include <utility>

namespace espalier {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

}  // namespace

absl::StatusOr<SentenceTransformersFiles> ReadSentenceTransformersFiles(FileSystem& system,
                                                                        const std::string& folder) {
  SentenceTransformersFiles files;
  for (const auto& [name, text] : {std::pair{"modules.json", &files.modules_json},
                                   {"1_Pooling/config.json", &files.pooling_config_json}}) {
    absl::StatusOr<std::string> read =
        ReadWholeFile(system, JoinPath(folder, name), kMaxConfigBytes);
    if (absl::IsNotFound(read.status())) continue;
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  return files;
}

}  // namespace espalier
