#include "storage/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(FileSystem& files,
                                                               const std::string& path,
                                                               const std::string& writer) {
  const std::string temporary =
      absl::StrCat(path, writer.empty() ? "" : ".", writer, kIncompleteSuffix);
  absl::StatusOr<std::unique_ptr<WritableFile>> file = files.Create(temporary);
  if (!file.ok()) return file.status();
  return std::unique_ptr<AtomicFile>(new AtomicFile(files, path, temporary, *std::move(file)));
}

AtomicFile::~AtomicFile() {
  if (renamed_) return;
  file_.reset();
  files_.Remove(temporary_).IgnoreError();
}

absl::Status AtomicFile::Append(const void* data, int64_t bytes) {
  return file_->Append(data, bytes);
}

absl::Status AtomicFile::MakeDurable() {
  absl::Status s = file_->Sync();
  return s.ok() ? file_->Close() : s;
}

absl::Status AtomicFile::SyncFolder() {
  const size_t slash = path_.rfind('/');
  return files_.SyncDirectory(slash == std::string::npos ? "." : path_.substr(0, slash + 1));
}

absl::Status AtomicFile::Commit() {
  absl::Status s = MakeDurable();
  if (s.ok()) s = files_.Rename(temporary_, path_);
  if (!s.ok()) return s;  // the destructor removes the file
  renamed_ = true;
  return SyncFolder();
}

absl::Status AtomicFile::CommitIfAbsent() {
  if (absl::Status s = MakeDurable(); !s.ok()) return s;
  // A rename would replace a file that another process makes meanwhile; a hard link does not.
  if (link(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    if (error == EEXIST) return absl::AlreadyExistsError(absl::StrCat("'", path_, "' exists"));
    const std::string message =
        absl::StrCat("cannot give '", path_, "' its name: ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
    return absl::UnavailableError(message);
  }
  return SyncFolder();  // the destructor removes the other name
}

}  // namespace espalier
