#include "tests/benchmarks/rank_processes.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/workload.h"
#include "worker/collective/measure_communication.h"
#include "worker/collective/process_communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

extern char** environ;

namespace espalier {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kMark[] = "--espalier-rank";

std::string Slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// A rendezvous store of files. A key exists once its file has its final name.
class FolderStore : public RendezvousStore {
 public:
  // `prefix`: of all keys.
  explicit FolderStore(fs::path folder, std::string prefix = "")
      : folder_(std::move(folder)), prefix_(std::move(prefix)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    const fs::path temporary = PathOf(key) += absl::StrCat(".", getpid());
    std::ofstream(temporary, std::ios::binary) << value;
    std::error_code error;
    fs::rename(temporary, PathOf(key), error);
    return error ? absl::InternalError(error.message()) : absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    while (!fs::exists(PathOf(key))) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat("no ", key));
      absl::SleepFor(absl::Milliseconds(1));
    }
    return Slurp(PathOf(key));
  }

 private:
  fs::path PathOf(const std::string& key) const {
    std::string name = "key";
    for (unsigned char c : prefix_ + key) absl::StrAppend(&name, absl::Hex(c, absl::kZeroPad2));
    return folder_ / name;
  }

  const fs::path folder_;
  const std::string prefix_;
};

absl::StatusOr<std::unique_ptr<Communicator>> Connect(RankNetwork network, int rank, int world,
                                                      RendezvousStore& store) {
  ProcessCommunicatorOptions options;
  options.rank = rank;
  options.size = world;
  options.timeout = absl::Seconds(120);
  options.share_memory = network == RankNetwork::kSharedMemory;
  options.network.encrypted = network != RankNetwork::kPlain;
  return ConnectProcesses(options, store);
}

absl::StatusOr<Json> Train(const Json& task, int rank, Communicator* communicator) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<Workload> work = MakeWorkload(registry, task["workload"], task["batch"]);
  if (!work.ok()) return work.status();
  absl::StatusOr<v1::Plan> plan = ImportPlan(task["plan"]);
  if (!plan.ok()) return plan.status();
  LoweringOptions lowering;
  lowering.optimizer = work->optimizer;
  lowering.seed = 7;
  lowering.columns = work->columns;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry, work->graph, *plan, lowering);
  if (!lowered.ok()) return lowered.status();
  BatchLoaderOptions loading;
  loading.batch_size = work->batch;
  loading.seed = 7;
  auto loader = BatchLoader::Create(work->dataset, loading);
  if (!loader.ok()) return loader.status();
  std::unique_ptr<Device> device = NewCpuDevice({task["threads"].get<int>(), 0});
  auto executor = Executor::Create(
      lowered->training[rank],
      {.device = device.get(), .communicator = communicator, .source = loader->get()});
  if (!executor.ok()) return executor.status();

  const int warmup = task["warmup"], timed = warmup + task["steps"].get<int>();
  const int all = timed + task["profiled_steps"].get<int>();
  Json result = {{"seconds", Json::array()}, {"losses", Json::array()}};
  std::map<std::string, double> profile;
  for (int step = 0; step < all; ++step) {
    const double start = Seconds();
    absl::StatusOr<StepResult> done = (*executor)->Step(step, step >= timed);
    if (!done.ok()) return done.status();
    if (step >= warmup && step < timed) result["seconds"].push_back(Seconds() - start);
    result["losses"].push_back(done->values.count("loss") > 0 ? done->values["loss"] : 0.0);
    for (const InstructionTime& time : done->profile) {
      profile[time.op] += time.seconds / (all - timed);
    }
  }
  result["profile"] = profile;
  return result;
}

absl::StatusOr<Json> MeasureLinks(Communicator* communicator) {
  std::unique_ptr<Device> device = NewCpuDevice({1, 0});
  absl::StatusOr<v1::CommunicationProfile> profile =
      MeasureCommunication(*communicator, *device, {.budget = absl::Minutes(1)});
  if (!profile.ok()) return profile.status();
  return Json{{"profile", absl::Base64Escape(profile->SerializeAsString())}};
}

