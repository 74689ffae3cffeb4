// Loads artifacts in Hugging Face layout for serving: on a device of this process, or on workers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/schema/registry.h"
#include "server/inference/model_server.h"
#include "server/inference/serving_session.h"
#include "worker/checkpoint/file_system.h"
#include "worker/runner/adapter_files.h"

namespace espalier {

struct ArtifactLoaderOptions {
  const OpRegistry* operators = nullptr;
  std::function<absl::StatusOr<std::string>(const std::string& artifact)> folder;
  int threads = 0;  // for kernels; 0: all cores
  int64_t memory_limit =
      0;                 // bytes of one model with its KV cache; 0: three quarters of the machine's
  std::string swap_dir;  // where weights lie that stream in; empty: in memory
  ServingCluster cluster;  // without workers: models are served in this process only
};

// Folders of all families that ops/models knows, each model on a device of its own.
class ArtifactLoader : public ModelLoader {
 public:
  explicit ArtifactLoader(ArtifactLoaderOptions options) : options_(std::move(options)) {}
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                              const ServingSize& size, const Expansion& expansion,
                              const Formats& formats, const Placement& placement) override;

  struct Described {
    std::string folder;
    ModelDescription description;
  };
  // What can be known without the weights. Errors as Load's.
  absl::StatusOr<Described> Describe(const std::string& artifact) const;

 private:
  // `adapted`: the parameters that `adapters` fill.
  absl::StatusOr<ServingModel> Build(const Described& model, const ServingShape& shape,
                                     std::optional<WeightFormat> format,
                                     const AdapterFiles& adapters,
                                     AdapterFiles::Parameters* adapted, int64_t* parameters) const;
  struct Local {
    const AdapterFiles& adapters;
    const AdapterFiles::Parameters& adapted;
    int64_t resident_weight_bytes = 0;
  };
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeLocal(const Described& model,
                                                         const ServingModel& serving,
                                                         const Local& local,
                                                         EngineParts* parts) const;
  // Sets parts.llm and `describe`.
  absl::Status MakeRemote(const Described& model, ServingModel serving, const ServingShape& shape,
                          const Placement& placement, Loaded* loaded) const;

  const ArtifactLoaderOptions options_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

}  // namespace espalier
