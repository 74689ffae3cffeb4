#include "worker/executor/executor.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/optimizer/schedule.h"
#include "worker/executor/check.h"
#include "worker/executor/joint_updates.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/swap_waits.h"

namespace espalier {
namespace {

absl::Status WithPlace(const absl::Status& status, const std::string& place) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", std::string(status.message())));
}

}  // namespace

// One instruction, ready to run. `inputs` and `outputs` are what its kernel sees.
struct ReadyInstruction {
  std::unique_ptr<Kernel> kernel;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  uint64_t node_key = 0;
  int joint = 1;  // updates made by this one: see JointUpdates
};

class Executor::State {
 public:
  State(const proto::Program& program, const ExecutorOptions& options, CheckedProgram checked)
      : program_(program), options_(options), checked_(std::move(checked)) {}

  // A step that failed may have left copies under way.
  ~State() { AwaitAll(); }

  absl::Status Prepare() {
    Device& device = *options_.device;
    if (absl::Status s = device.EnterThread(); !s.ok()) return s;
    if (checked_.needs_source && options_.source == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("program '", program_.name(), "' loads batches but was given no dataset"));
    }
    const ProgramMemory* shared = options_.share_parameters != nullptr
                                      ? &options_.share_parameters->state_->memory_
                                      : nullptr;
    if (absl::Status s = memory_.Place(program_, checked_, &device, shared); !s.ok()) return s;
    if (absl::Status s = memory_.FillAtStart(); !s.ok()) return s;
    for (int i = 0; i < program_.buffers_size(); ++i) {
      program_.mutable_buffers(i)->clear_literal();
      if (program_.buffers(i).kind() == proto::SCHEDULE) schedules_.push_back(i);
    }
    waits_ = FindSwapWaits(program_, memory_);
    tickets_.assign(program_.instructions_size(), 0);
    instructions_.resize(program_.instructions_size());
    const std::vector<int> joint = JointUpdates(program_, memory_);
    for (size_t i = 0; i < joint.size(); ++i) instructions_[i].joint = joint[i];
    for (int i = 0; i < program_.instructions_size(); ++i) {
      if (absl::Status s = PrepareInstruction(i); !s.ok())
        return WithPlace(s, Describe(program_, i));
    }
    if (workspace_bytes_ > 0) {
      absl::StatusOr<std::unique_ptr<DeviceMemory>> space = device.Allocate(workspace_bytes_);
      if (!space.ok()) return WithPlace(space.status(), "kernels' workspace");
      workspace_ = *std::move(space);
    }
    return device.Synchronize();
  }

  absl::StatusOr<StepResult> Step(int64_t step, bool profile, const DynamicSizes& sizes) {
    absl::StatusOr<StepResult> result = TryStep(step, profile, sizes);
    // Copies that are under way; how they end concerns nobody.
    if (!result.ok()) AwaitAll();
    return result;
  }

  absl::StatusOr<StepResult> TryStep(int64_t step, bool profile, const DynamicSizes& sizes) {
    Device& device = *options_.device;
    if (absl::Status s = device.EnterThread(); !s.ok()) return s;
    if (checked_.needs_communicator && options_.communicator == nullptr) {
      return absl::FailedPreconditionError("the program talks to peers but has no communicator");
    }
    if (absl::Status s = Resize(sizes); !s.ok()) return s;
    StepResult result;
    if (program_.has_optimizer()) {
      result.learning_rate = LearningRate(program_.optimizer().learning_rate(), step);
      const float hyper[2] = {static_cast<float>(result.learning_rate),
                              static_cast<float>(step + 1)};
      for (int i : schedules_) {
        if (absl::Status s = device.CopyToDevice(data(i), hyper, sizeof(hyper)); !s.ok()) return s;
      }
    }
    for (int i = 0; i < program_.instructions_size(); ++i) {
      const absl::Time start = profile ? absl::Now() : absl::Time();
      absl::Status status = absl::OkStatus();
      for (int swap : waits_.before[i]) {
        if (status.ok()) status = Await(swap);
      }
      if (status.ok()) status = Run(i, step, &result);
      if (status.ok() && profile) status = device.Synchronize();
      if (!status.ok()) return WithPlace(status, Describe(program_, i));
      if (profile) Record(i, absl::ToDoubleSeconds(absl::Now() - start), &result);
    }
    for (int swap : waits_.at_end) {
      if (absl::Status s = Await(swap); !s.ok()) return s;
    }
    if (absl::Status s = device.Synchronize(); !s.ok()) return s;
    if (checked_.needs_communicator) {
      if (absl::Status s = options_.communicator->EndStep(); !s.ok()) return s;
    }
    return result;
  }

  char* data(int i) const { return memory_.data(i); }
  int64_t bytes(int i) const { return memory_.bytes(i); }
  bool streams(int i) const { return memory_.streams(i); }
  const std::vector<FileRun>& files(int i) const { return memory_.files(i); }
  // The slot of a parameter that streams, to be read or written between steps.
  absl::StatusOr<char*> Home(int i) { return memory_.ToSlot(i); }
  void ToFiles(int i, std::vector<FileRun> runs) { memory_.ToFiles(i, std::move(runs)); }

  const proto::Program& program() const { return program_; }
  const TensorSpec& spec(int i) const { return checked_.specs[i]; }
  const std::string& tensor_name(int i) const { return checked_.tensor_names[i]; }
  bool is_alias(int i) const { return checked_.alias_of[i] >= 0; }
  ExecutorOptions& options() { return options_; }
  int64_t measured_peak_bytes() const {
    return memory_.allocated_bytes() + workspace_bytes_ +
           static_cast<int64_t>(staging_.size() + staging_out_.size());
  }

 private:
  TensorView View(int i) const {
    if (i < 0) return {};
    return {data(i), spec(i)};
  }

  absl::Status MakeKernel(KernelSpec kernel_spec, ReadyInstruction* ready) {
    kernel_spec.row_stable = program_.row_stable();
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

  absl::Status PrepareInstruction(int index) {
    const proto::Instruction& instruction = program_.instructions(index);
    ReadyInstruction& ready = instructions_[index];
    if (instruction.has_load_batch()) {
      const proto::LoadBatchInstruction& load = instruction.load_batch();
      return options_.source->Prepare(load.column(), spec(load.buffer()));
    }
    if (instruction.has_compute()) {
      const proto::ComputeInstruction& compute = instruction.compute();
      for (int i : compute.inputs()) ready.inputs.push_back(View(i));
      for (int i : compute.outputs()) ready.outputs.push_back(View(i));
      ready.node_key = compute.node_key();
      absl::StatusOr<Attributes> attributes = AttributesFromProto(compute.attributes());
      if (!attributes.ok()) return attributes.status();
      KernelSpec kernel_spec;
      kernel_spec.op = compute.op();
      kernel_spec.attributes = *std::move(attributes);
      if (absl::Status s = MakeKernel(std::move(kernel_spec), &ready); !s.ok()) return s;
      for (int i = 0; i < compute.inputs_size(); ++i) Track(compute.inputs(i), &ready.inputs[i]);
      for (int i = 0; i < compute.outputs_size(); ++i) Track(compute.outputs(i), &ready.outputs[i]);
      return absl::OkStatus();
    }
    if (instruction.has_update()) {
      if (ready.joint == 0) return absl::OkStatus();
      for (int i = index; i < index + ready.joint; ++i) AddOperands(i, &ready);
      const proto::UpdateInstruction& update = instruction.update();
      absl::StatusOr<Attributes> attributes = AttributesFromProto(update.attributes());
      if (!attributes.ok()) return attributes.status();
      KernelSpec kernel_spec;
      kernel_spec.op = update.op();
      kernel_spec.attributes = *std::move(attributes);
      return MakeKernel(std::move(kernel_spec), &ready);
    }
    return absl::OkStatus();
  }

  void AddOperands(int index, ReadyInstruction* ready) const {
    const proto::UpdateInstruction& update = program_.instructions(index).update();
    for (int b : {update.parameter(), update.gradient(), update.scale(), update.hyper()}) {
      ready->inputs.push_back(View(b));
    }
    for (int state : update.state()) ready->inputs.push_back(View(state));
    for (int sum : update.sums()) ready->inputs.push_back(View(sum));
    ready->outputs.push_back(View(update.has_result() ? update.result() : update.parameter()));
  }

  // Remembers views whose first dimension changes with DynamicSizes.
  void Track(int buffer, TensorView* view) {
    if (buffer < 0) return;
    const proto::DynamicDimension dynamic = program_.buffers(buffer).dynamic();
    if (dynamic != proto::STATIC) dynamic_views_.push_back({view, dynamic, view->spec.dims[0]});
  }

  // How much of buffer i is there in this step.
  int64_t LiveRows(int i) const {
    const int64_t rows = spec(i).dims[0];
    const proto::DynamicDimension dynamic = program_.buffers(i).dynamic();
    if (dynamic == proto::STATIC) return rows;
    return std::min(rows, dynamic == proto::ROWS ? sizes_.rows : sizes_.output_rows);
  }
  int64_t LiveElements(int i) const {
    const int64_t elements = spec(i).num_elements();
    if (program_.buffers(i).dynamic() == proto::STATIC) return elements;
    return elements / spec(i).dims[0] * LiveRows(i);
  }
  int64_t LiveBytes(int i) const {
    return LiveElements(i) * static_cast<int64_t>(SizeOf(spec(i).dtype));
  }

  absl::Status Resize(const DynamicSizes& sizes) {
    if (sizes.rows == sizes_.rows && sizes.output_rows == sizes_.output_rows) {
      return absl::OkStatus();
    }
    for (const DynamicView& d : dynamic_views_) {
      const int64_t n = d.dynamic == proto::ROWS ? sizes.rows : sizes.output_rows;
      if (n < 0 || n > d.limit) {
        sizes_ = {-1, -1};
        return absl::InvalidArgumentError(
            absl::StrCat("a step of ", n, " rows; the program was made for at most ", d.limit));
      }
      d.view->spec.dims[0] = n;
      d.view->spec.global[0] = n;
    }
    sizes_ = sizes;
    return absl::OkStatus();
  }

  // Each of the updates made together gets time by its size.
  void Record(int index, double seconds, StepResult* result) const {
    const int joint = instructions_[index].joint;
    if (joint == 0) return;
    const auto size = [&](int i) {
      return joint == 1 ? 1 : bytes(program_.instructions(i).update().parameter());
    };
    int64_t all = 0;
    for (int i = index; i < index + joint; ++i) all += size(i);
    for (int i = index; i < index + joint; ++i) {
      const proto::Instruction& instruction = program_.instructions(i);
      const double share = all > 0 ? static_cast<double>(size(i)) / static_cast<double>(all) : 0;
      result->profile.push_back({instruction.node(), OpName(instruction), seconds * share});
    }
  }

  absl::Status Run(int index, int64_t step, StepResult* result) {
    const proto::Instruction& instruction = program_.instructions(index);
    switch (instruction.kind_case()) {
      case proto::Instruction::kCompute:
      case proto::Instruction::kUpdate:
        if (instructions_[index].joint == 0) return absl::OkStatus();
        return RunKernel(instructions_[index], step);
      case proto::Instruction::kCopy:
        return RunCopy(instruction.copy());
      case proto::Instruction::kFill: {
        const int b = instruction.fill().buffer();
        return options_.device->Fill(data(b), spec(b).dtype, spec(b).num_elements(),
                                     instruction.fill().value());
      }
      case proto::Instruction::kSend:
      case proto::Instruction::kReceive:
        return RunMessage(instruction);
      case proto::Instruction::kCollective:
        return RunCollective(instruction.collective());
      case proto::Instruction::kSwapOut:
        return RunSwap(index, instruction.swap_out(), /*out=*/true);
      case proto::Instruction::kSwapIn:
        return RunSwap(index, instruction.swap_in(), /*out=*/false);
      case proto::Instruction::kLoadBatch:
        return RunLoad(instruction.load_batch(), step);
      case proto::Instruction::kReport:
        return RunReport(instruction.report(), step, result);
      case proto::Instruction::KIND_NOT_SET:
        break;
    }
    return absl::InternalError("unknown instruction");
  }

  absl::Status RunKernel(ReadyInstruction& ready, int64_t step) {
    if (!dynamic_views_.empty()) {
      // Nothing to compute for no rows: prompt chunks want no logits.
      const bool empty =
          !ready.outputs.empty() &&
          std::all_of(ready.outputs.begin(), ready.outputs.end(),
                      [](const TensorView& v) { return !v.present() || v.num_elements() == 0; });
      if (empty) return absl::OkStatus();
    }
    KernelArgs args;
    args.inputs = ready.inputs;
    args.outputs = ready.outputs;
    args.workspace = workspace_ != nullptr ? workspace_->data() : nullptr;
    args.seed = program_.seed();
    args.node_key = ready.node_key;
    args.step = step;
    args.training = options_.training;
    args.stream = options_.device->stream();
    try {
      KernelStatus status = ready.kernel->Run(args);
      return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.error);
    } catch (const std::exception& e) {
      return absl::InternalError(e.what());
    }
  }

  absl::Status RunSwap(int index, const proto::SwapInstruction& swap, bool out) {
    const int b = swap.buffer();
    absl::StatusOr<uint64_t> ticket;
    if (!out && !memory_.files(b).empty()) {
      ticket = options_.device->BeginReadToDevice(data(b), memory_.files(b), bytes(b));
    } else {
      absl::StatusOr<char*> host = memory_.Slot(swap.host_slot());
      if (!host.ok()) return host.status();
      ticket = out ? options_.device->BeginCopyToHost(*host, data(b), bytes(b))
                   : options_.device->BeginCopyToDevice(data(b), *host, bytes(b));
    }
    if (!ticket.ok()) return ticket.status();
    tickets_[index] = *ticket;
    return swap.wait() ? Await(index) : absl::OkStatus();
  }

  void AwaitAll() {
    for (int i = 0; i < static_cast<int>(tickets_.size()); ++i) (void)Await(i);
  }

  // Until the copy that instruction `index` began has ended, if it has begun one.
  absl::Status Await(int index) {
    const uint64_t ticket = std::exchange(tickets_[index], 0);
    return ticket == 0 ? absl::OkStatus() : options_.device->AwaitCopy(ticket);
  }

  absl::Status RunCopy(const proto::CopyInstruction& c) {
    BoxCopy copy;
    copy.source = data(c.source());
    copy.destination = data(c.destination());
    copy.dtype = spec(c.source()).dtype;
    copy.source_dims = spec(c.source()).dims;
    copy.destination_dims = spec(c.destination()).dims;
    copy.source_start.assign(c.source_start().begin(), c.source_start().end());
    copy.destination_start.assign(c.destination_start().begin(), c.destination_start().end());
    copy.size.assign(c.size().begin(), c.size().end());
    if (program_.buffers(c.source()).dynamic() != proto::STATIC) {
      copy.size[0] = LiveRows(c.source());
      if (copy.size[0] == 0) return absl::OkStatus();
    }
    copy.accumulate = c.accumulate();
    return options_.device->CopyBox(copy);
  }

  // The memory that the communicator can use for buffer i: its own, or a copy on the host.
  bool Staged() const { return !options_.device->is_host() && !options_.communicator->on_device(); }
  absl::StatusOr<char*> ForReading(int i) {
    if (!Staged()) return data(i);
    staging_.resize(std::max(staging_.size(), static_cast<size_t>(LiveBytes(i))));
    absl::Status s = options_.device->CopyToHost(staging_.data(), data(i), LiveBytes(i));
    if (!s.ok()) return s;
    return staging_.data();
  }
  char* ForWriting(int i) {
    if (!Staged()) return data(i);
    staging_out_.resize(std::max(staging_out_.size(), static_cast<size_t>(LiveBytes(i))));
    return staging_out_.data();
  }
  absl::Status Written(int i) {
    if (!Staged()) return absl::OkStatus();
    return options_.device->CopyToDevice(data(i), staging_out_.data(), LiveBytes(i));
  }

  absl::Status RunMessage(const proto::Instruction& instruction) {
    Communicator& communicator = *options_.communicator;
    const int buffer =
        instruction.has_send() ? instruction.send().buffer() : instruction.receive().buffer();
    if (LiveBytes(buffer) == 0) return absl::OkStatus();  // both ends know
    if (instruction.has_send()) {
      const proto::SendInstruction& send = instruction.send();
      absl::StatusOr<char*> from = ForReading(send.buffer());
      if (!from.ok()) return from.status();
      return communicator.Send(*from, LiveBytes(send.buffer()), send.peer(), send.tag());
    }
    const proto::ReceiveInstruction& receive = instruction.receive();
    absl::Status s = communicator.Receive(ForWriting(receive.buffer()), LiveBytes(receive.buffer()),
                                          receive.peer(), receive.tag());
    return s.ok() ? Written(receive.buffer()) : s;
  }

  absl::Status RunCollective(const proto::CollectiveInstruction& c) {
    if (LiveBytes(c.input()) == 0) return absl::OkStatus();  // all ranks know
    Communicator& communicator = *options_.communicator;
    const proto::Group& ranks = program_.groups(c.group());
    const Communicator::Group group(ranks.ranks().begin(), ranks.ranks().end());
    absl::StatusOr<char*> input = ForReading(c.input());
    if (!input.ok()) return input.status();
    char* output = ForWriting(c.output());
    const DType dtype = spec(c.input()).dtype;
    const int64_t n = static_cast<int64_t>(group.size());
    absl::Status status;
    switch (c.kind()) {
      case proto::CollectiveInstruction::ALL_REDUCE:
        status =
            communicator.AllReduce(dtype, *input, output, LiveElements(c.input()), group, c.tag());
        break;
      case proto::CollectiveInstruction::ALL_GATHER:
        status = communicator.AllGather(*input, output, LiveBytes(c.input()), group, c.tag());
        break;
      case proto::CollectiveInstruction::REDUCE_SCATTER:
        status = communicator.ReduceScatter(dtype, *input, output, LiveElements(c.output()), group,
                                            c.tag());
        break;
      case proto::CollectiveInstruction::ALL_TO_ALL:
        status = communicator.AllToAll(*input, output, LiveBytes(c.input()) / n, group, c.tag());
        break;
      case proto::CollectiveInstruction::BROADCAST:
        status = communicator.Broadcast(*input, output, LiveBytes(c.input()), group, c.tag());
        break;
      default:
        return absl::InternalError("unknown collective");
    }
    return status.ok() ? Written(c.output()) : status;
  }

  absl::Status RunLoad(const proto::LoadBatchInstruction& load, int64_t step) {
    const int b = load.buffer();
    if (options_.device->is_host()) {
      return options_.source->Load(load.column(), spec(b), step, data(b));
    }
    staging_.resize(std::max(staging_.size(), static_cast<size_t>(bytes(b))));
    absl::Status s = options_.source->Load(load.column(), spec(b), step, staging_.data());
    return s.ok() ? options_.device->CopyToDevice(data(b), staging_.data(), bytes(b)) : s;
  }

  absl::Status RunReport(const proto::ReportInstruction& report, int64_t step, StepResult* result) {
    float value = 0;
    absl::Status s = options_.device->CopyToHost(&value, data(report.buffer()), sizeof(value));
    if (!s.ok()) return s;
    if (report.name() == "loss" && !std::isfinite(value)) {
      return absl::OutOfRangeError(
          absl::StrCat("the loss is ", std::isnan(value) ? "NaN" : "infinite", " at step ", step,
                       ": lower the learning rate, clip the gradients (clip_norm), or check the "
                       "data's scale and "
                       "the initial weights"));
    }
    result->values[report.name()] += value;
    return absl::OkStatus();
  }

  struct DynamicView {
    TensorView* view;
    proto::DynamicDimension dynamic;
    int64_t limit;
  };

  proto::Program program_;  // without the literals, once they are in place
  ExecutorOptions options_;
  const CheckedProgram checked_;
  ProgramMemory memory_;
  std::unique_ptr<DeviceMemory> workspace_;
  std::vector<int> schedules_;  // buffers of that kind
  int64_t workspace_bytes_ = 0;
  SwapWaits waits_;
  std::vector<uint64_t> tickets_;  // by instruction: of a copy under way; 0: none
  std::vector<ReadyInstruction> instructions_;
  std::vector<DynamicView> dynamic_views_;
  DynamicSizes sizes_{-1, -1};
  std::vector<char> staging_, staging_out_;
};

