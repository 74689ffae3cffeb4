// The coordinator with many workers and queued jobs: time of submissions, lists and heartbeats
// through gRPC on loopback, its memory, and the time of a decision of the queue. The coordinator
// runs in a process of its own; the workers are busy, and send heartbeats as real ones do, each
// over its own connection.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/training.grpc.pb.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "server/coordinator.h"
#include "server/jobs/job_queue.h"
#include "server/membership/worker_registry.h"
#include "storage/data_dir_id.h"
#include "tests/benchmarks/report.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, workers, 1000, "that have joined");
ABSL_FLAG(int, jobs, 10000, "that are queued before the measurement");
ABSL_FLAG(double, seconds, 15, "of each measurement");
ABSL_FLAG(std::string, serve, "", "run the coordinator here; what this program itself starts");
ABSL_FLAG(std::string, folder, "", "for the coordinator's data; empty: in the temporary folder");

namespace espalier {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(2500);  // as espalierd tells its workers
constexpr char kBusyWith[] = "another job";

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "coordinator_scale: " << what << std::endl;
  std::exit(1);
}
void Check(const grpc::Status& status, const char* doing) {
  if (!status.ok()) Fail(absl::StrCat(doing, ": ", status.error_message()));
}

// The coordinator's process: says its address, then assigns all workers that have joined on
// request.
int Serve(const std::string& folder) {
  constexpr int from_parent = STDIN_FILENO, to_parent = STDOUT_FILENO;
  spdlog::set_level(spdlog::level::off);  // it would write to standard output
  CoordinatorOptions options;
  options.data_dir = folder;
  options.dataset_roots = {std::filesystem::path(folder).parent_path().string()};
  options.measure_seconds = 0;
  auto opened = Coordinator::Open(options);
  if (!opened.ok()) Fail(std::string(opened.status().message()));
  if (absl::Status s = (*opened)->Start(); !s.ok()) Fail(std::string(s.message()));
  const std::string address = (*opened)->grpc_address() + "\n";
  if (write(to_parent, address.data(), address.size()) < 0) Fail("pipe");
  for (char request; read(from_parent, &request, 1) == 1;) {
    if (request == 'q') break;
    const std::vector<Member> idle = (*opened)->workers().Idle();
    if (!(*opened)->workers().Assign(idle, kBusyWith).ok()) Fail("cannot assign the workers");
    if (write(to_parent, "a", 1) < 0) Fail("pipe");
  }
  (*opened)->Stop();
  return 0;
}

class Child {
 public:
  explicit Child(const std::string& folder) {
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) Fail("pipe");
    started_ = absl::Now();
    pid_ = fork();
    if (pid_ == 0) {
      const std::string serve = "--serve=" + folder;
      dup2(down[0], STDIN_FILENO);
      dup2(up[1], STDOUT_FILENO);
      for (const int end : {up[0], up[1], down[0], down[1]}) close(end);
      execl("/proc/self/exe", "coordinator", serve.c_str(), nullptr);
      _exit(1);
    }
    close(up[1]);
    close(down[0]);
    from_ = up[0];
    to_ = down[1];
    for (char c; read(from_, &c, 1) == 1 && c != '\n';) address_ += c;
    seconds_to_start_ = absl::ToDoubleSeconds(absl::Now() - started_);
    if (address_.empty()) Fail("the coordinator does not start");
  }
  void AssignAll() {
    char done;
    if (write(to_, "a", 1) < 0 || read(from_, &done, 1) != 1) Fail("the coordinator has ended");
  }
  void Stop() {
    if (write(to_, "q", 1) < 0) Fail("the coordinator has ended");
    waitpid(pid_, nullptr, 0);
    close(from_);
    close(to_);
  }
  const std::string& address() const { return address_; }
  double seconds_to_start() const { return seconds_to_start_; }
  // Resident memory, without what files have in the page cache.
  double MebiBytes() const {
    std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
    for (std::string word; status >> word;) {
      if (word != "RssAnon:") continue;
      double kib = 0;
      status >> kib;
      return kib / 1024;
    }
    return 0;
  }

 private:
  pid_t pid_ = 0;
  int from_ = -1, to_ = -1;
  absl::Time started_;
  double seconds_to_start_ = 0;
  std::string address_;
};

