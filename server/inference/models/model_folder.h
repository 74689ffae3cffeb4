// The texts of a model folder's small files. Missing files give empty texts.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "server/inference/models/sentence_embeddings.h"

namespace espalier {

absl::StatusOr<SentenceTransformersFiles> ReadSentenceTransformersFiles(FileSystem& system,
                                                                        const std::string& folder);

}  // namespace espalier