Executor::Executor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Executor::~Executor() = default;

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const proto::Program& program,
                                                           const ExecutorOptions& options) {
  if (options.device == nullptr) return absl::InvalidArgumentError("an executor needs a device");
  absl::StatusOr<CheckedProgram> checked = CheckProgram(program);
  if (!checked.ok()) return checked.status();
  auto state = std::make_unique<State>(program, options, *std::move(checked));
  try {
    if (absl::Status s = state->Prepare(); !s.ok()) return s;
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("program '", program.name(), "' could not be loaded: ", e.what()));
  }
  return std::unique_ptr<Executor>(new Executor(std::move(state)));
}

void Executor::SetCommunicator(Communicator* communicator) {
  state_->options().communicator = communicator;
}

absl::StatusOr<StepResult> Executor::Step(int64_t step, bool profile, const DynamicSizes& sizes) {
  try {
    return state_->Step(step, profile, sizes);
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("step ", step, ": ", e.what()));
  }
}

int Executor::num_buffers() const { return state_->program().buffers_size(); }
const proto::Buffer& Executor::buffer(int index) const { return state_->program().buffers(index); }
const TensorSpec& Executor::spec(int index) const { return state_->spec(index); }

const std::string& Executor::tensor_name(int index) const { return state_->tensor_name(index); }
bool Executor::is_alias(int index) const { return state_->is_alias(index); }