// Answers the coordinator's question at Join, for all workers: they differ in their addresses.
class Probed : public v1::Worker::Service {
 public:
  grpc::Status Probe(grpc::ServerContext*, const v1::ProbeRequest* request,
                     v1::ProbeReply* reply) override {
    reply->set_sees_data_dir(true);
    reply->set_may_write(true);
    return grpc::Status::OK;
  }
};

struct Times {
  void Add(absl::Duration time) {
    absl::MutexLock lock(&mutex);
    millis.push_back(absl::ToDoubleMilliseconds(time));
  }
  double At(double part) {
    absl::MutexLock lock(&mutex);
    if (millis.empty()) return 0;
    std::sort(millis.begin(), millis.end());
    return millis[std::min(millis.size() - 1,
                           static_cast<size_t>(part * static_cast<double>(millis.size())))];
  }
  absl::Mutex mutex;
  std::vector<double> millis ABSL_GUARDED_BY(mutex);
};

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address, int number) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("espalier.connection", number);  // otherwise channels share one
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Workers that have joined and send heartbeats from a few threads until destruction.
class Workers {
 public:
  Workers(const std::string& coordinator, int count) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("0.0.0.0:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&probed_);
    server_ = builder.BuildAndStart();
    for (int i = 0; i < count; ++i) {
      stubs_.push_back(v1::Cluster::NewStub(OwnChannel(coordinator, i)));
      v1::JoinRequest request;
      request.set_name(absl::StrCat("worker-", i));
      request.set_address(absl::StrCat("127.0.", 1 + i / 250, ".", 1 + i % 250, ":", port));
      request.set_host(absl::StrCat("host-", i / 8));
      request.set_protocol_version(kProtocolVersion);
      request.set_call_key(std::string(32, 'k'));
      v1::Device* const device = request.mutable_device();
      device->set_kind(v1::Device::CPU);
      device->set_model("none");
      device->set_memory_bytes(int64_t{1} << 34);
      device->set_matmul_flops(1e12);
      device->set_memory_bandwidth(1e11);
      device->set_op_overhead_seconds(1e-6);
      device->set_threads(8);
      grpc::ClientContext context;
      v1::JoinReply reply;
      Check(stubs_.back()->Join(&context, request, &reply), "joining");
      leases_.push_back(reply.lease());
    }
    constexpr int kThreads = 4;
    for (int t = 0; t < kThreads; ++t) {
      threads_.emplace_back([this, t] { Beat(t, kThreads); });
    }
  }
  ~Workers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    server_->Shutdown();
  }
  Times& times() { return times_; }
  int failed() const { return failed_; }

 private:
  void Beat(int first, int stride) {
    const auto count = static_cast<int>(stubs_.size());
    const absl::Duration pause = kHeartbeat * stride / count;
    absl::Time next = absl::Now();
    for (int i = first; !stop_; i = i + stride < count ? i + stride : first) {
      next += pause;
      absl::SleepFor(next - absl::Now());
      v1::HeartbeatRequest request;
      *request.mutable_lease() = leases_[static_cast<size_t>(i)];
      grpc::ClientContext context;
      v1::HeartbeatReply reply;
      const absl::Time before = absl::Now();
      failed_ += stubs_[static_cast<size_t>(i)]->Heartbeat(&context, request, &reply).ok() ? 0 : 1;
      times_.Add(absl::Now() - before);
    }
  }

  Probed probed_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<v1::Cluster::Stub>> stubs_;
  std::vector<v1::Lease> leases_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> failed_ = 0;
  Times times_;
};

// Writes and syncs a block of a file, ten times a second, until destruction: what the disk alone
// takes of a submission, which is durable when it is answered.
class Syncs {
 public:
  explicit Syncs(const std::string& path) {
    thread_ = std::thread([this, path] {
      const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      const std::string block(4096, 'x');
      while (!stop_) {
        const absl::Time before = absl::Now();
        if (write(file, block.data(), block.size()) < 0 || fdatasync(file) != 0) Fail("sync");
        times_.Add(absl::Now() - before);
        absl::SleepFor(absl::Milliseconds(100));
      }
      close(file);
    });
  }
  ~Syncs() {
    stop_ = true;
    thread_.join();
  }
  Times& times() { return times_; }

