// Runs single operators and training steps of ONNX files on request, so that
// operators_vs_pytorch.py can alternate with PyTorch. One JSON request and reply per line:
//   {"op": "linear", "attributes": {...}, "inputs": [null | tensor, ...], "backward": bool}
//   {"model": "m.onnx", "data": "m.npz", "batch": 4, "loss": "..."}        (SGD with momentum 0.9)
//     {"ready": true}: selected for the following runs
//   {"run": 20}
//     {"seconds": of the 20 runs, "peak_bytes": of a model's device memory}
//   {"error": "..."}
// With "backward", runs the gradient only. See tests/conformance/json.h for tensors; "data" may
// be a number, the value of every element.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "ops/cpu/register_all.h"
#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"
#include "tests/benchmarks/workload.h"
#include "tests/conformance/json.h"
#include "tests/conformance/onnx_training.h"
#include "worker/device/device.h"

ABSL_FLAG(int, threads, 2, "");

namespace espalier {
namespace {

using conformance::HostTensor;
using conformance::json;

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string Run() = 0;                    // an error, or nothing
  virtual int64_t peak_bytes() const { return 0; }  // of a model
};

// A kernel and its operands.
class OperatorTask : public Task {
 public:
  // An error, or nothing.
  std::string Prepare(const OpRegistry& registry, const KernelRegistry& kernels,
                      const json& request) {
    const std::string op = request.at("op");
    const OpDef* def = registry.Find(op);
    if (def == nullptr) return "unknown operator " + op;
    NodeTypes types;
    types.attributes = conformance::AttributesFromJson(request.value("attributes", json::object()));
    std::vector<HostTensor> inputs;
    for (const json& value : request.at("inputs")) {
      inputs.push_back(Tensor(value));
      types.inputs.push_back(inputs.back().spec.type());
    }
    if (absl::Status status = InferNode(*def, &types); !status.ok()) {
      return std::string(status.message());
    }
    std::vector<HostTensor> outputs;
    for (const TensorType& type : types.outputs) outputs.push_back(Filled(type, 0.1));
    if (request.value("backward", false)) {
      if (!def->has_gradient()) return op + " has no gradient";
      return Make(kernels, op + "_grad", types.attributes, GradientOperands(*def, inputs, outputs),
                  GradientResults(*def->gradient, inputs));
    }
    return Make(kernels, op, types.attributes, std::move(inputs), std::move(outputs));
  }

