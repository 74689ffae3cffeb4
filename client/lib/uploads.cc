// Uploads that are found again by their content.
#include <filesystem>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"

namespace espalier {
namespace {

// As Artifact.sha256.
absl::StatusOr<std::string> ContentSha256(const std::vector<LocalFile>& files) {
  std::map<std::string, std::string> sums;
  for (const LocalFile& file : files) {
    std::error_code error;
    if (std::filesystem::exists(file.path, error) &&
        !std::filesystem::is_regular_file(file.path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, " is not a regular file"));
    }
    auto sum = Sha256OfFile(file.path);
    if (!sum.ok()) return sum.status();
    sums[file.name] = *std::move(sum);
  }
  if (sums.size() == 1) return sums.begin()->second;
  Sha256 lines;
  for (const auto& [name, sum] : sums) lines.Add(absl::StrCat(name, " ", sum, "\n"));
  return lines.Hex();
}

// An admin's list has what belongs to others, too, who may delete it.
std::string NameOfUpload(const v1::ListArtifactsReply& known, v1::Artifact::Kind kind,
                         const std::string& content) {
  for (const v1::Artifact& artifact : known.artifacts()) {
    const bool usable = artifact.owner().empty() || artifact.owner() == known.owner();
    if (usable && artifact.kind() == kind && artifact.sha256() == content &&
        !artifact.metadata().contains("temporary")) {
      return artifact.name();
    }
  }
  return "";
}

}  // namespace

std::string ArtifactStem(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole(path);
  if (!whole.has_filename()) whole = whole.parent_path();  // "./tiny/"
  if (whole.filename() == "." || whole.filename() == "..") {
    whole = std::filesystem::canonical(whole, error);
  }
  const bool folder = std::filesystem::is_directory(path, error);
  std::string stem = (folder ? whole.filename() : whole.stem()).string().substr(0, 80);
  for (char& c : stem) {
    const bool kept = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                      (folder && c == '.' && &c != stem.data());
    if (!kept) c = '-';
  }
  return stem.empty() ? "file" : stem;
}

absl::StatusOr<std::string> Client::EnsureUploaded(const std::string& path, v1::Artifact::Kind kind,
                                                   const TransferProgress& progress,
                                                   bool* uploaded) {
  const std::string name = std::filesystem::path(path).filename().string();
  return EnsureUploaded(std::vector<LocalFile>{{name, path}}, kind, progress, uploaded);
}

absl::StatusOr<std::string> Client::EnsureUploaded(const std::vector<LocalFile>& files,
                                                   v1::Artifact::Kind kind,
                                                   const TransferProgress& progress,
                                                   bool* uploaded) {
  return EnsureUploaded(files, ArtifactStem(files[0].path), kind, progress, uploaded);
}

absl::StatusOr<std::string> Client::FindUploaded(const std::vector<LocalFile>& files,
                                                 v1::Artifact::Kind kind) {
  auto content = ContentSha256(files);
  if (!content.ok()) return content.status();
  auto known = ListArtifacts(v1::ListArtifactsRequest(), 0);
  if (!known.ok()) return known.status();
  return NameOfUpload(*known, kind, *content);
}

absl::StatusOr<std::string> Client::EnsureUploaded(const std::vector<LocalFile>& files,
                                                   const std::string& stem, v1::Artifact::Kind kind,
                                                   const TransferProgress& progress,
                                                   bool* uploaded) {
  if (uploaded != nullptr) *uploaded = false;
  auto content = ContentSha256(files);
  if (!content.ok()) return content.status();
  auto known = ListArtifacts(v1::ListArtifactsRequest(), 0);
  if (!known.ok()) return known.status();
  std::string name = NameOfUpload(*known, kind, *content);
  if (!name.empty()) return name;
  const std::string digest = known->upload_salt().empty()
                                 ? *content
                                 : Sha256Hex(absl::StrCat(known->upload_salt(), " ", *content));
  v1::UploadHeader header;
  header.set_name(absl::StrCat(stem, "-", digest.substr(0, 16)));
  header.set_kind(kind);
  auto artifact = Upload(header, files, progress);
  if (absl::IsAlreadyExists(artifact.status())) {
    // Another client of this owner has uploaded it meanwhile, or the name is taken by chance.
    known = ListArtifacts(v1::ListArtifactsRequest(), 0);
    if (!known.ok()) return known.status();
    name = NameOfUpload(*known, kind, *content);
    if (!name.empty()) return name;
    auto random = RandomId();
    if (!random.ok()) return random.status();
    header.set_name(absl::StrCat(header.name(), "-", random->substr(0, 8)));
    artifact = Upload(header, files, progress);
  }
  if (!artifact.ok()) return artifact.status();
  if (uploaded != nullptr) *uploaded = true;
  return header.name();
}

}  // namespace espalier
