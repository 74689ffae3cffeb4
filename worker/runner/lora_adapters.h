// LoRA adapters of a served model: from their artifacts into its graph and its program.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "models/lora.h"
#include "models/weights/weight_files.h"
#include "worker/executor/executor.h"
#include "worker/runner/weight_load_options.h"

namespace espalier {

class LoraAdapters {
 public:
  using Parameters = std::map<std::string, std::vector<AdapterMatrix>>;

  // Reads adapter_config.json of each artifact and opens its weights. Errors name the artifact.
  static absl::StatusOr<LoraAdapters> Open(
      FileSystem& files, const std::vector<std::string>& artifacts,
      const std::function<absl::StatusOr<std::string>(const std::string& artifact)>& folder);

  // Adds the adapters to the model (AddLoraAdapters); does nothing without adapters.
  absl::StatusOr<Parameters> AddTo(const OpRegistry& registry, ServingModel* model) const;
  // Fills those of AddTo's parameters that the program has: whole, or one rank's shard. Errors name
  // the tensor: unknown, of the wrong size, not of a floating-point type, or with values that are
  // not finite.
  absl::Status Load(const Parameters& parameters, Executor& executor,
                    const WeightLoadOptions& loading = {}) const;

  // Folders of the adapters, in order, for OpenFolders.
  const std::vector<std::string>& folders() const { return folders_; }
  // Opens only the weights, for Load, of adapters that are already in the model's graph.
  static absl::StatusOr<LoraAdapters> OpenFolders(FileSystem& files,
                                                  const std::vector<std::string>& folders);

  int count() const { return static_cast<int>(weights_.size()); }

 private:
  std::vector<LoraAdapter> adapters_;
  std::vector<std::string> folders_;
  std::vector<std::unique_ptr<WeightFiles>> weights_;
};

}  // namespace espalier
