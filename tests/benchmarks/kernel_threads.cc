// Step times of serving programs with kernels on a private thread team
// (ops/cpu/threading/thread_team.h), as in production, and on OpenMP threads: alone, and beside
// busy background threads. Models have random weights.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "ops/quantized/quantize_graph.h"
#include "tests/benchmarks/dummy_batch.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "tests/benchmarks/serving_models.h"
#include "tests/benchmarks/workload.h"
#include "worker/device/device.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "of the model");
ABSL_FLAG(int, background_threads, 2, "busy threads beside the model, in half of the rounds");
ABSL_FLAG(int, layers, 6, "of the wide model; all else is LLaMA 1B's");
ABSL_FLAG(int, rounds, 9, "turns");
ABSL_FLAG(int, steps, 30, "in each turn");

namespace espalier {
namespace {

constexpr int kRows[] = {1, 8};
constexpr int kMostRows = 8;

// A CPU device whose kernels always run on OpenMP threads.
class OpenMpDevice : public Device {
 public:
  explicit OpenMpDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  absl::Status EnterThread(KernelThreads) override {
    return device_->EnterThread(KernelThreads::kOpenMp);
  }

  const v1::Device& description() const override { return device_->description(); }
  bool is_host() const override { return device_->is_host(); }
  const KernelRegistry& kernels() const override { return device_->kernels(); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    return device_->Allocate(bytes);
  }
  absl::Status CopyToDevice(void* to, const void* host, int64_t bytes) override {
    return device_->CopyToDevice(to, host, bytes);
  }
  absl::Status CopyToHost(void* host, const void* from, int64_t bytes) override {
    return device_->CopyToHost(host, from, bytes);
  }
  absl::Status CopyBox(const BoxCopy& copy) override { return device_->CopyBox(copy); }
  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) override {
    return device_->AllocateHost(bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* from, int64_t bytes) override {
    return device_->BeginCopyToHost(host, from, bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void* to, const void* host, int64_t bytes) override {
    return device_->BeginCopyToDevice(to, host, bytes);
  }
  absl::Status AwaitCopy(uint64_t ticket) override { return device_->AwaitCopy(ticket); }
  absl::Status Fill(void* to, DType dtype, int64_t count, double value) override {
    return device_->Fill(to, dtype, count, value);
  }

 private:
  // Returns the memory to the device that allocated it.
  void Free(void*, int64_t) override {}

  std::unique_ptr<Device> device_;
};

// Threads that compute without memory traffic until destroyed.
class BackgroundThreads {
 public:
  explicit BackgroundThreads(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        volatile uint64_t x = 1;
        while (!stop_.load(std::memory_order_relaxed)) x = x * 6364136223846793005u + 1;
      });
    }
  }
  ~BackgroundThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

struct Subject {
  std::string name;
  ServedModel models[2];  // on OpenMP threads, on the thread team
};

absl::StatusOr<Subject> Make(const OpRegistry& registry, const std::string& name,
                             const LlamaConfig& config, WeightFormat format) {
  ServingShape shape;
  shape.max_rows = shape.max_output_rows = kMostRows;
  shape.kv_slots = shape.max_context_slots = 256;
  shape.max_sequences = kMostRows;
  shape.max_ancestor_slots = 1;
  Subject subject{absl::StrCat(name, ", ", Name(format)), {}};
  for (int own = 0; own < 2; ++own) {
    std::unique_ptr<Device> device =
        NewCpuDevice({absl::GetFlag(FLAGS_threads), int64_t{8} << 30, ""});
    if (own == 0) device = std::make_unique<OpenMpDevice>(std::move(device));
    absl::StatusOr<ServedModel> model =
        LoadForServing(registry, config, shape, format, {}, std::move(device));
    if (!model.ok()) return model.status();
    if (absl::Status s = FillAtRandom(*model); !s.ok()) return s;
    subject.models[own] = *std::move(model);
  }
  return subject;
}

// Measures milliseconds per step. First waits until the previous model's threads sleep, and warms
// up this one's.
absl::Status Measure(ServedModel& model, int rows, std::vector<double>* ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const RunnerBatch batch = DummyBatch(rows);
  RunnerOutput logits;
  for (int i = 0; i < 3; ++i) {
    if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
  }
  for (int i = 0; i < absl::GetFlag(FLAGS_steps); ++i) {
    const double start = Seconds();
    if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
    ms->push_back((Seconds() - start) * 1e3);
  }
  return absl::OkStatus();
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  std::vector<Subject> subjects;
  const std::pair<std::string, LlamaConfig> configs[] = {{"ssm", LlamaOf("ssm")},
                                                         {"llm", LlamaOf("llm")}};
  for (const auto& [name, config] : configs) {
    absl::StatusOr<Subject> subject = Make(registry, name, config, WeightFormat::kF32);
    if (!subject.ok()) return subject.status();
    subjects.push_back(*std::move(subject));
  }
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    absl::StatusOr<Subject> subject =
        Make(registry, "wide", WideLlama(absl::GetFlag(FLAGS_layers)), format);
    if (!subject.ok()) return subject.status();
    subjects.push_back(*std::move(subject));
  }
  for (const int busy : {0, absl::GetFlag(FLAGS_background_threads)}) {
    report->Table(
        busy == 0 ? std::string("Alone") : absl::StrCat("Beside ", busy, " threads that compute"),
        {"model", "rows", "OpenMP: ms", "mean", "own: ms", "mean", "own / OpenMP", "of the means"});
    for (Subject& subject : subjects) {
      for (const int rows : kRows) {
        std::vector<double> ms[2], ratios, of_means;
        for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
          const BackgroundThreads neighbours(busy);
          std::vector<double> turn[2];
          for (int k = 0; k < 2; ++k) {
            const int own = (round + k) % 2;
            if (absl::Status s = Measure(subject.models[own], rows, &turn[own]); !s.ok()) return s;
            ms[own].insert(ms[own].end(), turn[own].begin(), turn[own].end());
          }
          ratios.push_back(Median(turn[1]) / Median(turn[0]));
          of_means.push_back(Mean(turn[1]) / Mean(turn[0]));
        }
        report->Row({Text(subject.name), Number(rows, 0), Number(Median(ms[0]), 3),
                     Number(Mean(ms[0]), 3), Number(Median(ms[1]), 3), Number(Mean(ms[1]), 3),
                     Number(Median(ratios), 2), Number(Median(of_means), 2)});
      }
    }
    std::fprintf(stderr, "%d busy: done\n", busy);
  }
  report->Note(absl::StrCat("Of a step: the first tokens of so many sequences; ",
                            absl::GetFlag(FLAGS_threads), " threads; ", absl::GetFlag(FLAGS_rounds),
                            " turns of ", absl::GetFlag(FLAGS_steps),
                            " steps. ms: the median over all; ratios: medians over the turns."));
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("kernel_threads");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "kernel_threads: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
