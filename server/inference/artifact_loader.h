// Loads artifacts in Hugging Face layout for serving on a device of this process.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "ops/schema/registry.h"
#include "server/inference/model_server.h"

namespace espalier {

struct ArtifactLoaderOptions {
  const OpRegistry* operators = nullptr;
  std::function<absl::StatusOr<std::string>(const std::string& artifact)> folder;
  int threads = 0;           // for kernels; 0: all cores
  int64_t memory_limit = 0;  // bytes of one model with its KV cache; 0: three quarters of the machine's
};

// LLaMA-family folders with the byte-level tokenizer. The KV cache holds max_requests sequences of
// full length and their trees.
class ArtifactLoader : public ModelLoader {
 public:
  explicit ArtifactLoader(ArtifactLoaderOptions options) : options_(std::move(options)) {}
  absl::StatusOr<Model> Load(const std::string& artifact, const Limits& limits) override;

 private:
  const ArtifactLoaderOptions options_;
};

}  // namespace espalier
