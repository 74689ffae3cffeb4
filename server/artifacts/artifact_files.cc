#include "server/artifacts/artifact_files.h"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadChunk = 1 << 20;

}  // namespace

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

absl::StatusOr<std::vector<std::string>> FilesBeneath(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) names.push_back(fs::relative(it->path(), root).string());
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("reading ", root, ": ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status SyncFolders(FileSystem& files, const std::string& root) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_directory(error)) continue;
    absl::Status status = files.SyncDirectory(it->path().string());
    if (!status.ok()) return status;
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("reading ", root, ": ", error.message()));
  }
  return files.SyncDirectory(root);
}

std::string SumOf(const std::map<std::string, std::string>& sums) {
  if (sums.size() == 1) return sums.begin()->second;
  std::string lines;
  for (const auto& [name, sum] : sums) absl::StrAppend(&lines, name, " ", sum, "\n");
  return Sha256Hex(lines);
}

absl::StatusOr<std::string> SumOfFile(FileSystem& files, const std::string& path, int64_t* bytes) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr);
  std::string buffer(kReadChunk, '\0');
  *bytes = (*file)->size();
  for (int64_t at = 0; at < *bytes;) {
    const int64_t n = std::min(kReadChunk, *bytes - at);
    absl::Status status = (*file)->Read(at, n, buffer.data());
    if (!status.ok()) return status;
    EVP_DigestUpdate(hash.get(), buffer.data(), static_cast<size_t>(n));
    at += n;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(hash.get(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace espalier
