// Evaluating a checkpoint gives what the job's own validation after so many steps has given.
#include "server/replay/checkpoint_evaluations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/version.h"
#include "ops/graph/graph_proto.h"
#include "server/replay/probe_set.h"
#include "server/store/sqlite_store.h"
#include "storage/dataset.h"
#include "storage/manifest.h"
#include "storage/npz_writer.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/plan_fixture.h"
#include "worker/training_job.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kExamples = 60, kHeldOut = 12;  // not a multiple of the batch
constexpr int64_t kSteps = 4;

// Ranks that find each other by the name of their attempt.
class Meeting {
 public:
  std::unique_ptr<Communicator> Take(const std::string& name, int rank, int size) {
    absl::MutexLock lock(&mutex_);
    auto& ranks = ranks_[name];
    if (ranks.empty()) ranks = NewInProcessCommunicators(size, absl::Seconds(30));
    return std::move(ranks[rank]);
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> ranks_;
};

// What the coordinator has asked of all workers.
struct Calls {
  std::atomic<int> loads = 0, restores = 0;
  std::string version = kEspalierVersion;  // that they say
  std::function<void()> on_restore;
};

// A worker in this process.
class InProcessWorker : public WorkerClient {
 public:
  InProcessWorker(Meeting* meeting, FileSystem* files, std::string folder, Calls* calls)
      : meeting_(meeting), files_(files), folder_(std::move(folder)), calls_(calls) {}

  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest& request,
                                                   absl::Duration) override {
    TrainingJobOptions options;
    options.device = device_.get();
    options.storage = JobStorage::InFolder(*files_, folder_ + "/checkpoints", folder_);
    options.open_dataset = [](const v1::Dataset& dataset) {
      std::ifstream file(dataset.uri(), std::ios::binary);
      const std::string npz{std::istreambuf_iterator<char>(file), {}};
      return Dataset::FromNpz(npz, dataset.holdout_fraction());
    };
    options.connect = [this, name = request.attempt().job_id()](
                          int rank, int size, const PeerTimeouts&,
                          std::function<bool()>) -> absl::StatusOr<std::unique_ptr<Communicator>> {
      return meeting_->Take(name, rank, size);
    };
    auto job = TrainingJob::Load(request, options);
    if (!job.ok()) return job.status();
    job_ = *std::move(job);
    ++calls_->loads;
    v1::LoadProgramReply reply;
    reply.set_program_version(calls_->version);
    return reply;
  }
  absl::Status Run(const v1::RunRequest& request,
                   const std::function<void(const v1::RunEvent&)>& on_event) override {
    if (!request.restore_checkpoint().empty()) {
      ++calls_->restores;
      if (calls_->on_restore) calls_->on_restore();
    }
    return job_->Run(request, [&](const v1::RunEvent& event) {
      on_event(event);
      return absl::OkStatus();
    });
  }
  absl::Status Stop(const v1::StopRequest&, absl::Duration) override {
    if (job_ != nullptr) job_->Abort("stopped");
    return absl::OkStatus();
  }
  void Cancel() override {}

  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }
  std::unique_ptr<ServingStream> ServingSteps() override { return nullptr; }
  std::unique_ptr<SessionRankStream> RunSession() override { return nullptr; }
  absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }

 private:
  Meeting* const meeting_;
  FileSystem* const files_;
  const std::string folder_;
  Calls* const calls_;
  const std::unique_ptr<Device> device_ = NewCpuDevice({1, int64_t{1} << 28});
  std::unique_ptr<TrainingJob> job_;
};

class Collected : public CheckpointEvaluationObserver {
 public:
  absl::Status OnRows(const EvaluatedCheckpoint& checkpoint,
                      std::vector<v1::HistoryRow> rows) override {
    for (v1::HistoryRow& row : rows) {
      EXPECT_EQ(row.step(), checkpoint.steps_done);
      std::string name = row.name();
      if (!row.reduction().empty()) name = absl::StrCat(row.reduction(), " of ", name);
      values[checkpoint.steps_done][name] = row.value();
    }
    if (on_rows) on_rows();
    return result;
  }

