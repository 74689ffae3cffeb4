#include "storage/copy_checkpoint.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "base/zstd.h"

namespace espalier {
namespace {

constexpr int64_t kCopiedPart = 1 << 20;  // bytes at a time
// Higher levels make parameters hardly smaller, but take much longer.
constexpr int kCompressionLevel = 1;

absl::Status CheckGoesOn(const CopyOptions& options) {
  return options.stopped && options.stopped() ? absl::CancelledError("the copy was stopped")
                                              : absl::OkStatus();
}

// Reads a file from its beginning, decompressed.
class SourceFile {
 public:
  // Opens the object, or the compressed one in its place.
  static absl::StatusOr<SourceFile> Open(ObjectReader& store, const std::string& name) {
    SourceFile source;
    source.name_ = name;
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(name);
    if (absl::IsNotFound(file.status())) {
      absl::StatusOr<std::unique_ptr<ReadableFile>> compressed =
          store.Open(absl::StrCat(name, kCompressedSuffix));
      if (compressed.ok()) {
        source.decompressor_ = std::make_unique<ZstdDecompressor>();
        source.name_ += kCompressedSuffix;
      }
      if (!absl::IsNotFound(compressed.status())) file = std::move(compressed);
    }
    if (!file.ok()) return file.status();
    source.file_ = *std::move(file);
    return source;
  }

  // Sets `part` to the next bytes; at the end it is empty.
  absl::Status Next(std::string* part) {
    part->clear();
    while (part->empty() && at_ < file_->size()) {
      buffer_.resize(static_cast<size_t>(std::min(kCopiedPart, file_->size() - at_)));
      absl::Status s = file_->Read(at_, static_cast<int64_t>(buffer_.size()), buffer_.data());
      if (!s.ok()) return s;
      at_ += static_cast<int64_t>(buffer_.size());
      if (decompressor_ == nullptr) {
        part->swap(buffer_);
        return absl::OkStatus();
      }
      s = decompressor_->Add(buffer_, part);
      if (!s.ok()) return absl::DataLossError(absl::StrCat("'", name_, "': ", s.message()));
    }
    if (!part->empty() || decompressor_ == nullptr) return absl::OkStatus();
    const absl::Status ended = decompressor_->Finish();
    return ended.ok() ? ended
                      : absl::DataLossError(absl::StrCat("'", name_, "': ", ended.message()));
  }

