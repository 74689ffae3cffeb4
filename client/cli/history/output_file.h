// Where exporters write: a file that appears once it is complete, or a stream.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"

namespace espalier {

class OutputFile {
 public:
  // Creates the file under a temporary name beside `path`. All arguments must outlive this object.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(FileSystem& files,
                                                            const std::string& path);
  explicit OutputFile(std::ostream* stream) : stream_(stream) {}
  // Removes the file unless Finish was called.
  ~OutputFile();

  // Writes are gathered in blocks. Errors name the path.
  absl::Status Write(absl::string_view bytes);
  // Gives the file its name.
  absl::Status Finish();
  int64_t bytes() const { return bytes_; }  // so far

 private:
  OutputFile(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}
  absl::Status Flush();

  std::ostream* stream_ = nullptr;
  FileSystem* files_ = nullptr;
  std::string path_, temporary_;
  std::unique_ptr<WritableFile> file_;
  std::string block_;
  int64_t bytes_ = 0;
};

}  // namespace espalier
