// The tensors of a model's folder, whatever files they lie in: safetensors (one file or shards with
// an index) or GGUF. Files are not trusted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"
#include "worker/checkpoint/file_system.h"

namespace espalier {

class WeightFiles {
 public:
  struct Tensor {
    Dims dims;
    std::string dtype;     // as the file calls it: "BF16"
    std::string file;      // path
    bool readable = true;  // as f32
  };

  virtual ~WeightFiles() = default;

  virtual const std::map<std::string, Tensor>& tensors() const = 0;

  // Elements [begin, begin + count) of a tensor, row-major, as f32. InvalidArgument, by name, for a
  // type that is no floating-point number.
  virtual absl::Status Read(const std::string& tensor, int64_t begin, int64_t count,
                            float* out) const = 0;

  // Bytes [offset, offset + bytes) of a tensor of type U8, as they lie in the file.
  // InvalidArgument, by name, for others.
  virtual absl::Status ReadBytes(const std::string& tensor, int64_t offset, int64_t bytes,
                                 void* out) const;
};

// model.safetensors, or model.safetensors.index.json with its shards, or the one *.gguf in the
// folder. NotFound if there is none of them; InvalidArgument names file and tensor.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenWeights(FileSystem& files,
                                                         const std::string& folder);

// An adapter's, in the layout of the PEFT library: adapter_model.safetensors. Errors as above.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenAdapterWeights(FileSystem& files,
                                                                const std::string& folder);

// The text of the folder's config.json; of a GGUF without one it is made from its metadata.
absl::StatusOr<std::string> ReadModelConfig(FileSystem& files, const std::string& folder);

}  // namespace espalier
