// Reads GGUF, versions 2 and 3, little-endian: metadata, then tensors; of a model that llama.cpp's
// gguf-split has cut, all files as one. Files are not trusted: every length, offset and size is
// checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"
#include "base/file_system.h"
#include "models/weights/gguf_dequantize.h"

namespace espalier {

class GgufFile {
 public:
  struct Array {
    uint32_t type = 0;
    uint64_t size = 0;
    int64_t offset = 0;  // of its elements, which are read when they are wanted

    bool operator==(const Array&) const = default;
  };
  // Integers of all widths (unsigned ones beyond 2^63 are refused), floating-point numbers,
  // strings.
  using Value = std::variant<int64_t, double, bool, std::string, Array>;

  struct Tensor {
    Dims dims;  // row-major, as everywhere here: the file has them in reverse
    const GgufType* type = nullptr;
    int64_t offset = 0;  // into its file
    size_t part = 0;     // which file that is
  };

  // `path`: the first file, "NAME-00001-of-00003.gguf", of a model in several; the others lie
  // beside it. InvalidArgument names the file and the key, tensor or field, or the file that is
  // missing; Unimplemented for a tensor type that cannot be read.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(FileSystem& files, const std::string& path);

  // Of the first file: the others have none but their numbers.
  const std::map<std::string, Value>& metadata() const { return metadata_; }
  const std::string& path() const { return parts_[0].path; }
  // Of all files.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  const std::string& path_of(const Tensor& tensor) const { return parts_[tensor.part].path; }
  const std::shared_ptr<const ReadableFile>& file_of(const Tensor& tensor) const {
    return parts_[tensor.part].file;
  }

  // The elements of an array in the metadata: strings, or numbers of any kind. Empty if there is no
  // such key. InvalidArgument, by key, for values of another type, more than 2^22 of them, or a
  // string of more than 64 KiB.
  absl::StatusOr<std::vector<std::string>> Strings(const std::string& key) const;
  absl::StatusOr<std::vector<double>> Numbers(const std::string& key) const;

  // Elements [begin, begin + count), row-major, as f32.
  absl::Status Read(const Tensor& tensor, int64_t begin, int64_t count, float* out) const;

 private:
  struct Part {
    std::string path;
    std::shared_ptr<const ReadableFile> file;
  };

  // A file by itself, whatever it is a part of.
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenSplit(FileSystem& files,
                                                            const std::string& path);
  // Whether it says of itself that it is this part of so many. `number` from 0.
  absl::Status CheckSplit(int64_t number, int64_t count) const;
  absl::Status AddSplit(GgufFile part);

  // Null, without an error, if there is no such key.
  absl::StatusOr<const Array*> FindArray(const std::string& key) const;

  std::vector<Part> parts_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace espalier
