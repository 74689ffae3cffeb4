// Reads and writes safetensors: an 8-byte header length, a JSON header, the tensors' bytes. Files
// are not trusted: sizes, gaps, overlaps and duplicates are checked before any tensor is read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "ops/tensor/shape.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct SafetensorsEntry {
  std::string dtype_name;  // "F32", "F8_E4M3"
  TensorType type;         // dtype kInvalid if unsupported
  int64_t offset = 0;      // into the file
  int64_t bytes = 0;
};

class SafetensorsFile {
 public:
  // Returns InvalidArgument naming the file and the invalid tensor or field.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(FileSystem& files,
                                                               const std::string& path);
  // The same of an open file; `path` names it in errors.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(std::unique_ptr<ReadableFile> file,
                                                               const std::string& path);

  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  const std::shared_ptr<const ReadableFile>& file() const { return file_; }

  // Reads `bytes` of the tensor's data from `offset` on.
  absl::Status Read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes, void* out) const;

 private:
  std::string path_;
  std::shared_ptr<const ReadableFile> file_;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes one file: Begin declares all tensors, then Append gives their data in the same order.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    TensorType type;
  };
  struct Written {
    std::string sha256;  // of the file
    int64_t bytes = 0;
  };

  // Writes `path`, under a temporary name until Finish.
  SafetensorsWriter(FileSystem& files, std::string path);
  // Writes `upload`; `name` names it in errors.
  SafetensorsWriter(std::unique_ptr<CheckpointStore::Upload> upload, std::string name);
  ~SafetensorsWriter();

  // Writes the header.
  absl::Status Begin(const std::vector<Tensor>& tensors,
                     const std::map<std::string, std::string>& metadata);
  absl::Status Append(const void* data, int64_t bytes);
  // Makes the file durable under its final name. After an error, or without Finish, no file is
  // left.
  absl::StatusOr<Written> Finish();

 private:
  FileSystem* const files_;  // null: to `upload`
  const std::string path_;
  std::unique_ptr<CheckpointStore::Upload> file_;
  Sha256 hash_;
  int64_t declared_bytes_ = 0;
  int64_t written_ = 0;
  int64_t total_ = 0;
};

}  // namespace espalier