  // Whether a part from its middle becomes smaller by a twentieth. The beginning is a header.
  absl::StatusOr<bool> Shrinks() const {
    if (decompressor_ != nullptr) return true;
    const int64_t bytes = std::min(kCopiedPart, file_->size());
    std::string part(static_cast<size_t>(bytes), '\0'), compressed;
    absl::Status s = file_->Read((file_->size() - bytes) / 2, bytes, part.data());
    ZstdCompressor compressor(kCompressionLevel);
    if (s.ok()) s = compressor.Add(part, &compressed);
    if (s.ok()) s = compressor.Finish(&compressed);
    if (!s.ok()) return s;
    return static_cast<int64_t>(compressed.size()) < bytes - bytes / 20;
  }

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::unique_ptr<ReadableFile> file_;
  std::unique_ptr<ZstdDecompressor> decompressor_;  // null: it is not compressed
  int64_t at_ = 0;
  std::string buffer_;
};

// Returns the bytes written.
absl::StatusOr<int64_t> CopyFile(ObjectReader& from, const std::string& from_name,
                                 CheckpointStore& to, const std::string& to_name,
                                 const ManifestFile& expected, const CopyOptions& options) {
  absl::StatusOr<SourceFile> source = SourceFile::Open(from, from_name);
  if (!source.ok()) return source.status();
  std::optional<ZstdCompressor> compressor;
  if (options.compress) {
    const absl::StatusOr<bool> shrinks = source->Shrinks();
    if (!shrinks.ok()) return shrinks.status();
    if (*shrinks) compressor.emplace(kCompressionLevel);
  }
  const std::string plain = to_name, frame = absl::StrCat(to_name, kCompressedSuffix);
  // What another checkpoint of this name has left would be taken for this file.
  if (absl::Status s = to.Delete(compressor.has_value() ? plain : frame); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload =
      to.Put(compressor.has_value() ? frame : plain);
  if (!upload.ok()) return upload.status();
  Sha256 hash;
  int64_t read = 0, written = 0;
  std::string part, compressed;
  const auto write = [&](absl::string_view bytes) {
    if (bytes.empty()) return absl::OkStatus();
    written += static_cast<int64_t>(bytes.size());
    return (*upload)->Append(bytes.data(), static_cast<int64_t>(bytes.size()));
  };
  while (true) {
    absl::Status s = CheckGoesOn(options);
    if (s.ok()) s = source->Next(&part);
    if (!s.ok()) return s;
    if (part.empty()) break;
    hash.Add(part);
    read += static_cast<int64_t>(part.size());
    if (compressor.has_value()) {
      compressed.clear();
      s = compressor->Add(part, &compressed);
      if (s.ok()) s = write(compressed);
    } else {
      s = write(part);
    }
    if (!s.ok()) return s;
  }
  if (read != expected.bytes || hash.Hex() != expected.sha256) {
    return absl::DataLossError(absl::StrCat(
        "'", source->name(), "' has another content than the checkpoint's manifest says"));
  }
  absl::Status s;
  if (compressor.has_value()) {
    compressed.clear();
    s = compressor->Finish(&compressed);
    if (s.ok()) s = write(compressed);
  }
  if (s.ok()) s = (*upload)->Commit();
  return s.ok() ? absl::StatusOr<int64_t>(written) : s;
}

}  // namespace

absl::StatusOr<CopiedCheckpoint> CopyCheckpoint(ObjectReader& from, const std::string& from_folder,
                                                CheckpointStore& to, const std::string& to_folder,
                                                const CopyOptions& options, CopiedFiles* copied) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(from, from_folder);
  if (!manifest.ok()) return manifest.status();
  const absl::StatusOr<std::string> text =
      ReadObject(from, JoinPath(from_folder, kManifestFile), kMaxManifestBytes);
  if (!text.ok()) return text.status();
  CopiedCheckpoint result;
  result.steps_done = manifest->steps_done;
  for (const ManifestFile& file : manifest->files) result.bytes += file.bytes;
  const std::string to_manifest = JoinPath(to_folder, kManifestFile);
  const absl::StatusOr<std::string> there = ReadObject(to, to_manifest, kMaxManifestBytes);
  if (there.ok() && *there == *text) return result;
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  CopiedFiles none;
  CopiedFiles& known = copied == nullptr ? none : *copied;
  const auto in_folder = [&](const auto& file) {
    return absl::StartsWith(file.first, absl::StrCat(to_folder, "/"));
  };
  const auto is_copied = [&](const ManifestFile& file) {
    const auto found = known.find(PathOf(to_folder, file));
    return found != known.end() && found->second == file.sha256;
  };
  const bool goes_on = !there.ok() && std::any_of(manifest->files.begin(), manifest->files.end(),
                                                  [&](const ManifestFile& file) {
                                                    return !file.shared && is_copied(file);
                                                  });
  if (!goes_on) {
    // What is there is of another checkpoint, or of a copy that was interrupted. The manifest goes
    // first: what is left if that is interrupted is no checkpoint.
    absl::Status s = to.Delete(to_manifest);
    if (s.ok()) s = to.Delete(to_folder);
    if (!s.ok()) return s;
    std::erase_if(known, in_folder);
  }
  for (const ManifestFile& file : manifest->files) {
    if (is_copied(file)) continue;
    const std::string to_name = PathOf(to_folder, file);
    const absl::StatusOr<int64_t> bytes =
        CopyFile(from, PathOf(from_folder, file), to, to_name, file, options);
    if (!bytes.ok()) return bytes.status();
    result.copied_bytes += *bytes;
    known[to_name] = file.sha256;
  }
  if (absl::Status s = CheckGoesOn(options); !s.ok()) return s;
  if (absl::Status s = to.PutIfAbsent(to_manifest, *text); !s.ok()) return s;
  // Nobody copies these again; shared ones another checkpoint may name.
  std::erase_if(known, in_folder);
  return result;
}

}  // namespace espalier
