#include "server/artifacts/artifact_objects.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "server/artifacts/artifact_files.h"

namespace espalier {
namespace {

constexpr char kObjectFolder[] = "artifacts";
// Names of the folders that no row need name, by line.
constexpr char kNotesBlob[] = "artifact-objects/to-remove";
// After the name of one that a start has removed, for the next start.
constexpr char kOnceMore[] = " again";
constexpr char kFolderMark[] = "@r";  // before the random part of a folder's name
constexpr size_t kRandomDigits = 32;
constexpr int64_t kUploadChunk = int64_t{1} << 20;
// S3 serves larger reads by several requests at once.
constexpr int64_t kDownloadPiece = int64_t{32} << 20;

std::string ObjectName(const std::string& folder, const std::string& file) {
  return absl::StrCat(kObjectFolder, "/", folder, "/", file);
}

absl::Status Stopping() { return absl::CancelledError("the coordinator is stopping; ask again"); }

absl::Status AboutArtifact(const v1::Artifact& artifact, const std::string& what,
                           const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact.name(), "' ", what, ": ",
                                                  status.message()));
}

}  // namespace

bool ArtifactObjects::IsObjectFolder(const std::string& folder) {
  const size_t at = folder.rfind(kFolderMark);
  if (at == std::string::npos) return false;
  const std::string random = folder.substr(at + std::string(kFolderMark).size());
  return random.size() == kRandomDigits &&
         std::all_of(random.begin(), random.end(),
                     [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

std::string ArtifactObjects::Where(const std::string& folder) const {
  return absl::StrCat(url_, "/", kObjectFolder, "/", folder);
}

absl::Status ArtifactObjects::Start(const std::set<std::string>& rows) {
  const absl::StatusOr<std::string> text = store_.GetBlob(kNotesBlob);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  absl::MutexLock lock(&mutex_);
  std::set<std::string> notes;
  notes_ = absl::StrSplit(text.ok() ? *text : std::string(), '\n', absl::SkipEmpty());
  for (const std::string& note : notes_) {
    const bool once_more = absl::EndsWith(note, kOnceMore);
    const std::string folder(absl::StripSuffix(note, kOnceMore));
    if (rows.contains(folder)) continue;
    notes.insert(note);
    to_remove_.push_back({folder, note, once_more ? "" : folder + kOnceMore});
  }
  if (absl::Status s = WriteNotes(std::move(notes)); !s.ok()) return s;
  removal_ = std::thread([this] { RemoveLoop(); });
  return absl::OkStatus();
}

void ArtifactObjects::Stop() {
  ended_ = true;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    *cancelled_ = true;
    changed_.SignalAll();
  }
  if (removal_.joinable()) removal_.join();
}

absl::Status ArtifactObjects::WriteNotes(std::set<std::string> notes) {
  if (notes == notes_) return absl::OkStatus();
  if (absl::Status s = store_.PutBlob(kNotesBlob, absl::StrJoin(notes, "\n")); !s.ok()) return s;
  notes_ = std::move(notes);
  return absl::OkStatus();
}

absl::Status ArtifactObjects::Note(const std::string& folder) {
  absl::MutexLock lock(&mutex_);
  std::set<std::string> notes = notes_;
  notes.insert(folder);
  return WriteNotes(std::move(notes));
}

// A note that stays does no harm: either a row names the folder, or there is nothing in it.
void ArtifactObjects::Keep(const std::string& folder) { ReplaceNote(folder, ""); }

void ArtifactObjects::ReplaceNote(const std::string& old, const std::string& by) {
  absl::MutexLock lock(&mutex_);
  std::set<std::string> notes = notes_;
  notes.erase(old);
  if (!by.empty()) notes.insert(by);
  if (absl::Status s = WriteNotes(std::move(notes)); !s.ok()) {
    spdlog::warn("artifacts: {}", std::string(s.message()));
  }
}

void ArtifactObjects::Remove(const std::string& folder) {
  absl::MutexLock lock(&mutex_);
  to_remove_.push_back({folder, folder, ""});
  changed_.SignalAll();
}

void ArtifactObjects::RemoveLoop() {
  while (true) {
    Removal next;
    {
      absl::MutexLock lock(&mutex_);
      while (!stop_ && to_remove_.empty()) changed_.Wait(&mutex_);
      if (stop_) return;
      next = std::move(to_remove_.back());
      to_remove_.pop_back();
    }
    if (absl::Status s = objects_.Delete(absl::StrCat(kObjectFolder, "/", next.folder)); !s.ok()) {
      if (*cancelled_) return;
      spdlog::warn(
          "artifacts: {} is no artifact's any more and is removed after the next start: {}",
          Where(next.folder), std::string(s.message()));
      continue;
    }
    ReplaceNote(next.note, next.note_after);
  }
}

absl::StatusOr<std::string> ArtifactObjects::UploadFile(
    const std::string& from, const std::string& object,
    const std::function<absl::Status()>& go_on) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files_.Open(from);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload = objects_.Put(object);
  if (!upload.ok()) return upload.status();
  Sha256 sum;
  std::string chunk;
  for (int64_t at = 0; at < (*file)->size(); at += static_cast<int64_t>(chunk.size())) {
    absl::Status status = go_on != nullptr ? go_on() : absl::OkStatus();
    if (!status.ok()) return status;
    chunk.resize(static_cast<size_t>(std::min(kUploadChunk, (*file)->size() - at)));
    const auto bytes = static_cast<int64_t>(chunk.size());
    status = (*file)->Read(at, bytes, chunk.data());
    if (status.ok()) status = (*upload)->Append(chunk.data(), bytes);
    if (!status.ok()) return status;
    sum.Add(chunk);
  }
  if (absl::Status s = (*upload)->Commit(); !s.ok()) return s;
  return sum.Hex();
}

absl::StatusOr<std::string> ArtifactObjects::Upload(const v1::Artifact& artifact,
                                                    const std::string& from,
                                                    const std::function<absl::Status()>& go_on) {
  const absl::StatusOr<std::string> random = RandomId();
  if (!random.ok()) return random.status();
  const std::string folder =
      absl::StrCat(absl::StrReplaceAll(artifact.name(), {{"/", "~"}}), kFolderMark, *random);
  if (absl::Status s = Note(folder); !s.ok()) return s;
  absl::Cleanup remove = [&] { Remove(folder); };
  std::map<std::string, std::string> sums;
  for (const std::string& file : artifact.files()) {
    absl::StatusOr<std::string> sum =
        UploadFile(JoinPath(from, file), ObjectName(folder, file), go_on);
    if (absl::IsCancelled(sum.status())) return sum.status();
    if (!sum.ok()) {
      return AboutArtifact(artifact, absl::StrCat("was not stored in ", url_), sum.status());
    }
    sums[file] = *std::move(sum);
  }
  if (SumOf(sums) != artifact.sha256()) {
    return absl::DataLossError(absl::StrCat("artifact '", artifact.name(), "': its files in ", from,
                                            " changed while they were stored in ", url_));
  }
  std::move(remove).Cancel();
  return folder;
}

absl::StatusOr<std::string> ArtifactObjects::DownloadFile(const std::string& object,
                                                          const std::string& to) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = objects_.Open(object);
  if (!file.ok()) return file.status();
  const std::string parent = std::filesystem::path(to).parent_path().string();
  if (absl::Status s = files_.CreateDirectories(parent); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<WritableFile>> out = files_.Create(to);
  if (!out.ok()) return out.status();
  Sha256 sum;
  std::string piece;
  for (int64_t at = 0; at < (*file)->size(); at += static_cast<int64_t>(piece.size())) {
    if (ended_) return Stopping();
    piece.resize(static_cast<size_t>(std::min(kDownloadPiece, (*file)->size() - at)));
    const auto bytes = static_cast<int64_t>(piece.size());
    absl::Status status = (*file)->Read(at, bytes, piece.data());
    if (status.ok()) status = (*out)->Append(piece.data(), bytes);
    if (!status.ok()) return status;
    sum.Add(piece);
  }
  absl::Status status = (*out)->Sync();
  if (status.ok()) status = (*out)->Close();
  if (!status.ok()) return status;
  return sum.Hex();
}

absl::Status ArtifactObjects::Download(const v1::Artifact& artifact, const std::string& folder,
                                       const std::string& to) {
  if (absl::Status s = files_.CreateDirectories(to); !s.ok()) return s;
  std::map<std::string, std::string> sums;
  for (const std::string& file : artifact.files()) {
    absl::StatusOr<std::string> sum = DownloadFile(ObjectName(folder, file), JoinPath(to, file));
    if (!sum.ok() && ended_) return Stopping();  // whose calls were cut off
    if (absl::IsNotFound(sum.status())) {
      return absl::DataLossError(absl::StrCat(
          "artifact '", artifact.name(), "': its file '", file, "' is not in ", Where(folder),
          "; put the object back, or delete the artifact and upload it again (",
          sum.status().message(), ")"));
    }
    if (!sum.ok()) {
      return AboutArtifact(artifact, absl::StrCat("could not be read from ", Where(folder)),
                           sum.status());
    }
    sums[file] = *std::move(sum);
  }
  if (const std::string sum = SumOf(sums); sum != artifact.sha256()) {
    return absl::DataLossError(absl::StrCat(
        "artifact '", artifact.name(), "': what is in ", Where(folder), " has sha256 ", sum,
        ", expected ", artifact.sha256(),
        "; it is damaged: put the objects back, or delete the artifact and upload it again"));
  }
  return SyncFolders(files_, to);
}

}  // namespace espalier