  std::string Run() override { return kernel_->Run(args_).error; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  static HostTensor Filled(const TensorType& type, double value) {
    HostTensor t = HostTensor::Zeros(TensorSpec::Whole(type));
    for (int64_t i = 0; i < t.spec.num_elements(); ++i) gpu_check::SetValue(&t, i, value);
    return t;
  }

  static HostTensor Tensor(const json& value) {
    if (value.is_null() || !value.at("data").is_number()) return conformance::TensorFromJson(value);
    return Filled({DTypeFromName(value.at("dtype").get<std::string>()),
                   value.at("dims").get<std::vector<int64_t>>()},
                  value.at("data").get<double>());
  }

  static std::vector<HostTensor> GradientOperands(const OpDef& def,
                                                  const std::vector<HostTensor>& inputs,
                                                  const std::vector<HostTensor>& outputs) {
    std::vector<HostTensor> operands;
    for (int i : def.gradient->needs_inputs) {
      operands.push_back(i < static_cast<int>(inputs.size()) ? inputs[i] : HostTensor());
    }
    for (int k : def.gradient->needs_outputs) operands.push_back(outputs[k]);
    operands.insert(operands.end(), outputs.begin(), outputs.end());
    return operands;
  }

  static std::vector<HostTensor> GradientResults(const Gradient& gradient,
                                                 const std::vector<HostTensor>& inputs) {
    std::vector<HostTensor> results;
    for (int i : gradient.differentiable) {
      const bool there = i < static_cast<int>(inputs.size()) && inputs[i].present();
      results.push_back(there ? HostTensor::Zeros(inputs[i].spec) : HostTensor());
    }
    return results;
  }

  std::string Make(const KernelRegistry& kernels, const std::string& op,
                   const Attributes& attributes, std::vector<HostTensor> inputs,
                   std::vector<HostTensor> outputs) {
    KernelSpec spec{op, attributes, {}, {}, false};
    const auto take = [this](std::vector<HostTensor> tensors, std::vector<TensorSpec>* specs,
                             std::vector<TensorView>* views) {
      for (HostTensor& t : tensors) {
        specs->push_back(t.spec);
        if (!t.present()) {
          views->push_back({nullptr, t.spec});
          continue;
        }
        // Aligned, as the executor's arena is.
        const size_t bytes = (t.bytes.size() + 63) / 64 * 64;
        blocks_.emplace_back(std::aligned_alloc(64, bytes));
        std::copy(t.bytes.begin(), t.bytes.end(), static_cast<uint8_t*>(blocks_.back().get()));
        views->push_back({blocks_.back().get(), t.spec});
      }
    };
    take(std::move(inputs), &spec.inputs, &inputs_);
    take(std::move(outputs), &spec.outputs, &outputs_);
    std::string error;
    kernel_ = kernels.Create(spec, &error);
    if (kernel_ == nullptr) return error;
    blocks_.emplace_back(std::aligned_alloc(64, (kernel_->workspace_bytes() + 64) / 64 * 64));
    args_.inputs = inputs_;
    args_.outputs = outputs_;
    args_.workspace = blocks_.back().get();
    return "";
  }

  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::vector<TensorView> inputs_, outputs_;
  std::unique_ptr<Kernel> kernel_;
  KernelArgs args_;
};

class ModelTask : public Task {
 public:
  std::string Prepare(const json& request, int threads) {
    conformance::OnnxTrainingOptions options;
    options.model = request.at("model");
    options.data = request.at("data");
    options.batch = request.at("batch");
    options.loss = request.at("loss");
    options.threads = threads;
    options.optimizer.set_name("sgd");
    (*options.optimizer.mutable_attributes())["momentum"].set_f(0.9);
    options.optimizer.mutable_learning_rate()->set_peak(1e-4);
    auto training = conformance::OnnxTraining::Create(options);
    if (!training.ok()) return std::string(training.status().message());
    training_ = *std::move(training);
    return "";
  }

  std::string Run() override {
    const absl::StatusOr<StepResult> done = training_->Step();
    return done.ok() ? "" : std::string(done.status().message());
  }
  int64_t peak_bytes() const override { return training_->measured_peak_bytes(); }

 private:
  std::unique_ptr<conformance::OnnxTraining> training_;
};

void Serve(int threads) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  KernelRegistry kernels;
  RegisterCpuKernels(kernels);
  const std::unique_ptr<Device> device = NewCpuDevice({threads, 0});
  const absl::Status entered = device->EnterThread(KernelThreads::kOpenMp);
  std::unique_ptr<Task> task;
  conformance::Serve([&](const json& request) -> json {
    if (!entered.ok()) return {{"error", std::string(entered.message())}};
    std::string error;
    if (request.contains("run")) {
      if (task == nullptr) return {{"error", "nothing to run"}};
      const double start = Seconds();
      for (int i = request.at("run"); i > 0 && error.empty(); --i) error = task->Run();
      if (!error.empty()) return {{"error", error}};
      return {{"seconds", Seconds() - start}, {"peak_bytes", task->peak_bytes()}};
    }
    task.reset();
    if (request.contains("model")) {
      auto model = std::make_unique<ModelTask>();
      error = model->Prepare(request, threads);
      task = std::move(model);
    } else {
      auto op = std::make_unique<OperatorTask>();
      error = op->Prepare(registry, kernels, request);
      task = std::move(op);
    }
    if (error.empty()) return {{"ready", true}};
    task.reset();
    return {{"error", error}};
  });
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Serve(absl::GetFlag(FLAGS_threads));
}