// Seconds of one message from rank 0 to rank 1, as half of `repetitions` ping-pongs' mean.
absl::StatusOr<double> TimeMessage(Communicator& c, std::vector<float>& data, int repetitions) {
  const auto bytes = static_cast<int64_t>(data.size() * sizeof(float));
  const double begin = Seconds();
  absl::Status s;
  for (int i = 0; i < repetitions && s.ok(); ++i) {
    if (c.rank() == 0) s = c.Send(data.data(), bytes, 1, 1);
    if (s.ok()) s = c.Receive(data.data(), bytes, 1 - c.rank(), 1);
    if (s.ok() && c.rank() == 1) s = c.Send(data.data(), bytes, 0, 1);
  }
  if (s.ok()) s = c.Flush();
  if (!s.ok()) return s;
  return (Seconds() - begin) / (2 * repetitions);
}

absl::StatusOr<double> TimeAllReduce(Communicator& c, std::vector<float>& data, int repetitions) {
  const auto count = static_cast<int64_t>(data.size());
  const double begin = Seconds();
  for (int i = 0; i < repetitions; ++i) {
    absl::Status s = c.AllReduce(DType::kF32, data.data(), data.data(), count, {0, 1}, 2);
    if (s.ok()) s = c.EndStep();
    if (!s.ok()) return s;
  }
  return (Seconds() - begin) / repetitions;
}

absl::StatusOr<Json> TimeTransports(const Json& task, int rank, const fs::path& folder) {
  const std::vector<int> networks = task["networks"];
  std::vector<std::unique_ptr<Communicator>> all;
  for (size_t i = 0; i < networks.size(); ++i) {
    FolderStore store(folder, absl::StrCat("network", i, "-"));
    auto made = Connect(static_cast<RankNetwork>(networks[i]), rank, 2, store);
    if (!made.ok()) return made.status();
    all.push_back(*std::move(made));
  }
  Json result;
  for (const int64_t bytes : task["bytes"].get<std::vector<int64_t>>()) {
    std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float), 1.0f);
    const int repetitions = static_cast<int>(std::clamp<int64_t>((32 << 20) / bytes, 1, 500));
    for (int round = -1; round < task["rounds"].get<int>(); ++round) {
      for (size_t i = 0; i < all.size(); ++i) {
        absl::StatusOr<double> message = TimeMessage(*all[i], data, repetitions);
        if (!message.ok()) return message.status();
        absl::StatusOr<double> sum = TimeAllReduce(*all[i], data, repetitions);
        if (!sum.ok()) return sum.status();
        if (round < 0) continue;  // the first touches memory
        result[i]["message"][absl::StrCat(bytes)].push_back(*message);
        result[i]["all_reduce"][absl::StrCat(bytes)].push_back(*sum);
      }
    }
  }
  return result;
}

// Starts `world` processes of this program in a new folder, waits, and returns each one's result.
absl::StatusOr<std::vector<Json>> RunProcesses(int world, const Json& task) {
  std::string pattern = (fs::temp_directory_path() / "espalier-ranks-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return absl::InternalError("no temporary folder");
  const fs::path folder = pattern;
  std::ofstream(folder / "task") << task.dump();
  std::vector<pid_t> children;
  absl::Status status;
  for (int rank = 0; rank < world; ++rank) {
    std::string self = "/proc/self/exe", mark = kMark, path = folder.string();
    std::string number = absl::StrCat(rank), count = absl::StrCat(world);
    char* arguments[] = {self.data(),   mark.data(),  path.data(),
                         number.data(), count.data(), nullptr};
    pid_t child = 0;
    if (posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) != 0) {
      status = absl::InternalError("cannot start a process");
      break;
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int code = 0;
    waitpid(child, &code, 0);
    if (code != 0) status.Update(absl::InternalError("a rank failed; see its message above"));
  }
  std::vector<Json> results;
  for (int rank = 0; rank < world && status.ok(); ++rank) {
    results.push_back(Json::parse(Slurp(folder / absl::StrCat("result", rank))));
  }
  fs::remove_all(folder);
  if (!status.ok()) return status;
  return results;
}

}  // namespace