int Executor::FindBuffer(const std::string& name) const {
  for (int i = 0; i < num_buffers(); ++i) {
    if (buffer(i).name() == name) return i;
  }
  return -1;
}

absl::Status Executor::ReadBuffer(int index, void* host, int64_t bytes) {
  if (index < 0 || index >= num_buffers() || bytes < 0 || bytes > state_->bytes(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", bytes, " bytes to read in buffer ", index));
  }
  if (!state_->files(index).empty()) return ReadRuns(state_->files(index), bytes, host);
  if (state_->streams(index)) {
    absl::StatusOr<char*> home = state_->Home(index);
    if (!home.ok()) return home.status();
    std::copy_n(*home, bytes, static_cast<char*>(host));
    return absl::OkStatus();
  }
  return state_->options().device->CopyToHost(host, state_->data(index), bytes);
}

absl::Status Executor::WriteBuffer(int index, const void* host, int64_t bytes, int64_t offset) {
  if (index < 0 || index >= num_buffers() || bytes < 0 || offset < 0 ||
      offset > state_->bytes(index) || bytes > state_->bytes(index) - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("no room for ", bytes, " bytes at ", offset, " in buffer ", index));
  }
  if (state_->streams(index)) {
    absl::StatusOr<char*> home = state_->Home(index);
    if (!home.ok()) return home.status();
    std::copy_n(static_cast<const char*>(host), bytes, *home + offset);
    return absl::OkStatus();
  }
  return state_->options().device->CopyToDevice(state_->data(index) + offset, host, bytes);
}

bool Executor::MayLieInFiles(int index) const {
  return index >= 0 && index < num_buffers() && state_->streams(index) &&
         state_->options().device->is_host();
}

absl::Status Executor::LeaveInFiles(int index, std::vector<FileRun> runs) {
  if (!MayLieInFiles(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer ", index, " is no parameter that could stream from files"));
  }
  int64_t bytes = 0;
  for (const FileRun& run : runs) bytes += run.bytes;
  if (bytes != state_->bytes(index)) {
    return absl::InvalidArgumentError(absl::StrCat("files with ", bytes, " bytes for buffer ",
                                                   index, " of ", state_->bytes(index)));
  }
  state_->ToFiles(index, std::move(runs));
  return absl::OkStatus();
}

const proto::Program& Executor::program() const { return state_->program(); }
int64_t Executor::measured_peak_bytes() const { return state_->measured_peak_bytes(); }

}  // namespace espalier
