// Runs training steps on request, so that training_throughput.py can alternate with another
// program. Reads commands from standard input until its end: "run N" prints the seconds of N steps
// and the last loss; "profile N" prints seconds per step by operator over N steps.
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "nlohmann/json.hpp"
#include "ops/operators/register_all.h"
#include "tests/benchmarks/single_device_program.h"
#include "tests/benchmarks/workload.h"
#include "worker/data/batch_loader.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

ABSL_FLAG(std::string, workload, "llm", "lm, llm, ssm or cnn");
ABSL_FLAG(int, threads, 2, "of the one process");

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

void Answer(const Json& json) {
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

absl::Status Serve() {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<Workload> work = MakeWorkload(registry, absl::GetFlag(FLAGS_workload));
  if (!work.ok()) return work.status();
  std::unique_ptr<Device> device = NewCpuDevice({absl::GetFlag(FLAGS_threads), 0});
  absl::StatusOr<v1::Program> program = SingleDeviceProgram(registry, *work, device->description());
  if (!program.ok()) return program.status();
  BatchLoaderOptions loading;
  loading.batch_size = work->batch;
  loading.seed = 7;
  auto loader = BatchLoader::Create(work->dataset, loading);
  if (!loader.ok()) return loader.status();
  auto executor = Executor::Create(*program, {.device = device.get(), .source = loader->get()});
  if (!executor.ok()) return executor.status();
  Answer({{"description", work->description},
          {"tokens_per_step", work->tokens_per_step},
          {"instructions", program->instructions_size()},
          {"peak_bytes", (*executor)->measured_peak_bytes()}});
  int64_t step = 0;
  std::string verb;
  for (int count = 0; std::cin >> verb >> count;) {
    const bool profile = verb == "profile";
    std::map<std::string, std::pair<double, int>> by_op;
    double loss = 0;
    const double start = Seconds();
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<StepResult> done = (*executor)->Step(step++, profile);
      if (!done.ok()) return done.status();
      loss = done->values["loss"];
      for (const InstructionTime& time : done->profile) {
        by_op[time.op].first += time.seconds / count;
        by_op[time.op].second += i == 0;
      }
    }
    Json answer = {{"seconds", Seconds() - start}, {"loss", loss}, {"profile", Json::array()}};
    for (const auto& [op, time] : by_op) {
      answer["profile"].push_back(
          {{"op", op}, {"seconds", time.first}, {"instructions", time.second}});
    }
    Answer(answer);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (absl::Status status = espalier::Serve(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