 private:
  std::thread thread_;
  std::atomic<bool> stop_ = false;
  Times times_;
};

// A language model of a few layers, as graphs of users have tens of nodes.
v1::TrainingSpec SpecOf(const std::string& text) {
  OpRegistry operators;
  RegisterAllOperators(operators);
  GraphBuilder builder(operators, "small");
  const ValueId tokens = builder.Input("tokens", DType::kI32, {-1, 8});
  const ValueId targets = builder.Input("targets", DType::kI32, {-1, 8});
  const Initializer normal{Initializer::kNormal, 0.1};
  ValueId hidden =
      builder.Op("embedding", {tokens, builder.Parameter("table", DType::kF32, {256, 16}, normal)});
  for (int i = 0; i < 8; ++i) {
    const ValueId weight =
        builder.Parameter(absl::StrCat("layer", i, ".weight"), DType::kF32, {16, 16}, normal);
    hidden = builder.Op("relu", {builder.Op("linear", {hidden, weight})});
  }
  const ValueId head = builder.Parameter("head", DType::kF32, {256, 16}, normal);
  builder.Output("loss", builder.Op("sparse_categorical_crossentropy",
                                    {builder.Op("linear", {hidden, head}), targets}));
  v1::TrainingSpec spec;
  spec.set_name("small");
  *spec.mutable_graph() = ToProto(*builder.Build());
  spec.mutable_dataset()->set_uri(text);
  spec.mutable_dataset()->set_format(v1::Dataset::TEXT);
  spec.mutable_dataset()->set_sequence_length(8);
  spec.set_batch_size(4);
  spec.set_steps(100);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->mutable_learning_rate()->set_peak(0.001);
  return spec;
}

