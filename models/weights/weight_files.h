// The tensors of a model's folder, whatever files they lie in: safetensors (one file or shards with
// an index), GGUF (one file, or those that it is cut into), or FlexFlow's raw files. Files are not
// trusted.
//
// They are read in bounded pieces (pread) rather than mapped: the pieces go straight to where they
// are wanted, so that loading takes no memory beside the model's own, and a file that is cut or
// written to meanwhile is an error, where touching a mapping would end the process (SIGBUS).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"
#include "base/file_system.h"

namespace espalier {

class WeightFiles {
 public:
  struct Tensor {
    Dims dims;
    std::string dtype;     // as the file calls it: "BF16"
    std::string file;      // path
    bool readable = true;  // as f32
  };

  // Elements of one of our types, row-major, as in memory.
  struct Place {
    std::shared_ptr<const ReadableFile> file;
    int64_t offset = 0;
    DType dtype = DType::kInvalid;
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

  // Where a tensor lies that the file holds as memory would; nullopt for others.
  virtual std::optional<Place> PlaceOf(const std::string& tensor) const { return std::nullopt; }
};

// By tensor.
using TensorShapes = std::map<std::string, Dims>;

// model.safetensors, or model.safetensors.index.json with its shards, or the one *.gguf (but for
// mmproj*.gguf) in the folder, or NAME-00001-of-0000N.gguf with all others of the N, or FlexFlow's
// raw files (flexflow_weights.h), which do not say what they hold: `expected` does. NotFound if
// there is none of them; InvalidArgument names file and tensor.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenWeights(FileSystem& files,
                                                         const std::string& folder,
                                                         const TensorShapes& expected = {});

// An adapter's, in the layout of the PEFT library: adapter_model.safetensors. Errors as above.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenAdapterWeights(FileSystem& files,
                                                                const std::string& folder);

// The text of the folder's config.json; of a GGUF without one it is made from its metadata.
absl::StatusOr<std::string> ReadModelConfig(FileSystem& files, const std::string& folder);

// The texts of tokenizer.json and tokenizer_config.json.
struct TokenizerTexts {
  std::string tokenizer, config;
};

// Those that the folder's GGUF stands for (gguf_tokenizer.h); empty if there is none, or none in
// it.
absl::StatusOr<TokenizerTexts> ReadModelTokenizer(FileSystem& files, const std::string& folder);

}  // namespace espalier
