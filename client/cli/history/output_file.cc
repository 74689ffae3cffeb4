#include "client/cli/history/output_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_id.h"

namespace espalier {
namespace {

constexpr size_t kOutputBlock = 256 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(FileSystem& files,
                                                               const std::string& path) {
  std::unique_ptr<OutputFile> out(new OutputFile(&files, path));
  // In the same folder, so that the rename stays within one file system.
  auto id = RandomId();
  if (!id.ok()) return id.status();
  const std::string temporary = absl::StrCat(path, ".", *id, ".tmp");
  auto file = files.Create(temporary);
  if (!file.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": ", file.status().message()));
  }
  out->temporary_ = temporary;
  out->file_ = *std::move(file);
  return out;
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) (void)file_->Close();
  if (!temporary_.empty()) (void)files_->Remove(temporary_);
}

absl::Status OutputFile::Write(absl::string_view bytes) {
  bytes_ += static_cast<int64_t>(bytes.size());
  block_.append(bytes.data(), bytes.size());
  return block_.size() < kOutputBlock ? absl::OkStatus() : Flush();
}

absl::Status OutputFile::Flush() {
  if (stream_ != nullptr) {
    *stream_ << block_;
    block_.clear();
    // The command's end says why.
    return stream_->good() ? absl::OkStatus() : absl::CancelledError("the output is lost");
  }
  absl::Status status = file_->Append(block_.data(), static_cast<int64_t>(block_.size()));
  block_.clear();
  return status;
}

absl::Status OutputFile::Finish() {
  if (absl::Status s = Flush(); !s.ok()) return s;
  if (stream_ != nullptr) {
    stream_->flush();
    return absl::OkStatus();
  }
  if (absl::Status s = file_->Sync(); !s.ok()) return s;
  absl::Status closed = std::exchange(file_, nullptr)->Close();
  if (!closed.ok()) return closed;
  if (absl::Status s = files_->Rename(temporary_, path_); !s.ok()) return s;
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace espalier
