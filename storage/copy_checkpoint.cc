#include "storage/copy_checkpoint.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "storage/copy_encoding.h"

namespace espalier {
namespace {

constexpr int64_t kCopiedPart = 1 << 20;  // bytes at a time

absl::Status CheckGoesOn(const CopyOptions& options) {
  return options.stopped && options.stopped() ? absl::CancelledError("the copy was stopped")
                                              : absl::OkStatus();
}

// Reads a file from its beginning, decompressed.
class SourceFile {
 public:
  // Opens the object, or one with an encoding of it in its place.
  static absl::StatusOr<SourceFile> Open(ObjectReader& store, const std::string& name) {
    absl::Status missing;
    for (const CopyEncoding encoding : kCopyEncodings) {
      const std::string object = absl::StrCat(name, SuffixOf(encoding));
      absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(object);
      if (file.ok()) return SourceFile(object, *std::move(file), encoding);
      if (!absl::IsNotFound(file.status())) return file.status();
      missing.Update(file.status());
    }
    return missing;
  }

  // Sets `part` to the next bytes; at the end it is empty.
  absl::Status Next(std::string* part) {
    part->clear();
    while (part->empty()) {
      if (!has_more_ && at_ == file_->size()) return Damaged(Finish(part));
      if (!has_more_) {
        buffer_.resize(static_cast<size_t>(std::min(kCopiedPart, file_->size() - at_)));
        absl::Status s = file_->Read(at_, static_cast<int64_t>(buffer_.size()), buffer_.data());
        if (!s.ok()) return s;
        at_ += static_cast<int64_t>(buffer_.size());
        unread_ = buffer_;
      }
      const absl::StatusOr<bool> more = decoder_->Add(&unread_, part);
      if (!more.ok()) return Damaged(more.status());
      has_more_ = *more;
    }
    return absl::OkStatus();
  }

  // A part from its middle: the beginning is a header.
  absl::StatusOr<std::string> Middle() const {
    const int64_t bytes = std::min(kCopiedPart, file_->size());
    std::string part(static_cast<size_t>(bytes), '\0');
    absl::Status s = file_->Read((file_->size() - bytes) / 2, bytes, part.data());
    if (!s.ok()) return s;
    return part;
  }

  CopyEncoding encoding() const { return encoding_; }
  const std::string& name() const { return name_; }

 private:
  SourceFile(std::string name, std::unique_ptr<ReadableFile> file, CopyEncoding encoding)
      : name_(std::move(name)),
        file_(std::move(file)),
        encoding_(encoding),
        decoder_(std::make_unique<CopyDecoder>(encoding)) {}

  absl::Status Finish(std::string* part) {
    return std::exchange(finished_, true) ? absl::OkStatus() : decoder_->Finish(part);
  }
  absl::Status Damaged(const absl::Status& status) const {
    return status.ok() ? status
                       : absl::DataLossError(
                             absl::StrCat("'", name_, "' is damaged: it cannot be decompressed (",
                                          status.message(), ")"));
  }

