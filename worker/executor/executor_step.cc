// Executor::State: running a step.
#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "ops/optimizer/lr_schedule.h"
#include "worker/executor/executor_state.h"

namespace espalier {

absl::StatusOr<StepResult> Executor::State::Step(int64_t step, bool profile,
                                                 const DynamicSizes& sizes) {
  absl::StatusOr<StepResult> result = TryStep(step, profile, sizes);
  // Waits for copies in flight and ignores their errors.
  if (!result.ok()) AwaitAll();
  return result;
}

absl::StatusOr<StepResult> Executor::State::RunPart(int begin, int end, const PassOptions& pass) {
  absl::StatusOr<StepResult> result = TryPart(begin, end, pass);
  if (!result.ok()) AwaitAll();
  return result;
}

absl::Status Executor::State::Begin(const PassOptions& pass, const DynamicSizes& sizes,
                                    StepResult* result) {
  Device& device = *options_.device;
  // Batch-invariant kernels do not use oneDNN.
  const KernelThreads threads =
      program_.batch_invariant() ? KernelThreads::kThreadTeam : KernelThreads::kOpenMp;
  if (absl::Status s = device.EnterThread(threads); !s.ok()) return s;
  if (checked_.needs_communicator && options_.communicator == nullptr) {
    return absl::FailedPreconditionError("the program talks to peers but has no communicator");
  }
  if (absl::Status s = Resize(sizes); !s.ok()) return s;
  if (!program_.has_optimizer()) return absl::OkStatus();
  result->learning_rate = pass.learning_rate.has_value()
                              ? *pass.learning_rate
                              : LearningRate(program_.optimizer().learning_rate(), pass.update);
  const float hyper[2] = {static_cast<float>(result->learning_rate),
                          static_cast<float>(pass.update + 1)};
  for (int i : schedules_) {
    if (absl::Status s = device.CopyToDevice(data(i), hyper, sizeof(hyper)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Executor::State::End() {
  if (absl::Status s = options_.device->Synchronize(); !s.ok()) return s;
  return checked_.needs_communicator ? options_.communicator->EndStep() : absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::State::TryPart(int begin, int end, const PassOptions& pass) {
  const int count = program_.instructions_size();
  const auto splits_group = [&](int i) { return i < count && instructions_[i].group_size == 0; };
  if (begin < 0 || begin > end || end > count || splits_group(begin) || splits_group(end)) {
    return absl::InvalidArgumentError(absl::StrCat("program '", program_.name(),
                                                   "' cannot run instructions ", begin, " to ", end,
                                                   " of ", count, " on their own"));
  }
  StepResult result;
  absl::Status status = Begin(pass, {}, &result);
  if (status.ok()) status = RunRange(begin, end, pass, /*profile=*/false, &result);
  for (size_t i = 0; i < tickets_.size() && status.ok(); ++i) status = Await(static_cast<int>(i));
  if (status.ok()) status = End();
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<StepResult> Executor::State::TryStep(int64_t step, bool profile,
                                                    const DynamicSizes& sizes) {
  PassOptions pass;
  pass.step = pass.update = step;
  StepResult result;
  if (absl::Status s = Begin(pass, sizes, &result); !s.ok()) return s;
  const auto run = [&] {
    absl::Status ran = RunRange(0, program_.instructions_size(), pass, profile, &result);
    for (int swap : swap_dependencies_.at_end) {
      if (ran.ok()) ran = Await(swap);
    }
    return ran;
  };
  const absl::Status ran =
      step_graphs_ != nullptr && !profile && reads_.empty() ? step_graphs_->Run(sizes, run) : run();
  if (!ran.ok()) return ran;
  if (absl::Status s = End(); !s.ok()) return s;
  return result;
}

absl::Status Executor::State::RunRange(int begin, int end, const PassOptions& pass, bool profile,
                                       StepResult* result) {
  Device& device = *options_.device;
  size_t next_read = 0;
  for (int i = begin; i < end; ++i) {
    const absl::Time start = profile ? absl::Now() : absl::Time();
    absl::Status status = absl::OkStatus();
    for (int swap : swap_dependencies_.before[i]) {
      if (status.ok()) status = Await(swap);
    }
    if (status.ok()) status = Run(i, pass, result);
    if (status.ok() && profile) status = device.Synchronize();
    if (!status.ok()) return AnnotateError(status, Describe(program_, i));
    if (profile) RecordTime(i, absl::ToDoubleSeconds(absl::Now() - start), result);
    const bool group_goes_on = i + 1 < end && instructions_[i + 1].group_size == 0;
    if (next_read == read_order_.size() || group_goes_on) continue;
    if (absl::Status s = HandOut(i + 1, &next_read); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Executor::State::ReadDuringSteps(std::vector<BufferRead> reads, OnBufferRead on_read) {
  for (const BufferRead& read : reads) {
    if (read.instructions >= 1 && read.instructions <= program_.instructions_size() &&
        read.buffer >= 0 && read.buffer < program_.buffers_size()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("program '", program_.name(), "' cannot hand out buffer ", read.buffer, " of ",
                     program_.buffers_size(), " after ", read.instructions, " of ",
                     program_.instructions_size(), " instructions"));
  }
  reads_ = std::move(reads);
  on_read_ = std::move(on_read);
  read_order_.resize(reads_.size());
  std::iota(read_order_.begin(), read_order_.end(), 0);
  std::stable_sort(read_order_.begin(), read_order_.end(), [this](int a, int b) {
    return reads_[a].instructions < reads_[b].instructions;
  });
  return absl::OkStatus();
}

absl::Status Executor::State::HandOut(int instructions, size_t* next) {
  std::vector<char> copy;
  for (; *next < read_order_.size(); ++*next) {
    const int number = read_order_[*next];
    const BufferRead& read = reads_[number];
    if (read.instructions > instructions) break;
    TensorView view = View(read.buffer);
    if (!options_.device->is_host()) {
      copy.resize(static_cast<size_t>(bytes(read.buffer)));
      absl::Status s =
          options_.device->CopyToHost(copy.data(), data(read.buffer), bytes(read.buffer));
      if (!s.ok()) return s;
      view.data = copy.data();
    }
    if (absl::Status s = on_read_(number, view); !s.ok()) return s;
  }
  return absl::OkStatus();
}

int64_t Executor::State::LiveRows(int i) const {
  const int64_t rows = spec(i).dims[0];
  const v1::DynamicDimension dynamic = program_.buffers(i).dynamic();
  if (dynamic == v1::STATIC) return rows;
  return std::min(rows, dynamic == v1::ROWS ? sizes_.rows : sizes_.output_rows);
}

int64_t Executor::State::LiveElements(int i) const {
  const int64_t elements = spec(i).num_elements();
  if (program_.buffers(i).dynamic() == v1::STATIC) return elements;
  return elements / spec(i).dims[0] * LiveRows(i);
}

int64_t Executor::State::LiveBytes(int i) const {
  return LiveElements(i) * static_cast<int64_t>(SizeOf(spec(i).dtype));
}

absl::Status Executor::State::Resize(const DynamicSizes& sizes) {
  if (sizes.rows == sizes_.rows && sizes.output_rows == sizes_.output_rows) {
    return absl::OkStatus();
  }
  for (const DynamicView& d : dynamic_views_) {
    const int64_t n = d.dynamic == v1::ROWS ? sizes.rows : sizes.output_rows;
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

void Executor::State::RecordTime(int index, double seconds, StepResult* result) const {
  const int group_size = instructions_[index].group_size;
  if (group_size == 0) return;
  const auto size = [&](int i) {
    if (group_size == 1) return int64_t{1};
    const v1::Instruction& one = program_.instructions(i);
    if (one.has_update()) return bytes(one.update().parameter());
    int64_t read = 0;
    for (int input : one.compute().inputs()) read += input < 0 ? 0 : bytes(input);
    return read;
  };
  int64_t all = 0;
  for (int i = index; i < index + group_size; ++i) all += size(i);
  for (int i = index; i < index + group_size; ++i) {
    const v1::Instruction& instruction = program_.instructions(i);
    const double share = all > 0 ? static_cast<double>(size(i)) / static_cast<double>(all) : 0;
    result->profile.push_back({instruction.node(), OpName(instruction), seconds * share});
  }
}

absl::Status Executor::State::Run(int index, const PassOptions& pass, StepResult* result) {
  const v1::Instruction& instruction = program_.instructions(index);
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
    case v1::Instruction::kUpdate:
      if (instructions_[index].group_size == 0) return absl::OkStatus();
      return RunKernel(instructions_[index], pass.step);
    case v1::Instruction::kCopy:
      return RunCopy(instruction.copy());
    case v1::Instruction::kFill: {
      const int b = instruction.fill().buffer();
      return options_.device->Fill(data(b), spec(b).dtype, spec(b).num_elements(),
                                   instruction.fill().value());
    }
    case v1::Instruction::kSend:
    case v1::Instruction::kReceive:
      return RunMessage(instruction);
    case v1::Instruction::kCollective:
      return RunCollective(instruction.collective());
    case v1::Instruction::kSwapOut:
      return RunSwap(index, instruction.swap_out(), /*out=*/true);
    case v1::Instruction::kSwapIn:
      return RunSwap(index, instruction.swap_in(), /*out=*/false);
    case v1::Instruction::kLoadBatch:
      return RunLoad(instruction.load_batch(), pass.step);
    case v1::Instruction::kReport:
      return pass.reports ? RunReport(instruction.report(), pass, result) : absl::OkStatus();
    case v1::Instruction::KIND_NOT_SET:
      break;
  }
  return absl::InternalError("unknown instruction");
}

absl::Status Executor::State::RunKernel(ReadyInstruction& ready, int64_t step) {
  if (!dynamic_views_.empty()) {
    // No rows, no work: prompt chunks need no logits.
    const bool empty =
        !ready.outputs.empty() &&
        std::all_of(ready.outputs.begin(), ready.outputs.end(),
                    [](const TensorView& v) { return !v.present() || v.num_elements() == 0; });
    if (empty) return absl::OkStatus();
  }
  KernelArgs args;
  args.inputs = ready.inputs;
  args.outputs = ready.outputs;
  args.workspace = workspace_data_;
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

absl::Status Executor::State::RunSwap(int index, const v1::SwapInstruction& swap, bool out) {
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

void Executor::State::AwaitAll() {
  for (int i = 0; i < static_cast<int>(tickets_.size()); ++i) (void)Await(i);
}

absl::Status Executor::State::Await(int index) {
  const uint64_t ticket = std::exchange(tickets_[index], 0);
  return ticket == 0 ? absl::OkStatus() : options_.device->AwaitCopy(ticket);
}

absl::Status Executor::State::RunCopy(const v1::CopyInstruction& c) {
  BoxCopy copy;
  copy.source = data(c.source());
  copy.destination = data(c.destination());
  copy.dtype = spec(c.source()).dtype;
  copy.source_dims = spec(c.source()).dims;
  copy.destination_dims = spec(c.destination()).dims;
  copy.source_start.assign(c.source_start().begin(), c.source_start().end());
  copy.destination_start.assign(c.destination_start().begin(), c.destination_start().end());
  copy.size.assign(c.size().begin(), c.size().end());
  if (program_.buffers(c.source()).dynamic() != v1::STATIC) {
    copy.size[0] = LiveRows(c.source());
    if (copy.size[0] == 0) return absl::OkStatus();
  }
  copy.accumulate = c.accumulate();
  return options_.device->CopyBox(copy);
}

bool Executor::State::Staged() const {
  return !options_.device->is_host() && !options_.communicator->on_device();
}

absl::StatusOr<char*> Executor::State::ForReading(int i) {
  if (!Staged()) return data(i);
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(LiveBytes(i))));
  absl::Status s = options_.device->CopyToHost(staging_.data(), data(i), LiveBytes(i));
  if (!s.ok()) return s;
  return staging_.data();
}

char* Executor::State::ForWriting(int i) {
  if (!Staged()) return data(i);
  staging_out_.resize(std::max(staging_out_.size(), static_cast<size_t>(LiveBytes(i))));
  return staging_out_.data();
}

absl::Status Executor::State::Written(int i) {
  if (!Staged()) return absl::OkStatus();
  return options_.device->CopyToDevice(data(i), staging_out_.data(), LiveBytes(i));
}

absl::Status Executor::State::RunMessage(const v1::Instruction& instruction) {
  Communicator& communicator = *options_.communicator;
  const int buffer =
      instruction.has_send() ? instruction.send().buffer() : instruction.receive().buffer();
  if (LiveBytes(buffer) == 0) return absl::OkStatus();  // both ends skip it
  if (instruction.has_send()) {
    const v1::SendInstruction& send = instruction.send();
    absl::StatusOr<char*> from = ForReading(send.buffer());
    if (!from.ok()) return from.status();
    return communicator.Send(*from, LiveBytes(send.buffer()), send.peer(), send.tag());
  }
  const v1::ReceiveInstruction& receive = instruction.receive();
  absl::Status s = communicator.Receive(ForWriting(receive.buffer()), LiveBytes(receive.buffer()),
                                        receive.peer(), receive.tag());
  return s.ok() ? Written(receive.buffer()) : s;
}

absl::Status Executor::State::RunCollective(const v1::CollectiveInstruction& c) {
  if (LiveBytes(c.input()) == 0) return absl::OkStatus();  // all ranks skip it
  Communicator& communicator = *options_.communicator;
  const v1::Group& ranks = program_.groups(c.group());
  const Communicator::Group group(ranks.ranks().begin(), ranks.ranks().end());
  absl::StatusOr<char*> input = ForReading(c.input());
  if (!input.ok()) return input.status();
  char* output = ForWriting(c.output());
  const DType dtype = spec(c.input()).dtype;
  const int64_t n = static_cast<int64_t>(group.size());
  absl::Status status;
  switch (c.kind()) {
    case v1::CollectiveInstruction::ALL_REDUCE:
      status =
          communicator.AllReduce(dtype, *input, output, LiveElements(c.input()), group, c.tag());
      break;
    case v1::CollectiveInstruction::ALL_GATHER:
      status = communicator.AllGather(*input, output, LiveBytes(c.input()), group, c.tag());
      break;
    case v1::CollectiveInstruction::REDUCE_SCATTER:
      status = communicator.ReduceScatter(dtype, *input, output, LiveElements(c.output()), group,
                                          c.tag());
      break;
    case v1::CollectiveInstruction::ALL_TO_ALL:
      status = communicator.AllToAll(*input, output, LiveBytes(c.input()) / n, group, c.tag());
      break;
    case v1::CollectiveInstruction::BROADCAST:
      status = communicator.Broadcast(*input, output, LiveBytes(c.input()), group, c.tag());
      break;
    default:
      return absl::InternalError("unknown collective");
  }
  return status.ok() ? Written(c.output()) : status;
}

absl::Status Executor::State::RunLoad(const v1::LoadBatchInstruction& load, int64_t step) {
  const int b = load.buffer();
  if (options_.device->is_host()) {
    return options_.source->Load(load.column(), spec(b), step, data(b));
  }
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(bytes(b))));
  absl::Status s = options_.source->Load(load.column(), spec(b), step, staging_.data());
  return s.ok() ? options_.device->CopyToDevice(data(b), staging_.data(), bytes(b)) : s;
}

absl::Status Executor::State::RunReport(const v1::ReportInstruction& report,
                                        const PassOptions& pass, StepResult* result) {
  float value = 0;
  absl::Status s = options_.device->CopyToHost(&value, data(report.buffer()), sizeof(value));
  if (!s.ok()) return s;
  if (report.name() == "loss" && !std::isfinite(value) && !pass.allow_not_finite) {
    return absl::OutOfRangeError(
        absl::StrCat("the loss is ", std::isnan(value) ? "NaN" : "infinite", " at step ", pass.step,
                     ": lower the learning rate, clip the gradients (clip_norm), or check the "
                     "data's scale and "
                     "the initial weights"));
  }
  result->values[report.name()] += value;
  return absl::OkStatus();
}

}  // namespace espalier
