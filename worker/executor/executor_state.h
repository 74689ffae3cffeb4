// State of an executor: a checked program, its memory and its kernels. executor_load.cc has
// loading, executor_step.cc a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "ops/kernel/kernel.h"
#include "worker/executor/check_program.h"
#include "worker/executor/executor.h"
#include "worker/executor/graph_capture.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/swap_dependencies.h"

namespace espalier {

// Keeps the payloads.
inline absl::Status AnnotateError(const absl::Status& status, const std::string& place) {
  absl::Status annotated(status.code(), absl::StrCat(place, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
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

  // A failed step may have left copies in flight.
  ~State() { AwaitAll(); }

  // Call once, first.
  absl::Status Prepare();
  absl::StatusOr<StepResult> Step(int64_t step, bool profile, const DynamicSizes& sizes);
  absl::StatusOr<StepResult> RunPart(int begin, int end, const PassOptions& pass);
  absl::Status ReadDuringSteps(std::vector<BufferRead> reads, OnBufferRead on_read);

  char* data(int i) const { return memory_.data(i); }
  int64_t bytes(int i) const { return memory_.bytes(i); }
  bool IsStreamed(int i) const { return memory_.IsStreamed(i); }
  const std::vector<FileRange>& files(int i) const { return memory_.files(i); }
  // The host slot of a streamed parameter, to read or write between steps. REQUIRES: IsStreamed(i).
  absl::StatusOr<char*> StreamedData(int i) { return memory_.LoadIntoSlot(i); }
  void SetBackingFiles(int i, std::vector<FileRange> runs) {
    memory_.SetBackingFiles(i, std::move(runs));
  }

  const v1::Program& program() const { return program_; }
  const TensorSpec& spec(int i) const { return checked_.specs[i]; }
  const std::string& tensor_name(int i) const { return checked_.tensor_names[i]; }
  bool is_alias(int i) const { return checked_.alias_of[i] >= 0; }
  ExecutorOptions& options() { return options_; }
  int64_t measured_peak_bytes() const {
    return memory_.allocated_bytes() + (workspace_ != nullptr ? workspace_bytes_ : 0) +
           static_cast<int64_t>(staging_.size() + staging_out_.size());
  }

 private:
  TensorView View(int i) const {
    if (i < 0) return {};
    return {data(i), spec(i)};
  }

  // Loading.
  absl::Status PrepareInstruction(int index);
  // True if steps of equal sizes enqueue identical device work and nothing else, so that they can
  // be captured.
  bool CanCaptureSteps() const;
  // Uses the workspace of options_.share_parameters if it is large enough.
  absl::Status AllocateWorkspace();
  absl::Status MakeKernel(KernelSpec kernel_spec, ReadyInstruction* ready);
  // Records views whose first dimension changes with DynamicSizes.
  void TrackDynamicView(int buffer, TensorView* view);

  // A step.
  absl::StatusOr<StepResult> TryStep(int64_t step, bool profile, const DynamicSizes& sizes);
  absl::StatusOr<StepResult> TryPart(int begin, int end, const PassOptions& pass);
  // Makes the device's thread ready, and sets the learning rate and the step of updates.
  absl::Status Begin(const PassOptions& pass, const DynamicSizes& sizes, StepResult* result);
  // Waits until all is done.
  absl::Status End();
  absl::Status RunRange(int begin, int end, const PassOptions& pass, bool profile,
                        StepResult* result);
  // Hands out the buffers that are read once `instructions` have run, from `*next` in read_order_.
  absl::Status HandOut(int instructions, size_t* next);
  absl::Status Resize(const DynamicSizes& sizes);
  // Splits the time of a fused group among its instructions by size.
  void RecordTime(int index, double seconds, StepResult* result) const;
  absl::Status Run(int index, const PassOptions& pass, StepResult* result);
  absl::Status RunKernel(ReadyInstruction& ready, int64_t step);
  absl::Status RunSwap(int index, const v1::SwapInstruction& swap, bool out);
  absl::Status RunCopy(const v1::CopyInstruction& c);
  absl::Status RunMessage(const v1::Instruction& instruction);
  absl::Status RunCollective(const v1::CollectiveInstruction& c);
  absl::Status RunLoad(const v1::LoadBatchInstruction& load, int64_t step);
  absl::Status RunReport(const v1::ReportInstruction& report, const PassOptions& pass,
                         StepResult* result);

  // Waits for the copy that instruction `index` started, if any.
  absl::Status Await(int index);
  void AwaitAll();

  // The part of buffer i that this step uses.
  int64_t LiveRows(int i) const;
  int64_t LiveElements(int i) const;
  int64_t LiveBytes(int i) const;

  // Memory of buffer i that the communicator can access: its own, or a staging copy on the host.
  bool Staged() const;
  absl::StatusOr<char*> ForReading(int i);
  char* ForWriting(int i);
  absl::Status Written(int i);

  struct DynamicView {
    TensorView* view;
    v1::DynamicDimension dynamic;
    int64_t limit;
  };

  v1::Program program_;  // literals are dropped once copied
  ExecutorOptions options_;
  const CheckedProgram checked_;
  ProgramMemory memory_;
  std::unique_ptr<DeviceMemory> workspace_;  // null: none needed, or shared
  void* workspace_data_ = nullptr;
  std::vector<int> schedules_;  // buffers of that kind
  int64_t workspace_bytes_ = 0;
  SwapDependencies swap_dependencies_;
  std::vector<uint64_t> tickets_;  // by instruction: its copy in flight; 0: none
  std::vector<ReadyInstruction> instructions_;
  std::vector<DynamicView> dynamic_views_;
  std::unique_ptr<StepGraphCache> step_graphs_;  // null unless CanCaptureSteps and a capturer
  DynamicSizes sizes_{-1, -1};
  std::vector<BufferRead> reads_;
  std::vector<int> read_order_;  // indices into reads_, in the order of instructions
  OnBufferRead on_read_;
  std::vector<char> staging_, staging_out_;
};

}  // namespace espalier