  absl::Status result;
  std::function<void()> on_rows;
  std::map<int64_t, std::map<std::string, v1::ProbeValue>> values;
};

class CheckpointEvaluationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(
        ::testing::TempDir(), "/evaluations-",

        absl::StrReplaceAll(::testing::UnitTest::GetInstance()->current_test_info()->name(),
                            {{"/", "-"}}));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    WriteExamples("/examples.npz", kExamples);
    auto store = SqliteStore::Open(folder_ + "/jobs.db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto artifacts =
        ArtifactStore::Open(folder_ + "/artifacts", files_.get(), store_.get(), &clock_);
    ASSERT_TRUE(artifacts.ok()) << artifacts.status();
    artifacts_ = *std::move(artifacts);
    auto roots = DatasetRoots::Create({folder_});
    ASSERT_TRUE(roots.ok()) << roots.status();
    roots_ = *std::move(roots);
    planner_ = std::make_unique<CalibratedPlanner>(&Registry(), store_.get(), 0, 1);
    data_folder_ = std::make_unique<FolderCheckpointStore>(*files_, folder_);
    checkpoints_ = std::make_unique<FolderCheckpointStore>(*files_, folder_ + "/checkpoints");
    tools_.registry = &Registry();
    tools_.artifacts = artifacts_.get();
    tools_.planner = planner_.get();
    tools_.workers = &workers_;
    tools_.rendezvous = &rendezvous_;
    tools_.files = files_.get();
    tools_.checkpoints = checkpoints_.get();
    tools_.data_folder = data_folder_.get();
    tools_.dial = [this](const Member&) {
      return std::make_unique<InProcessWorker>(&meeting_, files_.get(), folder_, &calls_);
    };
    tools_.dataset_roots = roots_.get();
    spec_ = Spec();
  }

  void WriteExamples(const std::string& name, int64_t examples) {
    Array x{{DType::kF32, {examples, 12}}, {}}, labels{{DType::kI32, {examples}}, {}};
    std::vector<float> elements(examples * 12);
    std::vector<int32_t> classes(examples);
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = PhiloxUniform(1, 2, 3, i) - 0.5f;
    for (size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<int32_t>(i * 7 % 4);
    x.data.assign(reinterpret_cast<const char*>(elements.data()),
                  reinterpret_cast<const char*>(elements.data() + elements.size()));
    labels.data.assign(reinterpret_cast<const char*>(classes.data()),
                       reinterpret_cast<const char*>(classes.data() + classes.size()));
    const auto file = WriteNpz(std::map<std::string, Array>{{"x", x}, {"labels", labels}});
    ASSERT_TRUE(file.ok()) << file.status();
    std::ofstream(folder_ + name, std::ios::binary) << *file;
  }

  v1::TrainingSpec Spec() {
    GraphBuilder b(Registry(), "mlp");
    const Initializer init{Initializer::kNormal, 0.3};
    ValueId h = b.Op("linear",
                     {b.Input("x", DType::kF32, {-1, 12}),
                      b.Parameter("fc1.weight", DType::kF32, {16, 12}, init)},
                     {}, "fc1");
    h = b.Op("tanh", {h}, {}, "act");
    h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, 16}, init)}, {}, "fc2");
    const ValueId labels = b.Input("labels", DType::kI32, {-1});
    b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
    b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
    const auto graph = b.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    v1::TrainingSpec spec;
    *spec.mutable_graph() = ToProto(*graph);
    spec.mutable_dataset()->set_uri(folder_ + "/examples.npz");
    spec.mutable_dataset()->set_format(v1::Dataset::NPZ);
    spec.mutable_dataset()->set_holdout_fraction(static_cast<double>(kHeldOut) / kExamples);
    spec.set_batch_size(kBatch);
    spec.set_steps(kSteps);
    spec.set_seed(7);
    spec.mutable_optimizer()->set_name("adam");
    spec.mutable_optimizer()->mutable_learning_rate()->set_peak(0.05);
    return spec;
  }

  std::unique_ptr<ReplayProgram> ProgramOf(const v1::TrainingSpec& spec, int devices) {
    auto prepared = PrepareJob(Registry(), *artifacts_, *roots_, spec);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    if (!prepared.ok()) return nullptr;
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    auto plan = MakePlan(Problem(prepared->graph, devices), search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    auto program = ReplayProgram::Make(tools_, spec, *plan, {});
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *std::move(program) : nullptr;
  }

  std::vector<Member> Join(int count) {
    for (int i = 0; i < count; ++i) {
      v1::JoinRequest request;
      request.set_address(absl::StrCat("worker:", i));
      request.set_idempotency_key(absl::StrCat("key", i));
      request.set_protocol_version(kProtocolVersion);
      request.set_call_key(std::string(32, 'k'));
      request.mutable_device()->set_kind(v1::Device::CPU);
      request.mutable_device()->set_memory_bytes(int64_t{1} << 30);
      request.mutable_device()->set_matmul_flops(1e11);
      request.mutable_device()->set_memory_bandwidth(1e10);
      const auto lease = workers_.Join(request);
      EXPECT_TRUE(lease.ok()) << lease.status();
    }
    return workers_.Idle();
  }

  // Trains all steps with a checkpoint and a validation after every second one. Returns these.
  std::map<int64_t, v1::StepReport> Train(const ReplayProgram& program,
                                          std::vector<Member> members) {
    std::map<int64_t, v1::StepReport> validations;
    auto ranks = ReplayRanks::Create(tools_, "job", std::move(members));
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    std::vector<v1::LoadProgramRequest> requests(program.ranks());
    for (size_t r = 0; r < requests.size(); ++r) {
      *requests[r].mutable_program() = program.lowered().training[r];
      *requests[r].mutable_evaluation() = program.lowered().evaluation[r];
      *requests[r].mutable_dataset() = spec_.dataset();
      requests[r].set_batch_size(kBatch);
      requests[r].set_pad_evaluation(program.prepared().pad_evaluation);
    }
    EXPECT_TRUE((*ranks)->Load(std::move(requests)).ok());
    for (int64_t done = 0; done < kSteps; done += 2) {
      v1::RunRequest request;
      request.set_first_step(done);
      request.set_last_step(done + 2);
      request.set_checkpoint_every_steps(2);
      request.set_checkpoint_root("job/attempt-1");
      request.set_evaluate_at_end(true);
      RankReportMerger merger(static_cast<int>(program.ranks()), "job/attempt-1");
      merger.SetFinishes(program.prepared().finishes);
      const absl::Status ran =
          (*ranks)->Run(request, [&](size_t rank, const v1::RunEvent& event) -> absl::Status {
            if (event.has_evaluation()) {
              auto merged = merger.AddEvaluation(static_cast<int>(rank), event.evaluation());
              if (merged.has_value()) validations[merged->step()] = *merged;
            }
            if (!event.has_shard()) return absl::OkStatus();
            auto checkpoint = merger.AddShard(static_cast<int>(rank), event.shard());
            if (!checkpoint.ok() || !checkpoint->has_value()) return checkpoint.status();
            Manifest manifest;
            manifest.job_id = "job";
            manifest.steps_done = (*checkpoint)->steps_done;
            manifest.files = (*checkpoint)->files;
            folders_[manifest.steps_done] = (*checkpoint)->directory.substr(std::strlen("job/"));
            return WriteManifest(*checkpoints_, (*checkpoint)->directory, manifest);
          });
      EXPECT_EQ(ran, absl::OkStatus());
    }
    return validations;
  }

  EvaluationTask Task(const v1::TrainingSpec& spec, const ReplayProgram& program,
                      std::vector<Member> members) {
    EvaluationTask task;
    task.name = ReplayAttemptName("job", "r1", 0);
    task.job_id = "job";
    task.spec = &spec;
    task.program = &program;
    task.prefix = EvaluationPrefix(v1::ReplaySpec());
    task.questions.probes = *ParseProbes({"confusion(fc2, batch(labels))", "norm(act)"});
    task.checkpoints = {{2, folders_[2]}, {4, folders_[4]}};
    task.members = std::move(members);
    return task;
  }

  std::string folder_;
  SystemClock clock_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
  std::unique_ptr<DatasetRoots> roots_;
  uint64_t epoch_ = 0;
  WorkerRegistry workers_{&clock_, absl::Hours(1),
                          [this] { return absl::StatusOr<uint64_t>(++epoch_); }};
  Rendezvous rendezvous_;
  std::unique_ptr<CalibratedPlanner> planner_;
  std::unique_ptr<FolderCheckpointStore> data_folder_, checkpoints_;
  Meeting meeting_;
  Calls calls_;
  AttemptTools tools_;
  v1::TrainingSpec spec_;
  std::map<int64_t, std::string> folders_;  // within the job's, by steps done
};

int64_t Counted(const v1::ProbeValue& confusion, bool diagonal) {
  std::vector<int64_t> counts(confusion.tensor().data().size() / sizeof(int64_t));
  std::memcpy(counts.data(), confusion.tensor().data().data(), confusion.tensor().data().size());
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) sum += !diagonal || i % 5 == 0 ? counts[i] : 0;
  return sum;
}

class ValidationOnRanks : public CheckpointEvaluationsTest,
                          public ::testing::WithParamInterface<int> {};

TEST_P(ValidationOnRanks, IsWhatEvaluationsGive) {
  const int devices = GetParam();
  const std::vector<Member> members = Join(devices);
  const auto spec = SpecToEvaluate(spec_, v1::ReplaySpec());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto program = ProgramOf(*spec, devices);
  ASSERT_NE(program, nullptr);
  const auto validations = Train(*program, members);
  ASSERT_EQ(validations.size(), 2u);
  // Initial values are not in a checkpoint, wherever they come in.
  const std::vector<EvaluatedCheckpoint> checkpoints = {
      {0, ""}, {2, folders_[2]}, {4, folders_[4]}, {0, ""}, {2, folders_[2]}};
  int replays = 0;
  const auto evaluate = [&](Collected* collected) {
    EvaluationTask task = Task(*spec, *program, members);
    task.name = ReplayAttemptName("job", absl::StrCat("r", ++replays), 0);
    task.checkpoints = checkpoints;
    calls_.loads = calls_.restores = 0;
    auto evaluations = CheckpointEvaluations::Make(tools_, std::move(task), collected);
    ASSERT_TRUE(evaluations.ok()) << evaluations.status();
    EXPECT_EQ((*evaluations)->Run(), absl::OkStatus());
  };
  Collected collected, anew;
  evaluate(&collected);
  ASSERT_EQ(collected.values.size(), 3u);
  EXPECT_EQ(calls_.loads, 2 * devices) << "once, and for the initial values";
  EXPECT_EQ(calls_.restores, 3 * devices);
  calls_.version = "0.0.9";  // knows no restoring
  evaluate(&anew);
  EXPECT_EQ(calls_.loads, 5 * devices);
  EXPECT_EQ(calls_.restores, 0);
  for (const auto& [steps_done, values] : anew.values) {
    for (const auto& [name, value] : values) {
      EXPECT_EQ(collected.values[steps_done][name].SerializeAsString(), value.SerializeAsString())
          << name << " of step " << steps_done;
    }
  }
  for (const auto& [steps_done, validation] : validations) {
    auto& values = collected.values.at(steps_done);
    EXPECT_EQ(values.at("evaluation.loss").scalar(), validation.values().at("loss"));
    EXPECT_EQ(values.at("evaluation.accuracy").scalar(), validation.values().at("accuracy"));
  }
  EXPECT_NE(collected.values.at(0).at("evaluation.loss").scalar(),
            collected.values.at(4).at("evaluation.loss").scalar());
  for (auto& [steps_done, values] : collected.values) {
    const v1::ProbeValue& confusion = values.at("confusion of evaluation.fc2, batch(labels)");
    EXPECT_EQ(Counted(confusion, /*diagonal=*/false), kHeldOut);
    EXPECT_NEAR(static_cast<double>(Counted(confusion, /*diagonal=*/true)) / kHeldOut,
                values.at("evaluation.accuracy").scalar(), 1e-6);
    EXPECT_GT(values.at("norm of evaluation.act").scalar(), 0);
  }
  EXPECT_EQ(static_cast<int>(workers_.Idle().size()), devices) << "workers are given back";
  for (const auto& left : std::filesystem::directory_iterator(folder_ + "/checkpoints")) {
    EXPECT_EQ(left.path().filename(), "job") << "values that workers have read are removed";
  }
}

TEST_P(ValidationOnRanks, ADamagedCheckpointIsNamedAndTheOthersAreDone) {
  const int devices = GetParam();
  const std::vector<Member> members = Join(devices);
  const auto program = ProgramOf(spec_, devices);
  ASSERT_NE(program, nullptr);
  Train(*program, members);
  const std::string file =
      absl::StrCat(folder_, "/checkpoints/job/", folders_[4], "/rank-0.safetensors");
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-1, std::ios::end);
  bytes.put('\x55');
  bytes.close();
  calls_.restores = 0;
  Collected collected;
  auto evaluations =
      CheckpointEvaluations::Make(tools_, Task(spec_, *program, members), &collected);
  ASSERT_TRUE(evaluations.ok()) << evaluations.status();
  const absl::Status ran = (*evaluations)->Run();
  EXPECT_EQ(ran.code(), absl::StatusCode::kDataLoss) << ran;
  EXPECT_THAT(std::string(ran.message()), HasSubstr(folders_[4] + "/rank-0.safetensors"));
  EXPECT_EQ(calls_.restores, devices) << "it is not the one that is loaded";
  EXPECT_EQ(collected.values.size(), 1u);
  EXPECT_EQ(static_cast<int>(workers_.Idle().size()), devices);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ValidationOnRanks, ::testing::Values(1, 2));

TEST_F(CheckpointEvaluationsTest, EvaluateAnotherDataset) {
  const std::vector<Member> members = Join(1);
  const auto trained = ProgramOf(spec_, 1);
  ASSERT_NE(trained, nullptr);
  Train(*trained, members);
  WriteExamples("/others.npz", 29);
  v1::ReplaySpec replay;
  replay.mutable_evaluate()->set_uri(folder_ + "/others.npz");
  const auto spec = SpecToEvaluate(spec_, replay);
  ASSERT_TRUE(spec.ok()) << spec.status();
  // The recorded plan is for the same graph.
  const auto program = ReplayProgram::Make(tools_, *spec, trained->plan(), {});
  ASSERT_TRUE(program.ok()) << program.status();
  Collected collected;
  EvaluationTask task = Task(*spec, **program, members);
  task.prefix = EvaluationPrefix(replay);
  auto evaluations = CheckpointEvaluations::Make(tools_, std::move(task), &collected);
  ASSERT_TRUE(evaluations.ok()) << evaluations.status();
  EXPECT_EQ((*evaluations)->Run(), absl::OkStatus());
  const auto& values = collected.values.at(4);
  // No name is that of an evaluation of other examples.
  const std::string evaluation = absl::StrCat("evaluation[", folder_, "/others.npz].");
  EXPECT_EQ(
      Counted(values.at(absl::StrCat("confusion of ", evaluation, "fc2, batch(labels)")), false),
      29);
  EXPECT_TRUE(values.contains(absl::StrCat(evaluation, "loss")));
  for (const auto& [name, value] : values) EXPECT_THAT(name, HasSubstr(evaluation));
  replay.mutable_evaluate()->set_uri("artifact:others-0a1b");
  EXPECT_EQ(EvaluationPrefix(replay), "evaluation[others-0a1b].");
}

// As the job queue, which is told when workers become idle.
TEST_F(CheckpointEvaluationsTest, AWaitingJobGetsTheWorkersBetweenTwoCheckpoints) {
  const std::vector<Member> members = Join(1);
  const auto program = ProgramOf(spec_, 1);
  ASSERT_NE(program, nullptr);
  Train(*program, members);
  EvaluationTask task = Task(spec_, *program, members);
  task.lease = absl::ZeroDuration();
  Collected collected;
  auto evaluations = CheckpointEvaluations::Make(tools_, std::move(task), &collected);
  ASSERT_TRUE(evaluations.ok()) << evaluations.status();
  const absl::Time begin = absl::Now();
  std::thread waiting;
  collected.on_rows = [&] {
    if (waiting.joinable()) return;
    waiting = std::thread([&] {
      while (!workers_.Assign(members, "waiting").ok()) absl::SleepFor(absl::Milliseconds(1));
    });
    absl::SleepFor(5 * (absl::Now() - begin));  // longer than four times loading
  };
  const absl::Status ran = (*evaluations)->Run();
  waiting.join();
  EXPECT_EQ(ran.code(), absl::StatusCode::kAborted) << ran;
  EXPECT_EQ(collected.values.size(), 1u) << "they were given back before the second";
  workers_.Release("waiting");
  EXPECT_EQ(workers_.Idle().size(), 1u);
}

TEST_F(CheckpointEvaluationsTest, CancellingEndsThemWhileACheckpointIsRestored) {
  const std::vector<Member> members = Join(2);
  const auto program = ProgramOf(spec_, 2);
  ASSERT_NE(program, nullptr);
  Train(*program, members);
  Collected collected;
  auto evaluations =
      CheckpointEvaluations::Make(tools_, Task(spec_, *program, members), &collected);
  ASSERT_TRUE(evaluations.ok()) << evaluations.status();
  calls_.on_restore = [&] { (*evaluations)->Cancel(); };
  EXPECT_EQ((*evaluations)->Run().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(collected.values.size(), 1u);
  EXPECT_EQ(workers_.Idle().size(), 2u);
}

TEST_F(CheckpointEvaluationsTest, EndWhenCancelledRefusedOrWithoutItsWorker) {
  const std::vector<Member> members = Join(1);
  const auto program = ProgramOf(spec_, 1);
  ASSERT_NE(program, nullptr);
  Train(*program, members);
  Collected collected;
  const auto make = [&] {
    auto made = CheckpointEvaluations::Make(tools_, Task(spec_, *program, members), &collected);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  };
  auto evaluations = make();
  evaluations->Cancel();
  EXPECT_EQ(evaluations->Run().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(workers_.Idle().size(), 1u);
  ASSERT_EQ(workers_.Assign(members, "another"), absl::OkStatus());
  EXPECT_EQ(make()->Run().code(), absl::StatusCode::kAborted);
  workers_.Release("another");
  collected.result = absl::ResourceExhaustedError("no room for rows");
  EXPECT_EQ(make()->Run(), collected.result);
  EXPECT_EQ(collected.values.size(), 1u);
}

TEST_F(CheckpointEvaluationsTest, LackingNamesAreKnownBeforeThereAreWorkers) {
  const auto program = ProgramOf(spec_, 1);
  ASSERT_NE(program, nullptr);
  const auto probes =
      FindEvaluationProbes(tools_, *program, {*ParseProbes({"norm(fc2)", "norm(fc9)"}), {}}, "");
  ASSERT_TRUE(probes.ok()) << probes.status();
  EXPECT_EQ(probes->found.probes.size(), 1u);
  ASSERT_EQ(probes->found.lacking.size(), 1u);
  EXPECT_EQ(probes->found.lacking[0].first, "norm(fc9)");
  spec_.mutable_dataset()->clear_holdout_fraction();
  const auto nothing = ProgramOf(spec_, 1);
  ASSERT_NE(nothing, nullptr);
  EXPECT_EQ(FindEvaluationProbes(tools_, *nothing, {}, "").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointEvaluationsTest, WhatCannotBeEvaluatedIsRefusedWithARemedy) {
  spec_.mutable_dataset()->clear_holdout_fraction();
  const auto none = SpecToEvaluate(spec_, v1::ReplaySpec());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("name a dataset"));
  v1::ReplaySpec replay;
  replay.mutable_evaluate()->set_uri("/a/text");
  replay.mutable_evaluate()->set_format(v1::Dataset::TEXT);
  const auto other = SpecToEvaluate(spec_, replay);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("NPZ"));
}

}  // namespace
}  // namespace espalier
