// Loads artifacts in Hugging Face layout for serving on a device of this process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/schema/registry.h"
#include "server/inference/model_server.h"
#include "worker/checkpoint/file_system.h"

namespace espalier {

struct ArtifactLoaderOptions {
  const OpRegistry* operators = nullptr;
  std::function<absl::StatusOr<std::string>(const std::string& artifact)> folder;
  int threads = 0;  // for kernels; 0: all cores
  int64_t memory_limit =
      0;  // bytes of one model with its KV cache; 0: three quarters of the machine's
};

// Folders of all families that ops/models knows, each model on a device of its own.
class ArtifactLoader : public ModelLoader {
 public:
  explicit ArtifactLoader(ArtifactLoaderOptions options) : options_(std::move(options)) {}
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                              const ServingSize& size, const Expansion& expansion,
                              const Formats& formats) override;

 private:
  struct Described {
    std::string folder;
    ModelDescription description;
  };
  absl::StatusOr<Described> Describe(const std::string& artifact) const;
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const Described& model,
                                                          const ServingShape& shape,
                                                          std::optional<WeightFormat> format,
                                                          EngineParts* parts,
                                                          int64_t* parameters) const;

  const ArtifactLoaderOptions options_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

}  // namespace espalier
