#include "server/inference/prediction/graph_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "server/inference/prediction/row_independence.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int64_t kCheckedBatch = 3;
constexpr int64_t kPartBytes = 16 << 20;  // of a parameter that is being read

class GraphRunner : public BatchRunner {
 public:
  GraphRunner(GraphSignature signature, std::unique_ptr<Device> device)
      : signature_(std::move(signature)), device_(std::move(device)) {}

  const GraphSignature& signature() const override { return signature_; }
  int64_t max_batch() const override { return programs_.front().batch; }

  // Larger batches come first: the others use their parameters and memory.
  absl::Status Add(const v1::Program& program, int64_t batch) {
    ExecutorOptions options;
    options.device = device_.get();
    options.training = false;
    if (!programs_.empty()) options.share_parameters = programs_.front().executor.get();
    absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(program, options);
    if (!executor.ok()) return executor.status();
    Program made{batch, *std::move(executor), {}, {}};
    for (const GraphTensorType& input : signature_.inputs) {
      made.inputs.push_back(made.executor->FindBuffer(input.name));
    }
    for (const GraphTensorType& output : signature_.outputs) {
      made.outputs.push_back(program.outputs().at(output.name));
    }
    programs_.push_back(std::move(made));
    return absl::OkStatus();
  }

  absl::Status ReadParameters(const ParameterReader& read) {
    return read(*programs_.front().executor);
  }

  absl::Status Run(const std::vector<BatchPart>& parts) override {
    int64_t examples = 0;
    for (const BatchPart& part : parts) examples += part.examples;
    if (examples < 1 || examples > max_batch()) {
      return absl::InternalError(
          absl::StrCat("a pass of ", examples, " examples, at most ", max_batch()));
    }
    size_t smallest = programs_.size() - 1;
    while (programs_[smallest].batch < examples) --smallest;
    Program& program = programs_[smallest];
    if (absl::Status s = device_->EnterThread(KernelThreads::kOpenMp); !s.ok()) return s;
    for (size_t i = 0; i < signature_.inputs.size(); ++i) {
      const int64_t bytes = signature_.inputs[i].example.bytes();
      passing_.clear();
      for (const BatchPart& part : parts) {
        passing_.append((*part.inputs)[i], static_cast<size_t>(part.first * bytes),
                        static_cast<size_t>(part.examples * bytes));
      }
      for (int64_t row = examples; row < program.batch; ++row) {
        passing_.append(passing_, 0, static_cast<size_t>(bytes));
      }
      absl::Status written = program.executor->WriteBuffer(program.inputs[i], passing_.data(),
                                                           static_cast<int64_t>(passing_.size()));
      if (!written.ok()) return written;
    }
    if (absl::Status s = program.executor->Step(0).status(); !s.ok()) return s;
    for (size_t o = 0; o < signature_.outputs.size(); ++o) {
      const auto bytes = static_cast<size_t>(signature_.outputs[o].example.bytes());
      passing_.resize(static_cast<size_t>(examples) * bytes);
      absl::Status read = program.executor->ReadBuffer(program.outputs[o], passing_.data(),
                                                       static_cast<int64_t>(passing_.size()));
      if (!read.ok()) return read;
      const char* at = passing_.data();
      for (const BatchPart& part : parts) {
        const size_t size = static_cast<size_t>(part.examples) * bytes;
        std::memcpy((*part.outputs)[o].data() + static_cast<size_t>(part.first) * bytes, at, size);
        at += size;
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Program {
    int64_t batch = 0;
    std::unique_ptr<Executor> executor;
    std::vector<int> inputs, outputs;  // buffers, as in the signature
  };

  const GraphSignature signature_;
  const std::unique_ptr<Device> device_;
  std::vector<Program> programs_;  // by falling batch
  std::string passing_;
};

absl::Status MixesExamples(const std::string& node_or_output, bool fixed_batch) {
  return absl::InvalidArgumentError(absl::StrCat(
      node_or_output,
      " depends on the other examples of a batch, or the place among them: requests would change "
      "each other's answers; if each example is to be computed alone, ",
      fixed_batch ? "export it for any batch and " : "", "serve it with --max-batch=1"));
}

bool Has(const Graph& graph, const std::string& op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& node) { return node.op == op; });
}

}  // namespace

ParameterReader ParametersOfFolder(std::string folder) {
  return [folder = std::move(folder)](Executor& executor) {
    // The folder also has what only the loss depends on.
    WeightMap by_name;
    by_name.ignored = {""};
    return LoadWeights(folder, by_name, executor);
  };
}

ParameterReader ParametersOfValues(std::vector<InitialValue> values) {
  return [values = std::move(values)](Executor& executor) -> absl::Status {
    std::string part;
    for (const InitialValue& value : values) {
      const int buffer = executor.FindBuffer(value.name);
      if (buffer < 0) continue;
      const int64_t bytes = value.type.bytes();
      for (int64_t offset = 0; offset < bytes; offset += kPartBytes) {
        part.resize(static_cast<size_t>(std::min(kPartBytes, bytes - offset)));
        const auto size = static_cast<int64_t>(part.size());
        absl::Status status = value.read(offset, size, part.data());
        if (status.ok()) status = executor.WriteBuffer(buffer, part.data(), size, offset);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<std::unique_ptr<BatchRunner>> MakeGraphRunner(const OpRegistry& registry,
                                                             const PredictionGraph& prediction,
                                                             const ParameterReader& read,
                                                             int64_t max_batch,
                                                             std::unique_ptr<Device> device) {
  std::vector<int64_t> sizes;
  if (prediction.fixed_batch > 0) {
    sizes = {prediction.fixed_batch};
  } else {
    for (int64_t size = 1; size < max_batch; size *= 2) sizes.push_back(size);
    sizes.push_back(max_batch);
  }
  auto runner = std::make_unique<GraphRunner>(prediction.signature, std::move(device));
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const absl::StatusOr<v1::Program> program = LowerPrediction(registry, prediction, *size);
    if (!program.ok()) return program.status();
    if (absl::Status s = runner->Add(*program, *size); !s.ok()) return s;
  }
  if (absl::Status s = runner->ReadParameters(read); !s.ok()) return s;
  // Mixtures of experts with a capacity drop what others of the pass leave no room for.
  if (runner->max_batch() > 1 && !Has(prediction.graph, "group_by")) {
    if (!prediction.whole_batch.empty()) return MixesExamples(prediction.whole_batch, false);
    const std::string output =
        OutputThatMixesExamples(*runner, std::min(runner->max_batch(), kCheckedBatch),
                                Has(prediction.graph, "random_like"));
    if (!output.empty()) {
      return MixesExamples(absl::StrCat("output '", output, "'"), prediction.fixed_batch > 0);
    }
  }
  return runner;
}

}  // namespace espalier
