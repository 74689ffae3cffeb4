// Writes a file under a temporary name, and gives it its own once it is durable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "storage/checkpoint_store.h"

namespace espalier {

inline constexpr char kIncompleteSuffix[] = ".tmp";

class AtomicFile : public CheckpointStore::Upload {
 public:
  // Creates `path`.tmp. The folder exists. `files` must outlive the file. If several may write the
  // file at once, each needs a `writer` of its own, which becomes part of the temporary name.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(FileSystem& files,
                                                            const std::string& path,
                                                            const std::string& writer = "");
  ~AtomicFile() override;

  absl::Status Append(const void* data, int64_t bytes) override;
  absl::Status Commit() override;
  // Commit for a file that must not replace another: AlreadyExists if there is one of that name.
  absl::Status CommitIfAbsent();

 private:
  AtomicFile(FileSystem& files, std::string path, std::string temporary,
             std::unique_ptr<WritableFile> file)
      : files_(files),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(std::move(file)) {}
  absl::Status MakeDurable();
  absl::Status SyncFolder();

  FileSystem& files_;
  const std::string path_, temporary_;
  std::unique_ptr<WritableFile> file_;
  bool renamed_ = false;
};

}  // namespace espalier