  std::string name_;
  std::unique_ptr<ReadableFile> file_;
  CopyEncoding encoding_;
  std::unique_ptr<CopyDecoder> decoder_;
  int64_t at_ = 0;
  std::string buffer_;
  absl::string_view unread_;  // of the buffer
  bool has_more_ = false;     // without other bytes
  bool finished_ = false;
};

absl::StatusOr<CopyEncoding> BestEncoding(const SourceFile& source) {
  if (source.encoding() != CopyEncoding::kPlain) return source.encoding();
  const absl::StatusOr<std::string> part = source.Middle();
  if (!part.ok()) return part.status();
  return ChooseEncoding(*part);
}

// Returns the bytes written.
absl::StatusOr<int64_t> CopyFile(ObjectReader& from, const std::string& from_name,
                                 CheckpointStore& to, const std::string& to_name,
                                 const ManifestFile& expected, const CopyOptions& options) {
  absl::StatusOr<SourceFile> source = SourceFile::Open(from, from_name);
  if (!source.ok()) return source.status();
  CopyEncoding encoding = CopyEncoding::kPlain;
  if (options.compress) {
    const absl::StatusOr<CopyEncoding> best = BestEncoding(*source);
    if (!best.ok()) return best.status();
    encoding = *best;
  }
  for (const CopyEncoding other : kCopyEncodings) {
    // What another checkpoint of this name has left would be taken for this file.
    if (other == encoding) continue;
    if (absl::Status s = to.Delete(absl::StrCat(to_name, SuffixOf(other))); !s.ok()) return s;
  }
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload =
      to.Put(absl::StrCat(to_name, SuffixOf(encoding)));
  if (!upload.ok()) return upload.status();
  CopyEncoder encoder(encoding);
  Sha256 hash;
  int64_t read = 0, written = 0;
  std::string part, encoded;
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
    encoded.clear();
    s = encoder.Add(part, &encoded);
    if (s.ok()) s = write(encoded);
    if (!s.ok()) return s;
  }
  if (read != expected.bytes || hash.Hex() != expected.sha256) {
    return absl::DataLossError(absl::StrCat(
        "'", source->name(), "' has another content than the checkpoint's manifest says"));
  }
  encoded.clear();
  absl::Status s = encoder.Finish(&encoded);
  if (s.ok()) s = write(encoded);
  if (s.ok()) s = (*upload)->Commit();
  return s.ok() ? absl::StatusOr<int64_t>(written) : s;
}

// Whether an object has the content that a manifest says. A disk that cannot read a part of it
// counts as damage, a store that does not answer as an error.
absl::StatusOr<bool> HasContent(ObjectReader& store, const std::string& name,
                                const ManifestFile& expected, const CopyOptions& options) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(name);
  if (absl::IsUnavailable(file.status())) return file.status();
  if (!file.ok() || (*file)->size() != expected.bytes) return false;
  Sha256 hash;
  std::string part;
  for (int64_t at = 0; at < expected.bytes; at += static_cast<int64_t>(part.size())) {
    if (absl::Status s = CheckGoesOn(options); !s.ok()) return s;
    part.resize(static_cast<size_t>(std::min(kCopiedPart, expected.bytes - at)));
    const absl::Status s = (*file)->Read(at, static_cast<int64_t>(part.size()), part.data());
    if (absl::IsUnavailable(s)) return s;
    if (!s.ok()) return false;
    hash.Add(part);
  }
  return hash.Hex() == expected.sha256;
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

absl::Status RepairCheckpoint(ObjectReader& from, const std::string& from_folder,
                              CheckpointStore& to, const std::string& to_folder,
                              const CopyOptions& options) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(from, from_folder);
  if (!manifest.ok()) return manifest.status();
  const absl::StatusOr<std::string> text =
      ReadObject(from, JoinPath(from_folder, kManifestFile), kMaxManifestBytes);
  if (!text.ok()) return text.status();
  for (const ManifestFile& file : manifest->files) {
    const std::string name = PathOf(to_folder, file);
    const absl::StatusOr<bool> sound = HasContent(to, name, file, options);
    if (!sound.ok()) return sound.status();
    if (*sound) continue;
    const absl::StatusOr<int64_t> copied =
        CopyFile(from, PathOf(from_folder, file), to, name, file, options);
    if (!copied.ok()) return copied.status();
  }
  const std::string name = JoinPath(to_folder, kManifestFile);
  const absl::StatusOr<std::string> there = ReadObject(to, name, kMaxManifestBytes);
  if (there.ok() && *there == *text) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload = to.Put(name);
  if (!upload.ok()) return upload.status();
  absl::Status s = (*upload)->Append(text->data(), static_cast<int64_t>(text->size()));
  return s.ok() ? (*upload)->Commit() : s;
}

}  // namespace espalier
