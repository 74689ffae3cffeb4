// Several served models on one worker over gRPC, and their isolation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"
#include "worker/fake_coordinator.h"
#include "worker/local_worker.h"
#include "worker/serving_fixture.h"

namespace espalier {
namespace {

class ServingTest : public ServingFixture {
 protected:
  uint64_t Epoch() const override { return coordinator_.EpochOf("a"); }

  void Start(int64_t memory = 1 << 28) {
    worker_ = StartNamed("a", memory);
    ASSERT_NE(worker_, nullptr);
    stub_ = StubOf(*worker_);
  }

  std::unique_ptr<LocalWorker> StartNamed(const std::string& name, int64_t memory) {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = name;
    options.threads = 1;
    options.memory_limit = memory;
    options.calibrate = false;
    options.cache_dir = testing::TempDir();
    auto worker = StartWorker(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return worker.ok() ? *std::move(worker) : nullptr;
  }

  std::unique_ptr<v1::Worker::Stub> StubOf(const LocalWorker& worker) const {
    return v1::Worker::NewStub(KeyedChannel(
        worker.address(), {}, [key = coordinator_.CallKeyOf(worker.worker_id())] { return key; }));
  }

  FakeCoordinator coordinator_{testing::TempDir()};
  std::unique_ptr<LocalWorker> worker_;
};

TEST_F(ServingTest, ConcurrentModelsAnswerAsTheyDoAlone) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  std::vector<std::string> alone[2];
  for (const Model* model : {&large, &small}) {
    ASSERT_TRUE(Load(*model).ok());
    alone[model == &small] = DecodeAll(*model);  // the end of the stream unloads it
  }
  ASSERT_EQ(alone[0].back().size(), kVocabulary * sizeof(float));
  ASSERT_NE(alone[0], alone[1]);
  for (const Model* model : {&large, &small}) {
    const grpc::Status loaded = Load(*model, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  }
  // Concurrently, in any interleaving of steps.
  std::vector<std::string> together[2];
  std::thread other([&] { together[1] = DecodeAll(small, 2); });
  together[0] = DecodeAll(large, 2);
  other.join();
  EXPECT_EQ(together[0], alone[0]);
  EXPECT_EQ(together[1], alone[1]);
}

TEST_F(ServingTest, StoppingOrReloadingAModelKeepsOtherCaches) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  std::vector<std::string> expected = DecodeAll(large);
  ASSERT_TRUE(Load(large, 2).ok());
  Steps steps(*this, large, 2);
  int at = 0;
  const auto go_on = [&] {
    for (int end = at + 8; at < end; ++at) {
      EXPECT_EQ(steps.Next((at * 37 + 5) % kVocabulary), expected[static_cast<size_t>(at)]) << at;
    }
  };
  go_on();
  ASSERT_TRUE(Load(small).ok());
  go_on();
  {
    Steps drafts(*this, small);
    EXPECT_NE(drafts.Next(3), "");
    go_on();
    ASSERT_TRUE(Stop(small).ok());
    EXPECT_EQ(drafts.Next(4), "");
  }
  go_on();
  EXPECT_FALSE(Load(small).ok()) << "that attempt was stopped";
  ASSERT_TRUE(Load(small, 2).ok());
  ASSERT_TRUE(Load(small, 3).ok());
  EXPECT_FALSE(Steps(*this, small, 2).ready()) << "a newer one has its place";
  EXPECT_TRUE(Steps(*this, small, 3).ready());
  go_on();
}

TEST_F(ServingTest, SampledTokenIsTheArgmaxLogit) {
  Start();
  const Model model = Make("serving/lm", 64, 1);
  ASSERT_TRUE(Load(model).ok());
  std::vector<int> expected;
  for (const std::string& bytes : DecodeAll(model)) {
    ASSERT_EQ(bytes.size(), kVocabulary * sizeof(float));
    float logits[kVocabulary];
    std::memcpy(logits, bytes.data(), bytes.size());
    expected.push_back(static_cast<int>(std::max_element(logits, logits + kVocabulary) - logits));
  }
  ASSERT_TRUE(Load(model, 2).ok());
  Steps steps(*this, model, 2);
  for (int i = 0; i < kSlots; ++i) {
    EXPECT_EQ(steps.Choose((i * 37 + 5) % kVocabulary), expected[static_cast<size_t>(i)]) << i;
  }
}

TEST_F(ServingTest, ModelThatDoesNotFitIsRefusedAndOthersGoOn) {
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  Start(large.bytes + small.bytes / 2);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  EXPECT_NE(steps.Next(1), "");
  const grpc::Status refused = Load(small);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("out of memory"), std::string::npos);
  EXPECT_NE(steps.Next(2), "");
}

TEST_F(ServingTest, TrainingAndMeasuringAreRefusedWhileServing) {
  Start();
  const Model large = Make("serving/lm", 64, 1);
  ASSERT_TRUE(Load(large).ok());
  Steps steps(*this, large);
  ASSERT_TRUE(steps.ready());
  v1::LoadProgramRequest training;
  *training.mutable_attempt() = AttemptOf("job");
  grpc::ClientContext load, measure;
  v1::LoadProgramReply loaded;
  const grpc::Status busy = stub_->LoadProgram(&load, training, &loaded);
  EXPECT_EQ(busy.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(busy.error_message().find("of job serving/lm"), std::string::npos)
      << busy.error_message();
  v1::MeasureReply measured;
  EXPECT_EQ(stub_->Measure(&measure, v1::MeasureRequest(), &measured).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(steps.Next(1), "");
}

// Load times differ: disks do, and files read by another rank are cached.
TEST_F(ServingTest, LoadingRankWaitsLongerForPeersThanAStep) {
  Start();
  const std::unique_ptr<LocalWorker> other = StartNamed("b", 1 << 28);
  ASSERT_NE(other, nullptr);
  std::vector<Model> ranks = MakeRanks("serving/lm", 64, 1, {.pipeline_parallel = 2});
  ASSERT_EQ(ranks.size(), 2u);
  const auto load = [&](const LocalWorker& worker, const std::string& name, Model& rank) {
    *rank.request.mutable_attempt() = AttemptOf(rank.job);
    rank.request.mutable_attempt()->set_worker_epoch(coordinator_.EpochOf(name));
    rank.request.set_peer_timeout_seconds(2);
    rank.request.set_rendezvous_timeout_seconds(100);
    grpc::ClientContext context;
    v1::StartServingReply reply;
    return StubOf(worker)->StartServing(&context, rank.request, &reply);
  };
  grpc::Status first;
  std::thread early([&] { first = load(*worker_, "a", ranks[0]); });
  // Each read takes a second.
  for (int i = 0; i < 6000 && coordinator_.misses() < 3; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  const grpc::Status second = load(*other, "b", ranks[1]);
  early.join();
  EXPECT_TRUE(first.ok()) << first.error_message();
  EXPECT_TRUE(second.ok()) << second.error_message();
}

TEST_F(ServingTest, LostLeaseEndsAllModels) {
  Start();
  const Model large = Make("serving/lm", 64, 1), small = Make("serving/lm/ssm0", 32, 2);
  ASSERT_TRUE(Load(large).ok());
  ASSERT_TRUE(Load(small).ok());
  Steps steps(*this, large), drafts(*this, small);
  EXPECT_NE(steps.Next(1), "");
  EXPECT_NE(drafts.Next(1), "");
  const uint64_t before = coordinator_.EpochOf("a");
  coordinator_.ForgetLeases();
  for (int i = 0; i < 200 && coordinator_.EpochOf("a") == before; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(steps.Next(2), "");
  EXPECT_EQ(drafts.Next(2), "");
  EXPECT_TRUE(Load(large, 2).ok());
}

}  // namespace
}  // namespace espalier
