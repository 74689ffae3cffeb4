// Reads GGUF versions 2 and 3, little-endian, including models that llama.cpp's gguf-split has
// divided. Files are not trusted: every length, offset and size is checked before use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "models/weights/gguf_dequantize.h"
#include "ops/tensor/shape.h"

namespace espalier {

class GgufFile {
 public:
  struct Array {
    uint32_t type = 0;
    uint64_t size = 0;
    int64_t offset = 0;  // of its elements, read on demand

    bool operator==(const Array&) const = default;
  };
  // Integers of all widths (unsigned ones beyond 2^63 are rejected), floating-point numbers,
  // strings.
  using Value = std::variant<int64_t, double, bool, std::string, Array>;

  struct Tensor {
    Dims dims;  // row-major; the file has them reversed
    const GgufType* type = nullptr;
    int64_t offset = 0;  // into its file
    size_t part = 0;     // index of that file
  };

  // `path` is the file, or the first of several ("NAME-00001-of-00003.gguf"), whose others are in
  // the same folder. Returns InvalidArgument naming the file and the key, tensor or field, or a
  // missing file; Unimplemented for an unsupported tensor type.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(FileSystem& files, const std::string& path);

  // Metadata of the first file: the others have only split keys.
  const std::map<std::string, Value>& metadata() const { return metadata_; }
  const std::string& path() const { return parts_[0].path; }
  // Tensors of all files.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  const std::string& path_of(const Tensor& tensor) const { return parts_[tensor.part].path; }
  const std::shared_ptr<const ReadableFile>& file_of(const Tensor& tensor) const {
    return parts_[tensor.part].file;
  }

  // Returns the elements of a metadata array: strings, or numbers of any kind. Empty if the key is
  // absent. Returns InvalidArgument, by key, for elements of another type, more than 2^22 of them,
  // or a string over 64 KiB.
  absl::StatusOr<std::vector<std::string>> Strings(const std::string& key) const;
  absl::StatusOr<std::vector<double>> Numbers(const std::string& key) const;

  // Reads blocks [begin, begin + count) of the tensor's type as they are in the file.
  absl::Status ReadBlocks(const Tensor& tensor, int64_t begin, int64_t count,
                          unsigned char* out) const;
  // Reads elements [begin, begin + count), row-major, dequantized to f32.
  absl::Status Read(const Tensor& tensor, int64_t begin, int64_t count, float* out) const;

 private:
  struct Part {
    std::string path;
    std::shared_ptr<const ReadableFile> file;
  };

  // Opens one file on its own.
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenSplit(FileSystem& files,
                                                             const std::string& path);
  // Checks the file's split keys. `number` counts from 0.
  absl::Status CheckSplit(int64_t number, int64_t count) const;
  absl::Status AddSplit(GgufFile part);

  // Returns null if the key is absent.
  absl::StatusOr<const Array*> FindArray(const std::string& key) const;

  std::vector<Part> parts_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace espalier
