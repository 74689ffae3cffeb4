// The tensors of a model's folder in any supported format: safetensors (one file, or shards with an
// index), GGUF (one file, or splits) or FlexFlow's raw files. Files are not trusted.
//
// Files are read in bounded chunks (pread), not mapped: chunks go directly to their destination, so
// loading needs no memory beyond the model's own, and a file truncated or modified meanwhile is an
// error instead of a SIGBUS.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ops/tensor/shape.h"

namespace espalier {

class WeightFiles {
 public:
  struct Tensor {
    Dims dims;
    std::string dtype;     // the file's name for it: "BF16"
    std::string file;      // path
    bool readable = true;  // as f32
  };

  // A tensor stored as in memory: elements of a supported type, row-major.
  struct Place {
    std::shared_ptr<const ReadableFile> file;
    int64_t offset = 0;
    DType dtype = DType::kInvalid;
  };

  virtual ~WeightFiles() = default;

  virtual const std::map<std::string, Tensor>& tensors() const = 0;

  // Reads elements [begin, begin + count) of a tensor, row-major, as f32. Returns InvalidArgument,
  // by name, for a type that is not floating-point.
  virtual absl::Status Read(const std::string& tensor, int64_t begin, int64_t count,
                            float* out) const = 0;

  // Reads bytes [offset, offset + bytes) of a tensor of type U8. Returns InvalidArgument, by name,
  // for others.
  virtual absl::Status ReadBytes(const std::string& tensor, int64_t offset, int64_t bytes,
                                 void* out) const;

  // Whether the tensor's rows are made of Q8_0 blocks (ops/quantized/pack.h), so that ReadQ8Blocks
  // can read it.
  virtual bool HasQ8Blocks(const std::string& tensor) const { return false; }
  // Reads blocks [begin, begin + count) of such a tensor, row-major, kQ8BlockBytes each.
  virtual absl::Status ReadQ8Blocks(const std::string& tensor, int64_t begin, int64_t count,
                                    uint8_t* out) const;

  // Returns where the tensor is if the file stores it as memory does; else nullopt.
  virtual std::optional<Place> PlaceOf(const std::string& tensor) const { return std::nullopt; }
};

// By tensor name.
using TensorShapes = std::map<std::string, Dims>;

// Opens model.safetensors, or model.safetensors.index.json with its shards, or the only *.gguf of
// the folder (except mmproj*.gguf), or NAME-00001-of-0000N.gguf with its other splits, or
// FlexFlow's raw files (flexflow_weights.h), whose types and shapes come from `expected`. Returns
// NotFound if there are none; InvalidArgument naming file and tensor.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenWeights(FileSystem& files,
                                                         const std::string& folder,
                                                         const TensorShapes& expected = {});

// Opens an adapter in PEFT's layout: adapter_model.safetensors. Errors are those of OpenWeights.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenAdapterWeights(FileSystem& files,
                                                                const std::string& folder);

// Returns the folder's config.json, or one made from the metadata of a GGUF without it.
absl::StatusOr<std::string> ReadModelConfig(FileSystem& files, const std::string& folder);

// Texts of tokenizer.json and tokenizer_config.json.
struct TokenizerTexts {
  std::string tokenizer, config;
};

// Converts the tokenizer of the folder's GGUF (gguf_tokenizer.h); empty if there is none.
absl::StatusOr<TokenizerTexts> ReadModelTokenizer(FileSystem& files, const std::string& folder);

}  // namespace espalier
