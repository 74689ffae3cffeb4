#include "server/artifacts/store_file.h"

#include <memory>

namespace espalier {
namespace {

constexpr size_t kStoreChunk = 1 << 20;

}  // namespace

absl::StatusOr<v1::Artifact> StoreFile(ArtifactStore* artifacts, const NewArtifact& what,
                                       bool replace, const std::string& file,
                                       absl::string_view content) {
  absl::StatusOr<std::unique_ptr<ArtifactUpload>> upload = artifacts->Begin(what, replace);
  if (!upload.ok()) return upload.status();
  absl::Status status = (*upload)->StartFile(file);
  for (size_t at = 0; at < content.size() && status.ok(); at += kStoreChunk) {
    status = (*upload)->Append(std::string(content.substr(at, kStoreChunk)));
  }
  if (!status.ok()) return status;
  return (*upload)->Commit();
}

}  // namespace espalier
