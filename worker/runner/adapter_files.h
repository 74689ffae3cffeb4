// The artifacts of a served model's low-rank adapters, on their way into its graph and its program.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/lora.h"
#include "base/file_system.h"
#include "worker/executor/executor.h"
#include "worker/runner/weight_load_options.h"
#include "models/weights/weight_files.h"

namespace espalier {

class AdapterFiles {
 public:
  using Parameters = std::map<std::string, std::vector<AdapterMatrix>>;

  // Reads adapter_config.json of each artifact and opens its weights. Errors name the artifact.
  static absl::StatusOr<AdapterFiles> Open(
      FileSystem& files, const std::vector<std::string>& artifacts,
      const std::function<absl::StatusOr<std::string>(const std::string& artifact)>& folder);

  // AddLoraAdapters to the model; nothing is done without adapters.
  absl::StatusOr<Parameters> AddTo(const OpRegistry& registry, ServingModel* model) const;
  // Fills what a program has of the parameters that AddTo made: all of each, or one rank's part.
  // Errors name the tensor: one that there is not, or not so large, a type that is no
  // floating-point number, values that are no numbers.
  absl::Status Load(const Parameters& parameters, Executor& executor,
                    const WeightLoadOptions& loading = {}) const;

  // Where the adapters lie, in their order: what OpenFolders takes.
  const std::vector<std::string>& folders() const { return folders_; }
  // The weights alone, for Load: of adapters that somebody else has added to the model.
  static absl::StatusOr<AdapterFiles> OpenFolders(FileSystem& files,
                                                  const std::vector<std::string>& folders);

  int count() const { return static_cast<int>(weights_.size()); }

 private:
  std::vector<LoraAdapter> adapters_;
  std::vector<std::string> folders_;
  std::vector<std::unique_ptr<WeightFiles>> weights_;
};

}  // namespace espalier