absl::StatusOr<RankProcessResult> TrainInRankProcesses(const v1::Plan& plan,
                                                       const RankProcessOptions& options) {
  absl::StatusOr<std::string> text = ExportPlan(plan);
  if (!text.ok()) return text.status();
  const Json task = {{"workload", options.workload},
                     {"batch", options.batch},
                     {"plan", *text},
                     {"warmup", options.warmup},
                     {"steps", options.steps},
                     {"profiled_steps", options.profiled_steps},
                     {"threads", options.threads},
                     {"network", static_cast<int>(options.network)}};
  absl::StatusOr<std::vector<Json>> ranks = RunProcesses(plan.devices_size(), task);
  if (!ranks.ok()) return ranks.status();
  RankProcessResult result;
  for (const Json& rank : *ranks) {
    const std::vector<double> seconds = rank["seconds"], losses = rank["losses"];
    result.median_seconds = std::max(result.median_seconds, Median(seconds));
    result.first_loss += losses.front();
    result.last_loss += losses.back();
    result.profiles.push_back(rank["profile"]);
  }
  return result;
}

absl::StatusOr<v1::CommunicationProfile> MeasureCommunicationBetweenRanks(int world) {
  absl::StatusOr<std::vector<Json>> ranks = RunProcesses(world, {{"communication", true}});
  if (!ranks.ok()) return ranks.status();
  std::string bytes;
  v1::CommunicationProfile profile;
  if (!absl::Base64Unescape((*ranks)[0]["profile"].get<std::string>(), &bytes) ||
      !profile.ParseFromString(bytes)) {
    return absl::InternalError("a rank gave no profile");
  }
  return profile;
}

absl::StatusOr<std::vector<TransportTimes>> MeasureTransports(
    const std::vector<RankNetwork>& networks, const std::vector<int64_t>& bytes, int rounds) {
  Json task = {{"networks", Json::array()}, {"bytes", bytes}, {"rounds", rounds}};
  for (const RankNetwork network : networks) task["networks"].push_back(static_cast<int>(network));
  absl::StatusOr<std::vector<Json>> ranks = RunProcesses(2, task);
  if (!ranks.ok()) return ranks.status();
  std::vector<TransportTimes> result(networks.size());
  for (size_t i = 0; i < networks.size(); ++i) {
    const Json& first = (*ranks)[0][i];
    for (const int64_t size : bytes) {
      result[i].message[size] = first["message"][absl::StrCat(size)].get<std::vector<double>>();
      result[i].all_reduce[size] =
          first["all_reduce"][absl::StrCat(size)].get<std::vector<double>>();
    }
  }
  return result;
}

bool IsRankProcess(int argc, char** argv) { return argc == 5 && std::string(argv[1]) == kMark; }

int RankMain(int argc, char** argv) {
  const fs::path folder = argv[2];
  const int rank = std::atoi(argv[3]), world = std::atoi(argv[4]);
  const Json task = Json::parse(Slurp(folder / "task"));
  FolderStore store(folder);
  std::unique_ptr<Communicator> communicator;
  absl::StatusOr<Json> result = absl::UnknownError("not run");
  if (task.contains("networks")) {
    result = TimeTransports(task, rank, folder);
  } else if (world > 1) {
    const int network = task.value("network", static_cast<int>(RankNetwork::kSharedMemory));
    auto connected = Connect(static_cast<RankNetwork>(network), rank, world, store);
    if (connected.ok()) communicator = *std::move(connected);
    if (!connected.ok()) result = connected.status();
  }
  if (!task.contains("networks") && (world == 1 || communicator != nullptr)) {
    result = task.contains("communication") ? MeasureLinks(communicator.get())
                                            : Train(task, rank, communicator.get());
  }
  if (!result.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, result.status().ToString().c_str());
    return 1;
  }
  std::ofstream(folder / absl::StrCat("result", rank)) << result->dump();
  // Waits until all ranks have read everything: closing a socket with unread data resets it.
  absl::Status done = store.Set(absl::StrCat("done", rank), "");
  for (int peer = 0; peer < world && done.ok(); ++peer) {
    done = store.Get(absl::StrCat("done", peer), absl::Seconds(60)).status();
  }
  return done.ok() ? 0 : 1;
}

}  // namespace espalier