// Calls `call` from `clients` threads, each with its own connection, one call after the other.
std::unique_ptr<Times> Measure(
    const std::string& address, int clients, const std::function<bool(int64_t call)>& go_on,
    const std::function<grpc::Status(v1::Training::Stub& stub, int64_t call)>& call) {
  auto times = std::make_unique<Times>();
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      const auto stub = v1::Training::NewStub(OwnChannel(address, 100'000 + c));
      for (int64_t i; go_on(i = next++);) {
        const absl::Time before = absl::Now();
        Check(call(*stub, i), "a call");
        times->Add(absl::Now() - before);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return times;
}

// Microseconds of one decision of the queue: the first job, its start, and another that comes.
double DecisionMicros(int jobs, int owners) {
  JobQueue queue;
  std::mt19937 random(3);
  std::map<std::string, double> used;
  int64_t number = 0;
  const auto put = [&] {
    ++number;
    queue.Put({.id = absl::StrCat("job-", number),
               .owner = absl::StrCat("owner-", random() % static_cast<unsigned>(owners)),
               .number = number,
               .priority = static_cast<int32_t>(random() % 5)});
  };
  while (queue.size() < jobs) put();
  constexpr int kDecisions = 20'000;
  const absl::Time before = absl::Now();
  for (int i = 0; i < kDecisions; ++i) {
    queue.SetWorkers(1000);
    const WaitingJob* const first =
        queue.First([&](const std::string& owner) { return used[owner]; });
    used[first->owner] += 1;
    queue.Remove(std::string(first->id));
    put();
  }
  return absl::ToDoubleMicroseconds(absl::Now() - before) / kDecisions;
}

int Run() {
  const int jobs = absl::GetFlag(FLAGS_jobs), count = absl::GetFlag(FLAGS_workers);
  std::string folder = absl::GetFlag(FLAGS_folder);
  if (folder.empty()) {
    folder = (std::filesystem::temp_directory_path() / absl::StrCat("coordinator-scale-", getpid()))
                 .string();
  }
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string text = folder + "/text";
  std::ofstream(text) << std::string(4096, 'e');

  auto coordinator = std::make_unique<Child>(folder + "/data");
  const double empty = coordinator->MebiBytes();
  auto workers = std::make_unique<Workers>(coordinator->address(), count);
  coordinator->AssignAll();
  const double with_workers = coordinator->MebiBytes();
  const v1::TrainingSpec spec = SpecOf(text);
  const auto submit = [&](v1::Training::Stub& stub, int64_t call) {
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_idempotency_key(absl::StrCat("call-", call, "-", absl::ToUnixNanos(absl::Now())));
    grpc::ClientContext context;
    v1::SubmitReply reply;
    return stub.Submit(&context, request, &reply);
  };
  const auto for_a_while = [] {
    return [end = absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_seconds))](int64_t) {
      return absl::Now() < end;
    };
  };
  Measure(
      coordinator->address(), 16, [&](int64_t call) { return call < jobs; }, submit);
  const double with_jobs = coordinator->MebiBytes();

  Syncs syncs(folder + "/synced");
  Report report("coordinator_scale");
  report.Table(absl::StrCat("Calls with ", count, " workers and ", jobs, " queued jobs, ms"),
               {"call", "clients", "per second", "p50", "p90", "p99", "largest"});
  const auto row = [&](const std::string& name, int clients,
                       const std::unique_ptr<Times>& measured) {
    Times& times = *measured;
    size_t calls;
    {
      absl::MutexLock lock(&times.mutex);
      calls = times.millis.size();
    }
    report.Row({Text(name), Number(clients, 0),
                Number(static_cast<double>(calls) / absl::GetFlag(FLAGS_seconds), 0),
                Number(times.At(0.5), 2), Number(times.At(0.9), 2), Number(times.At(0.99), 2),
                Number(times.At(1), 2)});
  };
  for (const int clients : {1, 4, 8}) {
    row("Submit", clients, Measure(coordinator->address(), clients, for_a_while(), submit));
  }
  const auto list = [](int page, bool running) {
    return [page, running](v1::Training::Stub& stub, int64_t) {
      v1::ListJobsRequest request;
      request.set_page_size(page);
      request.set_newest_first(true);
      if (running) request.add_states(v1::RUNNING);
      grpc::ClientContext context;
      v1::ListJobsReply reply;
      return stub.List(&context, request, &reply);
    };
  };
  row("List, the newest 50", 2, Measure(coordinator->address(), 2, for_a_while(), list(50, false)));
  row("List, running ones", 2, Measure(coordinator->address(), 2, for_a_while(), list(50, true)));
  row("List, a page of 1000", 2,
      Measure(coordinator->address(), 2, for_a_while(), list(1000, false)));
  {
    Times& times = workers->times();
    report.Row({Text("Heartbeat, beside all of these"), Number(count, 0),
                Number(count / absl::ToDoubleSeconds(kHeartbeat), 0), Number(times.At(0.5), 2),
                Number(times.At(0.9), 2), Number(times.At(0.99), 2), Number(times.At(1), 2)});
  }
  report.Row({Text("A sync of the disk, beside all of these"), Number(1, 0), Number(10, 0),
              Number(syncs.times().At(0.5), 2), Number(syncs.times().At(0.9), 2),
              Number(syncs.times().At(0.99), 2), Number(syncs.times().At(1), 2)});
  report.Note(absl::StrCat(workers->failed(), " heartbeats were refused or lost."));
  const double at_the_end = coordinator->MebiBytes();
  workers.reset();
  coordinator->Stop();
  coordinator = std::make_unique<Child>(folder + "/data");
  report.Table("The coordinator's process", {"what", "value", "unit"});
  const auto value = [&](const std::string& what, double number, const char* unit) {
    report.Row({Text(what), Number(number, 1), Text(unit)});
  };
  value("memory, at the start", empty, "MiB");
  value(absl::StrCat("memory, with ", count, " workers"), with_workers, "MiB");
  value(absl::StrCat("memory, with ", jobs, " queued jobs, too"), with_jobs, "MiB");
  value("memory, after the measurements, which submit more", at_the_end, "MiB");
  value("time to start again with all of them", coordinator->seconds_to_start(), "s");
  value("memory then", coordinator->MebiBytes(), "MiB");
  coordinator->Stop();
  report.Table("A decision of the queue, microseconds", {"queued jobs", "owners", "time"});
  for (const int queued : {100, 10'000, 100'000}) {
    for (const int owners : {1, 100}) {
      report.Row({Number(queued, 0), Number(owners, 0), Number(DecisionMicros(queued, owners), 2)});
    }
  }
  std::filesystem::remove_all(folder);
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string serve = absl::GetFlag(FLAGS_serve);
  return serve.empty() ? espalier::Run() : espalier::Serve(serve);
}
