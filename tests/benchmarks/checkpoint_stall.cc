// How long the steps of a job wait at a checkpoint, compared with a plain copy of the same values
// by one thread into memory that has been written to before, at other steps of the same run.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "ops/operators/register_all.h"
#include "storage/folder_checkpoint_store.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "tests/benchmarks/single_device_program.h"
#include "tests/benchmarks/workload.h"
#include "worker/data/batch_loader.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"
#include "worker/trainer/checkpoint_observer.h"
#include "worker/trainer/trainer.h"

ABSL_FLAG(std::vector<std::string>, workloads, (std::vector<std::string>{"cnn", "llm"}),
          "names of tests/benchmarks/workload.h");
ABSL_FLAG(int, batch, 16, "examples of a step");
ABSL_FLAG(int, checkpoints, 40, "of each workload");
ABSL_FLAG(int, every, 10, "steps between two checkpoints");
ABSL_FLAG(std::string, folder, "", "for the checkpoints; default: the system's temporary one");

namespace espalier {
namespace {

// Copies what a checkpoint holds, half way between two of them.
class Copying : public StepObserver {
 public:
  Copying(Executor* executor, int every) : executor_(*executor), every_(every) {
    for (int i = 0; i < executor_.num_buffers(); ++i) {
      if (!IsCheckpointed(executor_, i)) continue;
      buffers_.push_back(i);
      bytes_ += executor_.spec(i).bytes();
    }
    copy_.resize(static_cast<size_t>(bytes_), 1);
  }

  absl::string_view name() const override { return "copying"; }
  absl::Status OnStepReported(TrainingRun&, int64_t step, const StepReports&) override {
    if ((step + 1) % every_ != every_ / 2) return absl::OkStatus();
    const double begin = Seconds();
    char* to = copy_.data();
    for (const int i : buffers_) {
      const auto bytes = static_cast<size_t>(executor_.spec(i).bytes());
      std::memcpy(to, executor_.HostData(i), bytes);
      to += bytes;
    }
    seconds.push_back(Seconds() - begin);
    return absl::OkStatus();
  }

  int64_t bytes() const { return bytes_; }
  size_t buffers() const { return buffers_.size(); }
  std::vector<double> seconds;

 private:
  Executor& executor_;
  const int every_;
  std::vector<int> buffers_;
  int64_t bytes_ = 0;
  std::vector<char> copy_;
};

absl::Status Measure(const std::string& name, Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<Workload> work = MakeWorkload(registry, name, absl::GetFlag(FLAGS_batch));
  if (!work.ok()) return work.status();
  std::unique_ptr<Device> device = NewCpuDevice({});
  absl::StatusOr<v1::Program> program = SingleDeviceProgram(registry, *work, device->description());
  if (!program.ok()) return program.status();
  BatchLoaderOptions loading;
  loading.batch_size = work->batch;
  loading.seed = 7;
  auto loader = BatchLoader::Create(work->dataset, loading);
  if (!loader.ok()) return loader.status();
  auto executor = Executor::Create(*program, {.device = device.get(), .source = loader->get()});
  if (!executor.ok()) return executor.status();
  if (absl::Status s = device->EnterThread(KernelThreads::kOpenMp); !s.ok()) return s;

  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  std::string folder = absl::GetFlag(FLAGS_folder);
  if (folder.empty()) folder = std::filesystem::temp_directory_path().string();
  folder = JoinPath(folder, absl::StrCat("espalier-checkpoint-stall-", name));
  FolderCheckpointStore store(*files, folder);
  const int every = absl::GetFlag(FLAGS_every);
  std::vector<double> stalls, steps, writes;
  Copying copying(executor->get(), every);
  {
    ShardWriter writer({&store, executor->get(), device.get()});
    CheckpointObserver checkpoint({&writer, "job", every, 1});
    TrainerOptions options;
    options.executor = executor->get();
    options.end = int64_t{every} * absl::GetFlag(FLAGS_checkpoints);
    options.observers = {&checkpoint, &copying};
    options.emit = [&](const v1::RunEvent& event) {
      if (event.has_step()) steps.push_back(event.step().seconds());
      if (!event.has_shard()) return absl::OkStatus();
      // Of the last one it has the wait at the end of the run.
      if (event.shard().steps_done() < options.end) {
        stalls.push_back(event.shard().stall_seconds());
        writes.push_back(event.shard().write_seconds());
      }
      return store.Delete(event.shard().directory());
    };
    if (absl::Status s = Trainer(options).Run(); !s.ok()) return s;
  }
  std::filesystem::remove_all(folder);
  report->Row({Text(name), Number(static_cast<double>(copying.bytes()), 0),
               Number(static_cast<double>(copying.buffers()), 0),
               Number(1e3 * Median(copying.seconds), 3), Number(1e3 * Median(stalls), 3),
               Number(1e3 * stalls[0], 3),
               Number(1e3 * *std::max_element(stalls.begin() + 1, stalls.end()), 3),
               Number(1e3 * Median(writes), 1), Number(1e3 * Median(steps), 2)});
  return absl::OkStatus();
}

int Main() {
  Report report("checkpoint_stall");
  report.Table("Stall of the steps at a checkpoint, milliseconds (medians)",
               {"workload", "bytes", "tensors", "copy", "stall", "first stall", "longest other",
                "durable after", "step"});
  for (const std::string& name : absl::GetFlag(FLAGS_workloads)) {
    if (absl::Status s = Measure(name, &report); !s.ok()) {
      std::fprintf(stderr, "%s\n", s.ToString().c_str());
      return 1;
    }
  }
  return report.Print(false, "");
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return espalier::Main();
}
