// File system with one in-memory file at every path.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"

namespace espalier {

class MemoryFileSystem : public FileSystem {
 public:
  explicit MemoryFileSystem(std::string bytes) : bytes_(std::move(bytes)) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string&) override {
    return std::make_unique<File>(bytes_);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string&) override {
    return absl::UnimplementedError("read only");
  }
  absl::Status Rename(const std::string&, const std::string&) override { return ReadOnly(); }
  absl::Status Remove(const std::string&) override { return ReadOnly(); }
  absl::Status CreateDirectories(const std::string&) override { return ReadOnly(); }
  absl::Status SyncDirectory(const std::string&) override { return ReadOnly(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    return std::vector<std::string>{"file"};
  }

 private:
  class File : public ReadableFile {
   public:
    explicit File(const std::string& bytes) : bytes_(bytes) {}
    int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
    absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
      // A read beyond the file is a bug of the reader: crash.
      if (offset < 0 || bytes < 0 || offset > size() || bytes > size() - offset) __builtin_trap();
      if (bytes > 0) std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(bytes));
      return absl::OkStatus();
    }

   private:
    const std::string& bytes_;
  };

  static absl::Status ReadOnly() { return absl::UnimplementedError("read only"); }

  const std::string bytes_;
};

}  // namespace espalier
