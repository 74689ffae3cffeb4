// Fuzzes GGUF: any bytes are a model or an error, in header, tensor values, configuration, graph
// and tokenizer.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/weights/gguf.h"
#include "models/weights/gguf_model.h"
#include "models/weights/gguf_tokenizer.h"
#include "serving/tokenizer/tokenizer_files.h"
#include "tests/fuzz/memory_file_system.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  MemoryFileSystem files(std::string(reinterpret_cast<const char*>(data), size));
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(files, "x");
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    const int64_t count = NumElements(tensor.dims);
    std::vector<float> values(static_cast<size_t>(count));
    if (!(*file)->Read(tensor, 0, count, values.data()).ok()) __builtin_trap();
    if (!(*file)->Read(tensor, count / 2, count - count / 2, values.data()).ok()) __builtin_trap();
    if ((*file)->Read(tensor, 1, count, values.data()).ok()) __builtin_trap();
  }
  absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenGgufModel(files, "x");
  if (weights.ok()) {
    for (const auto& [name, tensor] : (*weights)->tensors()) {
      std::vector<float> values(static_cast<size_t>(NumElements(tensor.dims)));
      if (!(*weights)->Read(name, 0, NumElements(tensor.dims), values.data()).ok()) {
        __builtin_trap();
      }
    }
  }
  absl::StatusOr<std::string> config = GgufConfig(files, "x");
  if (config.ok()) (void)ReadModel(*config);
  absl::StatusOr<TokenizerTexts> texts = GgufTokenizer(files, "x");
  if (texts.ok() && !texts->tokenizer.empty()) {
    TokenizerFiles tokenizer;
    tokenizer.tokenizer_json = texts->tokenizer;
    tokenizer.tokenizer_config_json = texts->config;
    (void)LoadTokenizer(tokenizer);
  }
  return 0;
}
