// An executor's insides: a program, checked and laid out, and what runs it. Loading is in
// executor_load.cc, a step in executor_step.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/kernel/kernel.h"
#include "worker/executor/check_program.h"
#include "worker/executor/executor.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/graph_capture.h"
#include "worker/executor/swap_dependencies.h"

namespace espalier {

inline absl::Status WithPlace(const absl::Status& status, const std::string& place) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", std::string(status.message())));
}

// One instruction, ready to run. `inputs` and `outputs` are what its kernel sees.
struct ReadyInstruction {
  std::unique_ptr<Kernel> kernel;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  uint64_t node_key = 0;
  int group_size = 1;  // instructions run by this one: see MultiTensorGroups
};

class Executor::State {
 public:
  State(const v1::Program& program, const ExecutorOptions& options, CheckedProgram checked)
      : program_(program), options_(options), checked_(std::move(checked)) {}

  // A step that failed may have left copies under way.
  ~State() { AwaitAll(); }

  // Once, before anything else.
  absl::Status Prepare();
  absl::StatusOr<StepResult> Step(int64_t step, bool profile, const DynamicSizes& sizes);

  char* data(int i) const { return memory_.data(i); }
  int64_t bytes(int i) const { return memory_.bytes(i); }
  bool IsStreamed(int i) const { return memory_.IsStreamed(i); }
  const std::vector<FileRange>& files(int i) const { return memory_.files(i); }
  // The slot of a parameter that IsStreamed, to be read or written between steps.
  absl::StatusOr<char*> StreamedData(int i) { return memory_.LoadIntoSlot(i); }
  void SetBackingFiles(int i, std::vector<FileRange> runs) { memory_.SetBackingFiles(i, std::move(runs)); }

  const v1::Program& program() const { return program_; }
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

  // Of loading.
  absl::Status PrepareInstruction(int index);
  // Whether steps of the same sizes enqueue the same work on the device, and do nothing else.
  bool CanCaptureSteps() const;
  absl::Status MakeKernel(KernelSpec kernel_spec, ReadyInstruction* ready);
  void AddOperands(int index, ReadyInstruction* ready) const;
  // Remembers views whose first dimension changes with DynamicSizes.
  void Track(int buffer, TensorView* view);

  // Of a step.
  absl::StatusOr<StepResult> TryStep(int64_t step, bool profile, const DynamicSizes& sizes);
  absl::Status RunAll(int64_t step, bool profile, StepResult* result);
  absl::Status Resize(const DynamicSizes& sizes);
  // Each of the instructions run together gets time by its size.
  void Record(int index, double seconds, StepResult* result) const;
  absl::Status Run(int index, int64_t step, StepResult* result);
  absl::Status RunKernel(ReadyInstruction& ready, int64_t step);
  absl::Status RunSwap(int index, const v1::SwapInstruction& swap, bool out);
  absl::Status RunCopy(const v1::CopyInstruction& c);
  absl::Status RunMessage(const v1::Instruction& instruction);
  absl::Status RunCollective(const v1::CollectiveInstruction& c);
  absl::Status RunLoad(const v1::LoadBatchInstruction& load, int64_t step);
  absl::Status RunReport(const v1::ReportInstruction& report, int64_t step, StepResult* result);

  // Until the copy that instruction `index` began has ended, if it has begun one.
  absl::Status Await(int index);
  void AwaitAll();

  // How much of buffer i is there in this step.
  int64_t LiveRows(int i) const;
  int64_t LiveElements(int i) const;
  int64_t LiveBytes(int i) const;

  // The memory that the communicator can use for buffer i: its own, or a copy on the host.
  bool Staged() const;
  absl::StatusOr<char*> ForReading(int i);
  char* ForWriting(int i);
  absl::Status Written(int i);

  struct DynamicView {
    TensorView* view;
    v1::DynamicDimension dynamic;
    int64_t limit;
  };

  v1::Program program_;  // without the literals, once they are in place
  ExecutorOptions options_;
  const CheckedProgram checked_;
  ProgramMemory memory_;
  std::unique_ptr<DeviceMemory> workspace_;
  std::vector<int> schedules_;  // buffers of that kind
  int64_t workspace_bytes_ = 0;
  SwapDependencies swap_dependencies_;
  std::vector<uint64_t> tickets_;  // by instruction: of a copy under way; 0: none
  std::vector<ReadyInstruction> instructions_;
  std::vector<DynamicView> dynamic_views_;
  std::unique_ptr<StepGraphCache> step_graphs_;  // of CanCaptureSteps, where the device records
  DynamicSizes sizes_{-1, -1};
  std::vector<char> staging_, staging_out_;
};

}  // namespace espalier
