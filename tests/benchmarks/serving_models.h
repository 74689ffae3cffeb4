// Models for serving benchmarks. They are trained in this process, so that the acceptance rate of
// drafts is realistic, and loaded into runners that count steps.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/llama.h"
#include "ops/quantized/quantize_graph.h"
#include "planner/planner.h"
#include "serving/runner/model_runner.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {

using Parameters = std::map<std::string, std::vector<char>>;

// Forwards steps to another runner and counts them.
class CountingRunner : public ModelRunner {
 public:
  explicit CountingRunner(ModelRunner* inner) : inner_(inner) {}
  RunnerLimits limits() const override { return inner_->limits(); }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  void Clear() {
    seconds = steps = rows = 0;
    widest = {};
  }

  double seconds = 0, steps = 0, rows = 0;
  RunnerBatch widest;

 private:
  ModelRunner* inner_;
};

struct ServedModel {
  std::unique_ptr<Device> device;
  std::unique_ptr<ProgramModelRunner> runner;
  std::unique_ptr<CountingRunner> counting;
  double weight_bytes = 0;  // read per step: all weights except the embedding table
};

// Returns a LLaMA with `layers` layers of the size of LLaMA 1B's and a small vocabulary.
LlamaConfig WideLlama(int layers);

// Trains "llm" or "ssm" (workload.h) and prints the loss to stderr. Returns no parameters for 0
// steps.
absl::StatusOr<Parameters> TrainForServing(const OpRegistry& registry, const std::string& name,
                                           int steps, int threads);

// Loads a model. Empty `parameters` mean random weights.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const std::string& name,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads);
// As above, for any LLaMA. `swap_folder`: see CpuDeviceOptions.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads, const ServingLowering& lowering,
                                           const std::string& swap_folder = "");

// As above, on `device`, with matrices in `format` and weights from FillAtRandom.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const ServingShape& shape, WeightFormat format,
                                           const ServingLowering& lowering,
                                           std::unique_ptr<Device> device);

// Fills weights and KV caches with random values, in any format.
absl::Status FillAtRandom(ServedModel& model);

// Loads a model folder in Hugging Face layout (as `espalier models download` writes it). Returns
// FailedPrecondition if its tokenizer is not the byte tokenizer.
absl::StatusOr<ServedModel> LoadFolderForServing(const OpRegistry& registry,
                                                 const std::string& folder,
                                                 const ServingShape& shape, int threads);

// Returns the training text; the last tenth is held out. REQUIRES: runs in the repository's root.
std::string ServingText();

}  // namespace espalier
