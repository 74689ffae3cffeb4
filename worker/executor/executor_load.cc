// Executor::State: loading, which plans memory, kernels and workspace.
#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"
#include "worker/executor/executor_state.h"
#include "worker/executor/multi_tensor_ops.h"

namespace espalier {

absl::Status Executor::State::Prepare() {
  Device& device = *options_.device;
  if (absl::Status s = device.EnterThread(KernelThreads::kOpenMp); !s.ok()) return s;
  if (checked_.needs_source && options_.source == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("program '", program_.name(), "' loads batches but was given no dataset"));
  }
  for (const v1::Buffer& buffer : program_.buffers()) {
    if (options_.fills_stored || buffer.initializer().kind() != v1::Initializer::STORED) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("buffer '", buffer.name(), "' of program '", program_.name(),
                     "' is STORED: its value comes from a folder, which is not read here"));
  }
  const ProgramMemory* shared =
      options_.share_parameters != nullptr ? &options_.share_parameters->state_->memory_ : nullptr;
  if (absl::Status s = memory_.Place(program_, checked_, &device, shared); !s.ok()) return s;
  if (absl::Status s = memory_.FillAtStart(); !s.ok()) return s;
  for (int i = 0; i < program_.buffers_size(); ++i) {
    program_.mutable_buffers(i)->clear_literal();
    if (program_.buffers(i).kind() == v1::SCHEDULE) schedules_.push_back(i);
  }
  swap_dependencies_ = FindSwapDependencies(program_, memory_);
  tickets_.assign(program_.instructions_size(), 0);
  instructions_.resize(program_.instructions_size());
  const std::vector<int> group_size =
      MultiTensorGroups(program_, memory_, swap_dependencies_, device.kernels());
  for (size_t i = 0; i < group_size.size(); ++i) instructions_[i].group_size = group_size[i];
  for (int i = 0; i < program_.instructions_size(); ++i) {
    if (absl::Status s = PrepareInstruction(i); !s.ok())
      return AnnotateError(s, Describe(program_, i));
  }
  if (absl::Status s = AllocateWorkspace(); !s.ok()) return s;
  if (GraphCapturer* graph_capturer = device.graph_capturer();
      graph_capturer != nullptr && CanCaptureSteps()) {
    step_graphs_ = std::make_unique<StepGraphCache>(graph_capturer);
  }
  return device.Synchronize();
}

absl::Status Executor::State::AllocateWorkspace() {
  if (workspace_bytes_ == 0) return absl::OkStatus();
  if (options_.share_parameters != nullptr) {
    const State& other = *options_.share_parameters->state_;
    if (other.workspace_bytes_ >= workspace_bytes_) {
      workspace_data_ = other.workspace_data_;
      return absl::OkStatus();
    }
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> space = options_.device->Allocate(workspace_bytes_);
  if (!space.ok()) return AnnotateError(space.status(), "kernels' workspace");
  workspace_ = *std::move(space);
  workspace_data_ = workspace_->data();
  return absl::OkStatus();
}

bool Executor::State::CanCaptureSteps() const {
  const auto enqueues = [](const v1::Instruction& instruction) {
    return instruction.has_compute() || instruction.has_copy() || instruction.has_fill();
  };
  return program_.batch_invariant() && !options_.training && !program_.has_optimizer() &&
         std::all_of(program_.instructions().begin(), program_.instructions().end(), enqueues);
}

absl::Status Executor::State::MakeKernel(KernelSpec kernel_spec, ReadyInstruction* ready) {
  kernel_spec.batch_invariant = program_.batch_invariant();
  for (const TensorView& view : ready->inputs) kernel_spec.inputs.push_back(view.spec);
  for (const TensorView& view : ready->outputs) kernel_spec.outputs.push_back(view.spec);
  std::string error;
  try {
    ready->kernel = options_.device->kernels().Create(kernel_spec, &error);
  } catch (const std::exception& e) {
    error = e.what();
  }
  if (ready->kernel == nullptr) return absl::InvalidArgumentError(error);
  workspace_bytes_ =
      std::max(workspace_bytes_, static_cast<int64_t>(ready->kernel->workspace_bytes()));
  return absl::OkStatus();
}

absl::Status Executor::State::PrepareInstruction(int index) {
  const v1::Instruction& instruction = program_.instructions(index);
  ReadyInstruction& ready = instructions_[index];
  if (instruction.has_load_batch()) {
    const v1::LoadBatchInstruction& load = instruction.load_batch();
    return options_.source->Prepare(load.column(), spec(load.buffer()));
  }
  if (ready.group_size == 0) return absl::OkStatus();
  if (!instruction.has_compute() && !instruction.has_update()) return absl::OkStatus();
  std::vector<int> inputs, outputs;
  for (int i = index; i < index + ready.group_size; ++i) {
    const KernelOperands one = KernelOperandsOf(program_.instructions(i));
    inputs.insert(inputs.end(), one.inputs.begin(), one.inputs.end());
    outputs.insert(outputs.end(), one.outputs.begin(), one.outputs.end());
  }
  for (int i : inputs) ready.inputs.push_back(View(i));
  for (int i : outputs) ready.outputs.push_back(View(i));
  const bool compute = instruction.has_compute();
  absl::StatusOr<Attributes> attributes = AttributesFromProto(
      compute ? instruction.compute().attributes() : instruction.update().attributes());
  if (!attributes.ok()) return attributes.status();
  KernelSpec kernel_spec;
  kernel_spec.op = compute ? instruction.compute().op() : instruction.update().op();
  kernel_spec.attributes = *std::move(attributes);
  if (absl::Status s = MakeKernel(std::move(kernel_spec), &ready); !s.ok()) return s;
  if (!compute) return absl::OkStatus();
  ready.node_key = instruction.compute().node_key();
  for (size_t i = 0; i < inputs.size(); ++i) TrackDynamicView(inputs[i], &ready.inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) TrackDynamicView(outputs[i], &ready.outputs[i]);
  return absl::OkStatus();
}

void Executor::State::TrackDynamicView(int buffer, TensorView* view) {
  if (buffer < 0) return;
  const v1::DynamicDimension dynamic = program_.buffers(buffer).dynamic();
  if (dynamic != v1::STATIC) dynamic_views_.push_back({view, dynamic, view->spec.dims[0]});
}

}  // namespace espalier
