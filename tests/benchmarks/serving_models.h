// The models that serving benchmarks run: trained in this process, so that drafts are accepted as
// often as they would be, and loaded into runners that count what they do.
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

// Passes steps on and counts them.
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
  double weight_bytes = 0;  // read for every row of tokens: all but the embedding table
};

// LLaMA 1B's layers, so many of them, with a small vocabulary.
LlamaConfig WideLlama(int layers);

// "llm" or "ssm" (workload.h) after so many steps, the loss printed on stderr; nothing for 0 steps.
absl::StatusOr<Parameters> TrainForServing(const OpRegistry& registry, const std::string& name,
                                           int steps, int threads);

// Random weights where there are no parameters.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const std::string& name,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads);
// The same for any LLaMA. `swap_folder`: see CpuDeviceOptions.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const Parameters& parameters, const ServingShape& shape,
                                           int threads, const ServingLowering& lowering,
                                           const std::string& swap_folder = "");

// The same on that device, its matrices in `format`; weights are what FillAtRandom makes them.
absl::StatusOr<ServedModel> LoadForServing(const OpRegistry& registry, const LlamaConfig& config,
                                           const ServingShape& shape, WeightFormat format,
                                           const ServingLowering& lowering,
                                           std::unique_ptr<Device> device);

// Weights and KV caches get values at random, in any format.
absl::Status FillAtRandom(ServedModel& model);

// A model from its folder (Hugging Face's layout, as `espalier models download` writes it). Only
// the byte tokenizer is known here: FailedPrecondition for a model with another one.
absl::StatusOr<ServedModel> LoadFolderForServing(const OpRegistry& registry,
                                                 const std::string& folder,
                                                 const ServingShape& shape, int threads);

// The text on which they were trained (all but its last tenth), from the repository's root.
std::string ServingText();

}  // namespace espalier
