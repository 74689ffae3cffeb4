// Runs a program on one device. The same executor trains and serves.
//
// Create checks everything that a program says, makes one kernel per compute or update instruction,
// allocates one arena, and fills parameters from their initialisers: keyed by seed, name and the
// element's index in the whole tensor, so that any split starts from the same values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ops/tensor/view.h"
#include "espalier/v1/program.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/executor/batch_source.h"

namespace espalier {

class Executor;

struct ExecutorOptions {
  Device* device = nullptr;  // outlives the executor
  // Needed if the program sends, receives or meets collectives. May be set later, before the first
  // step, by SetCommunicator.
  Communicator* communicator = nullptr;
  BatchSource* source = nullptr;  // needed if the program loads batches
  bool training = true;           // dropout and batch norm look at it
  // Parameters (by tensor and region) are read where that executor, which must outlive this one,
  // holds them: evaluation sees what training writes. Its arena is used too where the program fits
  // beside what it keeps, as the planner lays evaluation programs out.
  Executor* share_parameters = nullptr;
};

// Sizes of the dynamic dimensions in serving programs; ignored by others.
struct DynamicSizes {
  int64_t rows = 0;
  int64_t output_rows = 0;
};

struct InstructionTime {
  std::string node;
  std::string op;  // "linear_grad", "send", "all_reduce"
  double seconds = 0;
};

struct StepResult {
  std::map<std::string, double> values;  // this rank's share of each reported scalar
  double learning_rate = 0;              // of training programs
  std::vector<InstructionTime> profile;  // empty unless asked for
};

// Used by one thread. Not movable.
class Executor {
 public:
  // InvalidArgument says which buffer or instruction (index and node) is wrong; ResourceExhausted
  // if the memory is not there.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const v1::Program& program,
                                                          const ExecutorOptions& options);
  ~Executor();

  void SetCommunicator(Communicator* communicator);

  // Runs every instruction once. `step` counts from 0. Errors name the instruction and its node.
  // A reported "loss" that is not finite is an error that names the step and what to do.
  absl::StatusOr<StepResult> Step(int64_t step, bool profile = false,
                                  const DynamicSizes& sizes = {});

  // A buffer of the program by its index there. A parameter that a swap_in brings, and no swap_out
  // takes away, lies on the host between steps: that copy is read and written below.
  int num_buffers() const;
  const v1::Buffer& buffer(int index) const;
  const TensorSpec& spec(int index) const;
  // The tensor's name in the graph: without the "#2" of a second shard on one rank.
  const std::string& tensor_name(int index) const;
  // Whether the buffer is another view of the memory of an earlier, kept one.
  bool is_alias(int index) const;
  // By the buffer's own name; -1 if there is none.
  int FindBuffer(const std::string& name) const;
  // `bytes` from the start of the buffer (all of it, or less); host memory.
  absl::Status ReadBuffer(int index, void* host, int64_t bytes);
  // From byte `offset` of the buffer on.
  absl::Status WriteBuffer(int index, const void* host, int64_t bytes, int64_t offset = 0);

  // A parameter that a swap_in brings may lie in files between steps, which hold it as memory does,
  // so that it takes no host memory: if CanBeFileBacked. SetBackingFiles gives back what it took;
  // writing it takes memory again. Files that are written to meanwhile fail the step. Errors:
  // InvalidArgument.
  bool CanBeFileBacked(int index) const;
  absl::Status SetBackingFiles(int index, std::vector<FileRange> runs);

  const v1::Program& program() const;
  // What was allocated, but for what swapped tensors take on the host: arena, largest workspace,
  // staging.
  int64_t measured_peak_bytes() const;

 private:
  class State;
  explicit Executor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier
