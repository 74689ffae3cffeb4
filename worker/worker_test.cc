// Workers over real gRPC with a fake coordinator.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "base/sha256.h"
#include "base/version.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/data_dir_id.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/manifest.h"
#include "worker/fake_coordinator.h"
#include "worker/local_worker.h"

namespace espalier {
namespace {

constexpr int kBatch = 4;
constexpr int kSequence = 16;

std::string TextOf(int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(i % 13 + (i / 7) % 17);
  return text;
}

const OpRegistry& Registry() {
  static const OpRegistry* registry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *registry;
}

LoweredPlan Lower(int devices) {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  auto graph = BuildLlamaTraining(Registry(), config, kSequence);
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(BindAndInfer(Registry(), kBatch, &*graph).ok());
  PlanProblem problem;
  problem.registry = &Registry();
  problem.graph = &*graph;
  problem.batch_size = kBatch;
  for (int i = 0; i < devices; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_memory_bytes(int64_t{1} << 30);
    device.set_matmul_flops(1e10);
    device.set_memory_bandwidth(1e10);
    problem.machine.devices.push_back(device);
  }
  problem.machine.link.set_bandwidth(1e9);
  problem.optimizer.set_name("adam");
  problem.optimizer.mutable_learning_rate()->set_peak(0.01);
  v1::SearchOptions search;
  search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                   : v1::SearchOptions::DATA_PARALLEL);
  auto plan = MakePlan(problem, search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  LoweringOptions options;
  options.optimizer = problem.optimizer;
  options.seed = 12;
  auto lowered = LowerPlan(Registry(), *graph, *plan, options);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

struct RunResult {
  grpc::Status status;
  std::map<int64_t, double> loss;
  std::vector<v1::CheckpointShard> shards;
  double evaluation = NAN;
  int64_t peak = 0;
  std::vector<v1::OperatorTimes> times;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    text_ = TextOf(3000);
    coordinator_.SetDataset("text", DatasetHash(), text_);
  }

  std::string DatasetHash() const {
    Sha256 hash;
    hash.Add(text_.data(), static_cast<int64_t>(text_.size()));
    return hash.Hex();
  }

  std::unique_ptr<LocalWorker> Start(const std::string& name) {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = name;
    options.threads = 1;
    options.memory_limit = 1 << 28;
    options.calibrate = false;
    options.cache_dir = root_ + "/cache";
    auto worker = StartWorker(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }
  // The worker's answer to a coordinator whose data folder holds `id`.
  v1::ProbeReply Probe(const LocalWorker& worker, const std::string& id) {
    grpc::ClientContext context;
    v1::ProbeRequest request;
    request.set_data_dir(root_);
    request.set_data_dir_id(id);
    v1::ProbeReply reply;
    EXPECT_TRUE(StubOf(worker)->Probe(&context, request, &reply).ok());
    return reply;
  }
  std::unique_ptr<v1::Worker::Stub> StubOf(const LocalWorker& worker) {
    return v1::Worker::NewStub(
        KeyedChannel(worker.address(), ChannelLimits(),
                     [key = coordinator_.CallKeyOf(worker.worker_id())] { return key; }));
  }
  v1::Attempt AttemptOf(const std::string& worker, uint64_t attempt) {
    v1::Attempt a;
    a.set_job_id("job");
    a.set_attempt(attempt);
    a.set_worker_epoch(coordinator_.EpochOf(worker));
    return a;
  }
  v1::LoadProgramRequest LoadRequest(const std::string& worker, uint64_t attempt,
                                     const LoweredPlan& plan, int rank) {
    v1::LoadProgramRequest request;
    *request.mutable_attempt() = AttemptOf(worker, attempt);
    *request.mutable_program() = plan.training[rank];
    *request.mutable_evaluation() = plan.evaluation[rank];
    request.mutable_dataset()->set_uri("artifact:text");
    request.mutable_dataset()->set_format(v1::Dataset::TEXT);
    request.mutable_dataset()->set_sequence_length(kSequence);
    request.mutable_dataset()->set_holdout_fraction(0.1);
    request.set_batch_size(kBatch);
    request.set_peer_timeout_seconds(20);
    return request;
  }
  grpc::Status Load(v1::Worker::Stub& stub, const v1::LoadProgramRequest& request) {
    grpc::ClientContext context;
    v1::LoadProgramReply reply;
    return stub.LoadProgram(&context, request, &reply);
  }
  RunResult Run(v1::Worker::Stub& stub, const v1::Attempt& attempt, int64_t first, int64_t last,
                int64_t every = 0, std::function<void(int64_t)> on_step = {}) {
    v1::RunRequest request;
    *request.mutable_attempt() = attempt;
    request.set_first_step(first);
    request.set_last_step(last);
    request.set_checkpoint_every_steps(every);
    request.set_checkpoint_root("job");
    request.set_evaluate_at_end(true);
    grpc::ClientContext context;
    auto reader = stub.Run(&context, request);
    RunResult result;
    v1::RunEvent event;
    while (reader->Read(&event)) {
      if (event.has_step()) {
        result.loss[event.step().step()] = event.step().values().at("loss");
        if (on_step) on_step(event.step().step());
      }
      if (event.has_shard()) result.shards.push_back(event.shard());
      if (event.has_evaluation()) result.evaluation = event.evaluation().values().at("loss");
      if (event.has_operator_times()) result.times.push_back(event.operator_times());
      if (event.measured_peak_bytes() > 0) result.peak = event.measured_peak_bytes();
    }
    result.status = reader->Finish();
    return result;
  }

  // The coordinator's data folder.
  const std::string root_ = JoinPath(
      testing::TempDir(),
      std::string("worker-") + testing::UnitTest::GetInstance()->current_test_info()->name());
  FakeCoordinator coordinator_{root_};
  std::string text_;
};

TEST_F(WorkerTest, ProbeFindsTheDataFolderByItsId) {
  auto worker = Start("w");
  std::filesystem::create_directories(root_);
  EXPECT_FALSE(Probe(*worker, "abc").sees_data_dir());
  std::ofstream(JoinPath(root_, kDataDirIdFile)) << "abc";
  EXPECT_TRUE(Probe(*worker, "abc").sees_data_dir());
  EXPECT_TRUE(Probe(*worker, "abc").may_write());
  EXPECT_FALSE(Probe(*worker, "another folder's").sees_data_dir());
  grpc::ClientContext context;
  v1::ProbeRequest request;
  request.set_join_key("another worker's");
  v1::ProbeReply reply;
  EXPECT_EQ(StubOf(*worker)->Probe(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

// A replay repeats the bits only on the same.
TEST_F(WorkerTest, ALoadedProgramSaysWhatItComputesWith) {
  auto worker = Start("a");
  grpc::ClientContext context;
  v1::LoadProgramReply reply;
  const grpc::Status loaded =
      StubOf(*worker)->LoadProgram(&context, LoadRequest("a", 1, Lower(1), 0), &reply);
  ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  EXPECT_EQ(reply.program_version(), kEspalierVersion);
  EXPECT_NE(reply.instruction_set().find("(oneDNN), "), std::string::npos)
      << reply.instruction_set();
  EXPECT_GE(reply.threads(), 1);
}

TEST_F(WorkerTest, TwoWorkersTrainAndOneContinuesFromTheirCheckpoint) {
  const LoweredPlan pair = Lower(2), single = Lower(1);
  auto a = Start("a"), b = Start("b");
  auto stub_a = StubOf(*a), stub_b = StubOf(*b);
  RunResult results[2];
  std::thread other([&] {
    grpc::Status loaded = Load(*stub_b, LoadRequest("b", 1, pair, 1));
    ASSERT_TRUE(loaded.ok()) << loaded.error_message();
    results[1] = Run(*stub_b, AttemptOf("b", 1), 0, 8, 4);
  });
  grpc::Status loaded = Load(*stub_a, LoadRequest("a", 1, pair, 0));
  ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  results[0] = Run(*stub_a, AttemptOf("a", 1), 0, 8, 4);
  other.join();
  for (const RunResult& r : results) ASSERT_TRUE(r.status.ok()) << r.status.error_message();
  EXPECT_GT(results[0].peak, 0);
  // Each rank reports operator times once, by the plan's names.
  for (const RunResult& r : results) {
    ASSERT_EQ(r.times.size(), 1u);
    std::map<std::string, int> counts;
    for (const auto& entry : r.times[0].entries()) {
      EXPECT_FALSE(entry.node().empty() && entry.op() == "linear") << entry.ShortDebugString();
      EXPECT_GE(entry.seconds(), 0);
      EXPECT_LT(entry.seconds(), 1);
      counts[entry.op()] += entry.count();
    }
    EXPECT_EQ(counts["linear"], 8);  // 4 in attention, 3 in the MLP, the head
    EXPECT_EQ(counts["linear_grad"], 8);
    EXPECT_GT(counts["all_reduce"], 0);
  }
  ASSERT_EQ(results[0].shards.size(), 2u);
  EXPECT_EQ(results[0].shards[0].steps_done(), 4);

  // As the coordinator: write the manifest when both shards exist.
  auto files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, root_ + "/checkpoints");
  Manifest manifest;
  manifest.job_id = "job";
  manifest.steps_done = 4;
  for (const RunResult& r : results) {
    manifest.files.push_back({r.shards[0].file(), r.shards[0].sha256(), r.shards[0].bytes()});
  }
  ASSERT_TRUE(WriteManifest(store, results[0].shards[0].directory(), manifest).ok());

  b->Stop();
  EXPECT_EQ(coordinator_.left(), 1);
  // From now on the dataset comes from the cache.
  coordinator_.SetDataset("text", DatasetHash(), std::string(text_.size(), 'x'));
  v1::LoadProgramRequest request = LoadRequest("a", 2, single, 0);
  request.set_checkpoint_dir(results[0].shards[0].directory());
  loaded = Load(*stub_a, request);
  ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  const RunResult resumed = Run(*stub_a, AttemptOf("a", 2), 4, 8);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status.error_message();
  EXPECT_TRUE(resumed.times.empty());  // too few steps
  for (int64_t step = 4; step < 8; ++step) {
    const double together = results[0].loss[step] + results[1].loss[step];
    EXPECT_NEAR(resumed.loss.at(step), together, 1e-4 * together) << step;
  }
  EXPECT_NEAR(resumed.evaluation, results[0].evaluation + results[1].evaluation,
              1e-4 * resumed.evaluation);
  EXPECT_LT(resumed.loss.at(7), results[0].loss[0] + results[1].loss[0]);

  request.mutable_attempt()->set_attempt(3);
  ASSERT_TRUE(Load(*stub_a, request).ok());
  EXPECT_EQ(Run(*stub_a, AttemptOf("a", 3), 3, 8).status.error_code(), grpc::StatusCode::DATA_LOSS)
      << "from another step than the checkpoint's";

  // A damaged checkpoint must not be used.
  {
    std::fstream shard(
        JoinPath(root_ + "/checkpoints/" + request.checkpoint_dir(), results[0].shards[0].file()),
        std::ios::in | std::ios::out | std::ios::binary);
    shard.seekg(-1, std::ios::end);
    const char last = static_cast<char>(shard.get());
    shard.seekp(-1, std::ios::end);
    shard.put(static_cast<char>(last ^ 1));
  }
  request.mutable_attempt()->set_attempt(4);
  loaded = Load(*stub_a, request);
  EXPECT_EQ(loaded.error_code(), grpc::StatusCode::DATA_LOSS) << loaded.error_message();
  EXPECT_NE(loaded.error_message().find("SHA-256"), std::string::npos) << loaded.error_message();
}

TEST_F(WorkerTest, StaleLeasesAndAttemptsAreRefused) {
  const LoweredPlan plan = Lower(1);
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  v1::LoadProgramRequest request = LoadRequest("a", 3, plan, 0);
  request.mutable_attempt()->set_worker_epoch(request.attempt().worker_epoch() - 1);
  EXPECT_EQ(Load(*stub, request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Run(*stub, AttemptOf("a", 3), 0, 1).status.error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);  // nothing is loaded
  ASSERT_TRUE(Load(*stub, LoadRequest("a", 3, plan, 0)).ok());
  EXPECT_EQ(Load(*stub, LoadRequest("a", 2, plan, 0)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Run(*stub, AttemptOf("a", 2), 0, 1).status.error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  grpc::ClientContext context;
  v1::StopRequest stop;
  *stop.mutable_attempt() = AttemptOf("a", 3);
  stop.mutable_attempt()->set_worker_epoch(0);  // even without a lease
  v1::StopReply reply;
  EXPECT_TRUE(stub->Stop(&context, stop, &reply).ok());
  EXPECT_EQ(Load(*stub, LoadRequest("a", 3, plan, 0)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);  // late call for a stopped attempt
  EXPECT_TRUE(Load(*stub, LoadRequest("a", 4, plan, 0)).ok());
}

TEST_F(WorkerTest, StopEndsARunThatWaitsForItsPeer) {
  const LoweredPlan plan = Lower(2);
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  ASSERT_TRUE(Load(*stub, LoadRequest("a", 1, plan, 0)).ok());
  RunResult result;
  std::thread runner([&] { result = Run(*stub, AttemptOf("a", 1), 0, 10); });
  absl::SleepFor(absl::Milliseconds(300));
  const absl::Time start = absl::Now();
  grpc::ClientContext context;
  v1::StopRequest stop;
  *stop.mutable_attempt() = AttemptOf("a", 1);
  v1::StopReply reply;
  grpc::Status stopped = stub->Stop(&context, stop, &reply);
  EXPECT_TRUE(stopped.ok()) << stopped.error_message();
  runner.join();
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::CANCELLED)
      << result.status.error_message();
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST_F(WorkerTest, LostLeaseEndsTheJobAndTheWorkerRejoins) {
  const LoweredPlan plan = Lower(1);
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  const uint64_t before = coordinator_.EpochOf("a");
  ASSERT_TRUE(Load(*stub, LoadRequest("a", 1, plan, 0)).ok());
  const RunResult result = Run(*stub, AttemptOf("a", 1), 0, 1000000, 0, [&](int64_t step) {
    if (step == 3) coordinator_.ForgetLeases();
  });
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::CANCELLED);
  for (int i = 0; i < 200 && worker->worker_id().empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_GT(coordinator_.EpochOf("a"), before);
  EXPECT_TRUE(Load(*stub, LoadRequest("a", 2, plan, 0)).ok());
}

// As after a coordinator restart with an empty data folder.
TEST_F(WorkerTest, NewLeaseMayRestartAttemptNumbers) {
  const LoweredPlan plan = Lower(1);
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  const uint64_t before = coordinator_.EpochOf("a");
  grpc::ClientContext context;
  v1::StopRequest stop;
  *stop.mutable_attempt() = AttemptOf("a", 5);
  v1::StopReply reply;
  ASSERT_TRUE(stub->Stop(&context, stop, &reply).ok());
  EXPECT_EQ(Load(*stub, LoadRequest("a", 1, plan, 0)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  coordinator_.ForgetLeases();
  for (int i = 0; i < 200 && coordinator_.EpochOf("a") == before; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  const grpc::Status loaded = Load(*stub, LoadRequest("a", 1, plan, 0));
  EXPECT_TRUE(loaded.ok()) << loaded.error_message();
}

TEST_F(WorkerTest, ErrorsNameWhatIsWrong) {
  const LoweredPlan plan = Lower(1);
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  auto expect = [&](const v1::LoadProgramRequest& request, const std::string& what) {
    const grpc::Status s = Load(*stub, request);
    EXPECT_FALSE(s.ok());
    EXPECT_NE(s.error_message().find(what), std::string::npos) << s.error_message();
  };
  v1::LoadProgramRequest request = LoadRequest("a", 1, plan, 0);
  request.mutable_dataset()->set_uri("artifact:other");
  expect(request, "artifact:other");
  request.mutable_dataset()->set_uri("relative/path");
  expect(request, "absolute path");
  request = LoadRequest("a", 1, plan, 0);
  request.set_checkpoint_dir("none");
  expect(request, "no finished checkpoint");
  request = LoadRequest("a", 1, plan, 0);
  request.mutable_program()->mutable_instructions(0)->mutable_load_batch()->set_buffer(9999);
  expect(request, "buffer 9999");
  coordinator_.SetDataset("text", std::string(64, '0'), text_);
  expect(LoadRequest("a", 1, plan, 0), "SHA-256");
  coordinator_.SetDataset("text", std::string(63, '0') + "1", "tiny");
  expect(LoadRequest("a", 1, plan, 0), "artifact:text");
}

TEST_F(WorkerTest, MeasuresProgramsBetweenJobs) {
  auto worker = Start("a");
  auto stub = StubOf(*worker);
  v1::MeasureRequest request;
  for (const char* op : {"relu", "no_such_operator"}) {
    v1::Program* program = request.add_programs();
    program->set_format_version(1);
    program->set_world_size(1);
    program->set_arena_bytes(1 << 20);
    for (int i = 0; i < 2; ++i) {
      v1::Buffer* buffer = program->add_buffers();
      buffer->set_kind(v1::SCRATCH);
      buffer->mutable_spec()->set_dtype(v1::F32);
      buffer->mutable_spec()->add_dims(1000);
      buffer->set_offset_bytes(i * 4096);
    }
    v1::ComputeInstruction* compute = program->add_instructions()->mutable_compute();
    compute->set_op(op);
    compute->add_inputs(0);
    compute->add_outputs(1);
  }
  grpc::ClientContext context;
  v1::MeasureReply reply;
  grpc::Status s = stub->Measure(&context, request, &reply);
  ASSERT_TRUE(s.ok()) << s.error_message();
  ASSERT_EQ(reply.seconds_size(), 2);
  EXPECT_GT(reply.seconds(0), 0);
  EXPECT_LT(reply.seconds(1), 0);
}

TEST(StartWorker, ADeadCoordinatorIsNamed) {
  WorkerOptions options;
  options.coordinator = "127.0.0.1:1";
  options.join_timeout = absl::Milliseconds(500);
  options.calibrate = false;
  auto worker = StartWorker(options);
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(worker.status().message()).find("127.0.0.1:1"), std::string::npos);
}

TEST(StartWorker, StaysOnLoopbackUnlessToldOtherwise) {
  WorkerOptions options;
  options.coordinator = "10.1.2.3:7070";
  options.listen = "127.0.0.1:0";  // no interface here may reach that address
  options.cache_dir = testing::TempDir() + "/stays_on_loopback";
  auto worker = StartWorker(options);
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kFailedPrecondition) << worker.status();
  EXPECT_NE(std::string(worker.status().message()).find("--join"), std::string::npos);
  EXPECT_NE(std::string(worker.status().message()).find("--insecure"), std::string::npos);
}

}  // namespace
}  // namespace espalier
