#include "worker/measure.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ops/graph/graph_proto.h"
#include "worker/executor/executor.h"
#include "worker/executor/initialize.h"

namespace espalier {
namespace {

absl::StatusOr<std::unique_ptr<Executor>> Load(const v1::Program& program, Device* device) {
  ExecutorOptions options;
  options.device = device;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(program, options);
  if (!executor.ok()) return executor.status();
  // Not zeros: kernels may be faster on them, or hit denormals.
  v1::Initializer random;
  random.set_kind(v1::Initializer::UNIFORM);
  random.set_scale(0.5);
  std::map<std::string, std::vector<char>> known;  // copies of an operand have equal values
  for (int i = 0; i < (*executor)->num_buffers(); ++i) {
    const v1::Buffer& buffer = (*executor)->buffer(i);
    const TensorSpec& spec = (*executor)->spec(i);
    if (buffer.kind() == v1::LITERAL || !IsFloat(spec.dtype)) continue;
    const std::string name = buffer.name().substr(0, buffer.name().find('#'));
    std::vector<char>& bytes = known[name];
    absl::Status s;
    if (bytes.empty()) {
      bytes.resize(static_cast<size_t>(spec.bytes()));
      s = Initialize(random, name, 1, spec, bytes.data());
    }
    if (s.ok()) s = (*executor)->WriteBuffer(i, bytes.data(), spec.bytes());
    if (!s.ok()) return s;
  }
  return executor;
}

absl::StatusOr<double> TimeOnce(Executor& executor, int64_t step) {
  const absl::Time start = absl::Now();
  absl::StatusOr<StepResult> result = executor.Step(step);
  if (!result.ok()) return result.status();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

int AddBuffer(v1::Program* program, const std::string& name, const Dims& dims) {
  v1::Buffer* buffer = program->add_buffers();
  buffer->set_name(name);
  buffer->set_kind(v1::SCRATCH);
  buffer->mutable_spec()->set_dtype(v1::F32);
  for (int64_t d : dims) buffer->mutable_spec()->add_dims(d);
  buffer->set_offset_bytes(program->arena_bytes());
  program->set_arena_bytes(program->arena_bytes() + (NumElements(dims) * 4 + 63) / 64 * 64);
  return program->buffers_size() - 1;
}

// `runs` times op(a, b) -> c in f32, to amortize the overhead of a Step.
v1::Program OperatorProgram(const std::string& op, const Dims& a, const Dims& b, const Dims& c,
                            int runs) {
  v1::Program program;
  program.set_format_version(1);
  program.set_name("calibrate " + op);
  program.set_world_size(1);
  std::vector<int> inputs{AddBuffer(&program, "a", a)};
  if (!b.empty()) inputs.push_back(AddBuffer(&program, "b", b));
  const int output = AddBuffer(&program, "c", c);
  for (int i = 0; i < runs; ++i) {
    v1::Instruction* instruction = program.add_instructions();
    instruction->set_node(op);
    instruction->mutable_compute()->set_op(op);
    for (int input : inputs) instruction->mutable_compute()->add_inputs(input);
    instruction->mutable_compute()->add_outputs(output);
  }
  return program;
}

// Number of operand sets: see MeasureProgram.
constexpr int kMaxCopies = 2;

// Replaces the operands of a compute or update instruction.
template <typename Map>
void ForEachOperand(v1::Instruction* instruction, const Map& map) {
  const auto replace = [&](google::protobuf::RepeatedField<int>* list) {
    for (int& b : *list) b = map(b);
  };
  if (instruction->has_compute()) {
    replace(instruction->mutable_compute()->mutable_inputs());
    replace(instruction->mutable_compute()->mutable_outputs());
  }
  if (!instruction->has_update()) return;
  v1::UpdateInstruction* update = instruction->mutable_update();
  update->set_parameter(map(update->parameter()));
  update->set_gradient(map(update->gradient()));
  update->set_scale(map(update->scale()));
  update->set_hyper(map(update->hyper()));
  replace(update->mutable_state());
}

// Repeats `program`, a single instruction, on `copies` sets of operands. Operands that do not
// outlive a step are written just before each run.
v1::Program Repeat(const v1::Program& program, int copies) {
  v1::Program all = program;
  all.clear_instructions();
  all.clear_buffers();
  int64_t offset = 0;
  const auto add = [&](const v1::Buffer& buffer, const std::string& name) {
    v1::Buffer* added = all.add_buffers();
    *added = buffer;
    added->set_name(name);
    added->set_offset_bytes(buffer.offset_bytes() + offset);
    return all.buffers_size() - 1;
  };
  std::map<int, int> sources;  // by operand that is written before
  for (const v1::Instruction& instruction : program.instructions()) {
    for (int b : instruction.compute().inputs()) {
      if (b < 0 || program.buffers(b).kind() != v1::SCRATCH) continue;
      sources[b] = add(program.buffers(b), absl::StrCat(program.buffers(b).name(), "#source"));
    }
  }
  const int64_t stride = (program.arena_bytes() + 63) / 64 * 64;
  if (sources.empty()) offset = -stride;
  for (int copy = 0; copy < copies; ++copy) {
    offset += stride;
    const int first = all.buffers_size();
    for (const v1::Buffer& buffer : program.buffers()) {
      add(buffer, absl::StrCat(buffer.name(), "#", copy));
    }
    for (const auto& [b, source] : sources) {
      v1::CopyInstruction* write = all.add_instructions()->mutable_copy();
      write->set_source(source);
      write->set_destination(first + b);
      for (int64_t dim : program.buffers(b).spec().dims()) {
        write->add_source_start(0);
        write->add_destination_start(0);
        write->add_size(dim);
      }
    }
    for (const v1::Instruction& instruction : program.instructions()) {
      v1::Instruction* added = all.add_instructions();
      *added = instruction;
      ForEachOperand(added, [first](int b) { return b < 0 ? b : first + b; });
    }
  }
  all.set_arena_bytes(offset + stride);
  all.set_peak_bytes(offset + stride);
  return all;
}

// Minimum over the repetitions that fit into `budget`: other processes only slow them down.
absl::StatusOr<double> BestSeconds(const v1::Program& program, Device* device,
                                   absl::Duration budget) {
  absl::StatusOr<std::unique_ptr<Executor>> executor = Load(program, device);
  if (!executor.ok()) return executor.status();
  absl::StatusOr<double> best = TimeOnce(**executor, 0);
  const absl::Time deadline = absl::Now() + budget;
  for (int i = 0; best.ok() && (i < 2 || absl::Now() < deadline); ++i) {
    absl::StatusOr<double> seconds = TimeOnce(**executor, 0);
    if (!seconds.ok()) return seconds.status();
    best = std::min(*best, *seconds);
  }
  return best;
}

}  // namespace

absl::StatusOr<double> MeasureProgram(const v1::Program& program, int repetitions, Device* device) {
  // In a step, many instructions run between two runs of an operator: its operands have left the
  // inner caches, except those that the previous operator wrote; some of its code and of the shared
  // workspace is still cached. Evicting everything overestimates gradients of small convolutions by
  // a third; keeping everything underestimates small operators by up to a quarter
  // (docs/design/planner.md). So the result is the mean over back-to-back runs, each on its own
  // operands.
  const int64_t memory = device->description().memory_bytes() / 8;
  const int64_t evicting_bytes =
      std::min<int64_t>(device->is_host() ? 16 << 20 : 256 << 20, memory) / 4 * 4;
  const int copies = static_cast<int>(std::clamp<int64_t>(
      evicting_bytes / std::max<int64_t>(program.arena_bytes(), 1), 1, kMaxCopies));
  absl::StatusOr<std::unique_ptr<Executor>> executor = Load(Repeat(program, copies), device);
  if (!executor.ok()) return executor.status();
  absl::StatusOr<std::unique_ptr<DeviceMemory>> evicting = device->Allocate(evicting_bytes);
  if (!evicting.ok()) return evicting.status();
  std::vector<double> seconds;
  for (int i = 0; i <= std::max(1, repetitions); ++i) {
    absl::Status s = device->Fill((*evicting)->data(), DType::kF32, evicting_bytes / 4, i);
    if (s.ok()) s = device->Synchronize();
    if (!s.ok()) return s;
    absl::StatusOr<StepResult> result = (*executor)->Step(i, /*profile=*/true);
    if (!result.ok()) return result.status();
    double sum = 0;
    for (const InstructionTime& time : result->profile) {
      if (time.op != "copy") sum += time.seconds;
    }
    if (i > 0) seconds.push_back(sum / copies);
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

absl::StatusOr<v1::Device> Calibrate(Device* device) {
  v1::Device result = device->description();
  const bool gpu = !device->is_host();
  const absl::Duration budget = absl::Milliseconds(300);

  // At most half of the device's memory, whose limit may be small.
  const int64_t memory = result.memory_bytes() / 2;
  int64_t n = gpu ? 4096 : 512;
  while (n > 64 && 3 * 4 * n * n > memory) n /= 2;
  absl::StatusOr<double> matmul =
      BestSeconds(OperatorProgram("linear", {n, n}, {n, n}, {n, n}, 1), device, budget);
  if (!matmul.ok()) return matmul.status();
  result.set_matmul_flops(2.0 * static_cast<double>(n) * static_cast<double>(n) *
                          static_cast<double>(n) / *matmul);

  // Larger than the caches: reads 2 x 48 MiB, writes 48 MiB.
  const int64_t wide = std::min<int64_t>(gpu ? 256 << 20 : 12 << 20, memory / (3 * 4) / 64 * 64);
  absl::StatusOr<double> add =
      BestSeconds(OperatorProgram("add", {wide}, {wide}, {wide}, 1), device, budget);
  if (!add.ok()) return add.status();
  result.set_memory_bandwidth(3.0 * 4.0 * static_cast<double>(wide) / *add);

  const int runs = 200;
  absl::StatusOr<double> small =
      BestSeconds(OperatorProgram("relu", {64}, {}, {64}, runs), device, absl::Milliseconds(50));
  if (!small.ok()) return small.status();
  result.set_op_overhead_seconds(*small / runs);
  return result;
}

}  // namespace espalier
