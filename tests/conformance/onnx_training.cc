#include "tests/conformance/onnx_training.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/cpu/workspace/kernel_workspace.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/planner.h"
#include "server/jobs/add_loss_and_metrics.h"
#include "server/jobs/prepare_job.h"
#include "storage/dataset.h"

namespace espalier::conformance {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

absl::Status At(const char* stage, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(stage, ": ", std::string(status.message())));
}

// Reads examples in the order of the file, like the reference program.
class InOrder : public BatchSource {
 public:
  InOrder(std::shared_ptr<const Dataset> dataset, int64_t batch)
      : dataset_(std::move(dataset)), batch_(batch) {}

  absl::Status Prepare(const std::string& column, const TensorSpec& spec) override {
    absl::StatusOr<const Column*> found = dataset_->Find(column);
    if (!found.ok()) return found.status();
    const Dims example(spec.global.begin() + 1, spec.global.end());
    if ((*found)->example.dims != example) {
      return absl::InvalidArgumentError(absl::StrCat("column '", column, "' has examples of shape ",
                                                     ToString((*found)->example.dims), ", not ",
                                                     ToString(example)));
    }
    return Dataset::CheckConversion(**found, spec.dtype);
  }

  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override {
    absl::StatusOr<const Column*> found = dataset_->Find(column);
    if (!found.ok()) return found.status();
    const Dims start(spec.offset.begin() + 1, spec.offset.end());
    const Dims size(spec.dims.begin() + 1, spec.dims.end());
    const int64_t row_bytes = spec.dims[0] == 0 ? 0 : spec.bytes() / spec.dims[0];
    for (int64_t row = 0; row < spec.dims[0]; ++row) {
      const int64_t example = (step * batch_ + spec.offset[0] + row) % dataset_->examples();
      absl::Status read = dataset_->Read(**found, example, start, size, spec.dtype,
                                         static_cast<char*>(host) + row * row_bytes);
      if (!read.ok()) return read;
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const Dataset> dataset_;
  const int64_t batch_;
};

struct DeviceProgram {
  v1::Program program;
  int64_t predicted_bytes = 0;  // by the plan
};

absl::StatusOr<DeviceProgram> SingleDeviceProgram(const OpRegistry& registry, const Graph& graph,
                                                  int64_t batch, const v1::Optimizer& optimizer,
                                                  const v1::Device& device) {
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &graph;
  problem.batch_size = batch;
  problem.machine.devices.push_back(device);
  problem.optimizer = optimizer;
  problem.cost = &cost;
  CpuKernelWorkspace kernels;
  problem.workspace = [&kernels](const KernelSpec& spec, const v1::Device& on) {
    return kernels.Bytes(spec, on.threads());
  };
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  if (!plan.ok()) return At("plan", plan.status());
  LoweringOptions lowering;
  lowering.optimizer = optimizer;
  lowering.workspace = problem.workspace;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry, graph, *plan, lowering);
  if (!lowered.ok()) return At("lowering", lowered.status());
  return DeviceProgram{std::move(lowered->training[0]), plan->prediction().peak_bytes(0)};
}

// Adds a buffer beyond the program's, and the instruction that copies `source` there.
int AddCopy(const std::string& name, int source, v1::Program* program,
            v1::Instruction* instruction) {
  const int index = program->buffers_size();
  v1::Buffer* buffer = program->add_buffers();
  *buffer->mutable_spec() = program->buffers(source).spec();
  buffer->set_name(name);
  buffer->set_kind(v1::PERSISTENT);
  buffer->set_offset_bytes((program->arena_bytes() + 63) / 64 * 64);
  int64_t bytes = 8;  // of the widest element
  v1::CopyInstruction* copy = instruction->mutable_copy();
  copy->set_source(source);
  copy->set_destination(index);
  for (int64_t dim : buffer->spec().dims()) {
    bytes *= dim;
    copy->add_source_start(0);
    copy->add_destination_start(0);
    copy->add_size(dim);
  }
  program->set_arena_bytes(buffer->offset_bytes() + bytes);
  instruction->set_node(name);
  return index;
}

// Scratch memory is reused within a step, so observed values are copied where they are read: the
// prediction before the loss, each gradient before its update.
std::map<std::string, int> Observe(const std::string& loss, v1::Program* program) {
  std::map<std::string, int> observed;
  v1::Program out = *program;
  out.clear_instructions();
  for (const v1::Instruction& instruction : program->instructions()) {
    if (instruction.has_compute() && instruction.compute().op() == loss &&
        observed.count("prediction") == 0) {
      observed["prediction"] =
          AddCopy("prediction", instruction.compute().inputs(0), &out, out.add_instructions());
    }
    if (instruction.has_update() && !instruction.update().has_result()) {
      const std::string name =
          absl::StrCat("gradient.", out.buffers(instruction.update().parameter()).name());
      observed[name] = AddCopy(name, instruction.update().gradient(), &out, out.add_instructions());
    }
    *out.add_instructions() = instruction;
  }
  *program = std::move(out);
  return observed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OnnxTraining>> OnnxTraining::Create(
    const OnnxTrainingOptions& options) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<std::string> onnx = ReadFile(options.model);
  if (!onnx.ok()) return onnx.status();
  ImportOptions importing;
  importing.evaluator = CpuEvaluator();
  absl::StatusOr<Graph> graph = ImportOnnx(registry, *onnx, importing);
  if (!graph.ok()) return At("import", graph.status());
  LabelColumns labels;
  labels.classes = DType::kI64;
  absl::Status status =
      AddLossAndMetrics(registry, {{{options.loss}}, {}}, labels, options.batch, &*graph).status();
  if (!status.ok()) return At("loss", status);
  status = BindAndInfer(registry, options.batch, &*graph);
  if (!status.ok()) return At("shapes", status);
  const size_t imported = graph->nodes().size();
  graph = GraphToPlan(registry, *graph, DType::kF32);
  if (!graph.ok()) return At("fusion", graph.status());

  absl::StatusOr<std::string> npz = ReadFile(options.data);
  if (!npz.ok()) return npz.status();
  absl::StatusOr<std::shared_ptr<const Dataset>> dataset = Dataset::FromNpz(*npz, 0);
  if (!dataset.ok()) return At("data", dataset.status());

  std::unique_ptr<OnnxTraining> training(new OnnxTraining);
  training->device_ = NewCpuDevice({options.threads, 0});
  training->source_ = std::make_unique<InOrder>(*dataset, options.batch);
  status = training->device_->EnterThread(KernelThreads::kOpenMp);
  if (!status.ok()) return status;
  absl::StatusOr<DeviceProgram> made = SingleDeviceProgram(
      registry, *graph, options.batch, options.optimizer, training->device_->description());
  if (!made.ok()) return made.status();
  training->predicted_peak_bytes_ = made->predicted_bytes;
  // What is observed takes memory that the plan does not have.
  const int64_t planned = made->program.arena_bytes();
  if (options.observe) training->observed_ = Observe(options.loss, &made->program);
  training->observed_bytes_ = made->program.arena_bytes() - planned;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(
      made->program, {.device = training->device_.get(), .source = training->source_.get()});
  if (!executor.ok()) return At("executor", executor.status());
  training->executor_ = *std::move(executor);
  training->graph_ = *std::move(graph);
  training->imported_ = imported;
  return training;
}

absl::StatusOr<StepResult> OnnxTraining::Step(bool profile) {
  return executor_->Step(step_++, profile);
}

absl::StatusOr<NamedTensor> OnnxTraining::Read(int buffer) {
  NamedTensor tensor{executor_->spec(buffer).type(), std::string()};
  tensor.bytes.resize(executor_->spec(buffer).bytes());
  absl::Status read =
      executor_->ReadBuffer(buffer, tensor.bytes.data(), static_cast<int64_t>(tensor.bytes.size()));
  if (!read.ok()) return read;
  return tensor;
}

absl::StatusOr<std::map<std::string, NamedTensor>> OnnxTraining::Observed() {
  std::map<std::string, NamedTensor> result;
  for (const auto& [name, buffer] : observed_) {
    absl::StatusOr<NamedTensor> tensor = Read(buffer);
    if (!tensor.ok()) return tensor.status();
    result[name] = *std::move(tensor);
  }
  return result;
}

absl::StatusOr<std::map<std::string, NamedTensor>> OnnxTraining::Parameters() {
  std::map<std::string, NamedTensor> result;
  for (int b = 0; b < executor_->num_buffers(); ++b) {
    if (executor_->buffer(b).kind() != v1::PARAMETER_SHARD || executor_->is_alias(b)) continue;
    absl::StatusOr<NamedTensor> tensor = Read(b);
    if (!tensor.ok()) return tensor.status();
    result[absl::StrCat("parameter.", executor_->tensor_name(b))] = *std::move(tensor);
  }
  return result;
}

}  // namespace espalier::conformance
