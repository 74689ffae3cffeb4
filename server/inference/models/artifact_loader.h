// Loads artifacts in Hugging Face layout for serving, on a device of this process or on workers.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "models/weights/native_format.h"
#include "ops/schema/registry.h"
#include "planner/planner.h"
#include "server/artifacts/artifact_store.h"
#include "server/inference/models/model_server.h"
#include "server/inference/remote/remote_model_runner.h"
#include "server/inference/remote/serving_session.h"
#include "worker/device/memory_budget.h"
#include "worker/runner/lora_adapters.h"

namespace espalier {

struct ArtifactLoaderOptions {
  const OpRegistry* operators = nullptr;
  // Returns the artifact's folder and keeps it. Served models hold their folders: workers that
  // reconnect load from them again.
  std::function<absl::StatusOr<ArtifactFolder>(const std::string& artifact)> folder;
  int threads = 0;  // for kernels; 0: all cores
  // Memory budget of all models in this process, KV caches included; 0: DefaultMemoryLimit.
  int64_t memory_limit = 0;
  std::string swap_dir;    // for weights streamed from disk; empty: from memory
  ServingCluster cluster;  // without workers, models run in this process only
  // Returns the communication measured between workers on these devices. May be null or return
  // null.
  std::function<std::shared_ptr<const CommunicationModel>(const std::vector<v1::Device>&)>
      communication;
};

// Loads folders of all families that models/ knows. Each model in this process has its own
// device; all share one memory budget.
class ArtifactLoader : public ModelLoader {
 public:
  explicit ArtifactLoader(ArtifactLoaderOptions options);
  // If the KV cache size is not given and the size that covers all requests does not fit the memory
  // of this process or the workers, halves it until it fits. Returns ResourceExhausted if not even
  // one sequence fits.
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                              const ServingSize& size, const Expansion& expansion,
                              const Formats& formats, const Placement& placement) override;

  // The budget of all models in this process.
  const std::shared_ptr<MemoryBudget>& memory() const { return memory_; }

  // Describes an artifact without reading its weights. Returns the same errors as Load.
  absl::StatusOr<ModelDescription> Describe(const std::string& artifact) const;

 private:
  struct Described {
    ArtifactFolder folder;
    LanguageModel language_model;
    // The tokenizer takes a while: a thread makes it while the weights are read.
    std::shared_future<absl::StatusOr<ModelDescription>> description;

    // Whether the description has ended with an error by now.
    bool IsKnownToFail() const {
      return description.wait_for(std::chrono::seconds(0)) == std::future_status::ready &&
             !description.get().ok();
    }
  };
  // Describes a version of an artifact; errors call it `artifact`.
  absl::StatusOr<Described> BeginToDescribe(const std::string& artifact,
                                            const std::string& version) const;
  // One of the models that are loaded together.
  struct ModelToLoad {
    std::string artifact;
    Described model;
    ServingShape shape;
    WeightFormat format = WeightFormat::kF32;  // the most frequent format of its weights
    std::shared_ptr<const NativeFormats> own;  // per weight; null: uniform, or packed
  };
  absl::StatusOr<Loaded> LoadSized(const std::vector<ModelToLoad>& parts,
                                   const Expansion& expansion, const Formats& formats,
                                   const Placement& placement);
  absl::StatusOr<std::vector<ModelToLoad>> DescribeAll(const std::string& llm,
                                                       const std::vector<std::string>& ssms,
                                                       const ServingSize& size,
                                                       const Expansion& expansion,
                                                       const Formats& formats) const;
  // Sets `adapted` to the parameters that `adapters` fill.
  absl::StatusOr<ServingModel> Build(const ModelToLoad& part, const ServingShape& shape,
                                     const LoraAdapters& adapters,
                                     LoraAdapters::Parameters* adapted, int64_t* parameters) const;
  // Chooses where the models run; sets placements and candidates.
  absl::Status DecidePlacement(const std::vector<ModelToLoad>& parts, const LoraAdapters& adapters,
                               const Expansion& expansion, const Placement& placement,
                               int64_t resident_weight_bytes, Loaded* loaded);
  // Returns this process as a device, measured once.
  absl::StatusOr<v1::Device> MeasureThisProcess();
  struct Local {
    const LoraAdapters& adapters;
    const LoraAdapters::Parameters& adapted;
    int64_t resident_weight_bytes = 0;
  };
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeLocal(const ModelToLoad& part,
                                                         const ServingModel& serving,
                                                         const Local& local,
                                                         EngineParts* parts) const;
  struct Remote {
    std::string name;  // of the model on its workers
    const v1::ModelPlacement& place;
    const LoraAdapters& adapters;
    const LoraAdapters::Parameters& adapted;
    int64_t resident_weight_bytes = 0;
    int concurrent_steps = 1;
    std::shared_ptr<ServingGroup> group;
    bool drafts = false;
    bool prefers_shared = false;
    bool may_wait = false;
  };
  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> MakeRemote(const ModelToLoad& part,
                                                                ServingModel serving,
                                                                const Remote& remote,
                                                                EngineParts* parts) const;

  const ArtifactLoaderOptions options_;
  const std::shared_ptr<MemoryBudget> memory_;  // shared by all models in this process
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::optional<v1::Device> this_process_;
};

}  // namespace espalier
