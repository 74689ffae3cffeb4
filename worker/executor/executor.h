// Runs a program on one device, for training and serving alike.
//
// Create validates the program, makes a kernel for each compute or update instruction, allocates
// one arena, and fills parameters from their initializers, keyed by seed, name and index in the
// whole tensor, so that every sharding starts from the same values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/program.pb.h"
#include "ops/tensor/view.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/executor/batch_source.h"

namespace espalier {

class Executor;

struct ExecutorOptions {
  Device* device = nullptr;  // outlives the executor
  // Required if the program sends, receives or has collectives. SetCommunicator may set it later,
  // before the first step.
  Communicator* communicator = nullptr;
  BatchSource* source = nullptr;  // required if the program loads batches
  bool training = true;           // for dropout and batch norm
  // The caller writes all buffers whose initializer is STORED before the first step
  // (worker/stored_values.h). Otherwise programs with such buffers are refused.
  bool fills_stored = false;
  // Reads parameters (by tensor and region) from that executor, which must outlive this one, so
  // that evaluation sees the trained values. Also shares its workspace if that is large enough, and
  // its arena if this program fits into memory that the other does not keep between steps; the
  // planner lays out evaluation programs accordingly. The two must not run at the same time.
  Executor* share_parameters = nullptr;
};

// Sizes of the dynamic dimensions of serving programs; other programs ignore them.
struct DynamicSizes {
  int64_t rows = 0;
  int64_t output_rows = 0;
};

// How Executor::RunPart runs instructions.
struct PassOptions {
  int64_t step = 0;    // of random numbers, and of the batch
  int64_t update = 0;  // of the learning rate schedule; the optimizer's step is one more
  std::optional<double> learning_rate = std::nullopt;  // instead of the schedule's
  bool reports = true;                                 // false: skips Report instructions
  bool allow_not_finite = false;                       // also reports a "loss" that is not finite
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

// A buffer that a step hands out while it runs.
struct BufferRead {
  int instructions = 0;  // once so many instructions have run, at least 1
  int buffer = 0;
};
// `read`: index of the BufferRead. The values are in host memory, and stay only during the call.
using OnBufferRead = std::function<absl::Status(int read, const TensorView& values)>;

// Not thread-safe. Not movable.
class Executor {
 public:
  // Returns InvalidArgument naming the buffer or the instruction (index and node);
  // ResourceExhausted if memory is short.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const v1::Program& program,
                                                          const ExecutorOptions& options);
  ~Executor();

  void SetCommunicator(Communicator* communicator);

  // Runs every instruction once. `step` counts from 0. Errors name the instruction and its node. A
  // reported "loss" that is not finite is an error that names the step and a remedy.
  absl::StatusOr<StepResult> Step(int64_t step, bool profile = false,
                                  const DynamicSizes& sizes = {});

  // Every Step from now on calls `on_read` for each of `reads`, on its thread; an error ends the
  // step. No reads: none. They change no result: the instructions and their memory stay as they
  // are, so a buffer must be read before its memory is used again. Instructions that one kernel
  // runs together count as run once all are. Returns InvalidArgument for an index out of range.
  absl::Status ReadDuringSteps(std::vector<BufferRead> reads, OnBufferRead on_read);

  // Runs instructions [begin, end) once: a pass of a program whose other passes run by other calls,
  // which find the buffers as this one leaves them. Ends all copies that it started. All ranks run
  // the same passes, in the same order. Returns InvalidArgument if the program has no such
  // instructions, or runs some of them fused with others; otherwise errors as Step.
  absl::StatusOr<StepResult> RunPart(int begin, int end, const PassOptions& options);

  // Buffers by their index in the program. A parameter with a swap_in and no swap_out is on the
  // host between steps; ReadBuffer and WriteBuffer access that copy.
  int num_buffers() const;
  const v1::Buffer& buffer(int index) const;
  const TensorSpec& spec(int index) const;
  // The tensor's name in the graph, without the "#2" of a second shard on one rank.
  const std::string& tensor_name(int index) const;
  // True if the buffer is a view of the memory of an earlier kept buffer.
  bool is_alias(int index) const;
  // Finds a buffer by its own name; returns -1 if there is none.
  int FindBuffer(const std::string& name) const;
  // Copies the first `bytes` bytes of the buffer to host memory.
  absl::Status ReadBuffer(int index, void* host, int64_t bytes);
  // Writes from byte `offset` of the buffer on.
  absl::Status WriteBuffer(int index, const void* host, int64_t bytes, int64_t offset = 0);
  // The buffer's memory, for writing between steps, also by several threads. Null if it is not in
  // the host's memory: then WriteBuffer writes it.
  uint8_t* HostData(int index);

  // A streamed parameter may stay in files between steps that hold its bytes as memory does, so
  // that it takes no host memory. SetBackingFiles frees its host slot; WriteBuffer allocates one
  // again. A file modified meanwhile fails the step. REQUIRES: CanBeFileBacked(index), else
  // InvalidArgument.
  bool CanBeFileBacked(int index) const;
  absl::Status SetBackingFiles(int index, std::vector<FileRange> runs);

  const v1::Program& program() const;
  // Bytes allocated: arena, largest workspace (neither if shared), staging. Excludes host memory of
  // swapped tensors.
  int64_t measured_peak_bytes() const;

 private:
  class State;
  explicit Executor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier
