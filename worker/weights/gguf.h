// Reads GGUF, versions 2 and 3, little-endian: metadata, then tensors. Files are not trusted: every
// length, offset and size is checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"
#include "worker/checkpoint/file_system.h"
#include "worker/weights/gguf_blocks.h"

namespace espalier {

class GgufFile {
 public:
  struct Array {
    uint32_t type = 0;
    uint64_t size = 0;  // its elements are not kept
  };
  // Integers of all widths (unsigned ones beyond 2^63 are refused), floating-point numbers,
  // strings.
  using Value = std::variant<int64_t, double, bool, std::string, Array>;

  struct Tensor {
    Dims dims;  // row-major, as everywhere here: the file has them in reverse
    const GgufType* type = nullptr;
    int64_t offset = 0;  // into the file
  };

  // InvalidArgument names the file and the key, tensor or field; Unimplemented for a tensor type
  // that cannot be read.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(FileSystem& files, const std::string& path);

  const std::map<std::string, Value>& metadata() const { return metadata_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  // Elements [begin, begin + count), row-major, as f32.
  absl::Status Read(const Tensor& tensor, int64_t begin, int64_t count, float* out) const;

 private:
  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace espalier
