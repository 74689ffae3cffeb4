// What must hold when two coordinators write, when answers are lost, and when a coordinator ends in
// the middle of a write; with a real etcd behind simulated faults.
#include "server/store/etcd/guarded_etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "server/store/etcd/etcd_process.h"
#include "server/store/etcd/etcd_store.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Loses answers, or calls, as a network may.
class FaultyEtcd : public EtcdApi {
 public:
  explicit FaultyEtcd(EtcdApi* etcd) : etcd_(*etcd) {}

  // Asked before each transaction that changes something.
  enum class Fault { kNone, kCallIsLost, kAnswerIsLost, kRefused };
  std::function<Fault()> fault = [] { return Fault::kNone; };
  std::vector<etcdserverpb::TxnRequest> lost_calls;
  bool compacts = false;  // after every read

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) override {
    if (compacts && request.revision() > 0) return Compacted();
    return etcd_.Range(request);
  }
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) override {
    const Fault now = request.compare_size() > 0 ? fault() : Fault::kNone;
    if (now == Fault::kCallIsLost) {
      lost_calls.push_back(request);
      return absl::UnavailableError("lost");
    }
    if (now == Fault::kRefused) return absl::ResourceExhaustedError("no space");
    for (const etcdserverpb::RequestOp& operation : request.success()) {
      if (compacts && operation.request_range().revision() > 0) return Compacted();
    }
    auto reply = etcd_.Txn(request);
    if (now == Fault::kAnswerIsLost) return absl::DeadlineExceededError("lost");
    return reply;
  }
  absl::StatusOr<Lease> GrantLease(absl::Duration ttl) override { return etcd_.GrantLease(ttl); }
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease) override {
    return etcd_.KeepAlive(lease);
  }
  absl::Status RevokeLease(int64_t lease) override { return etcd_.RevokeLease(lease); }

 private:
  static absl::Status Compacted() {
    return absl::OutOfRangeError("etcdserver: mvcc: required revision has been compacted");
  }

  EtcdApi& etcd_;
};

EtcdProcess& SharedEtcd() {
  static EtcdProcess etcd(::testing::TempDir() + "/guarded_etcd");
  return etcd;
}

class GuardedEtcdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) {
      GTEST_SKIP() << "etcd is not installed: deploy/install.sh --tests";
    }
    prefix_ = std::string("/") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    client_ = SharedEtcd().Client();
    faulty_ = std::make_unique<FaultyEtcd>(client_.get());
  }
  // The store of a coordinator that has just taken over.
  std::unique_ptr<EtcdStore> TakeOver(GuardedEtcd::Limits limits = {}) {
    LeaderGuard guard = LeadForever(client_.get(), prefix_);
    guard.lost = [this](const std::string& why) { lost_.push_back(why); };
    if (left_) guard.left = left_;
    auto store = EtcdStore::Open(faulty_.get(), prefix_, guard, limits);
    EXPECT_EQ(store.status(), absl::OkStatus());
    return *std::move(store);
  }
  static JobWrite Job(const std::string& id, const std::string& graph = "") {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(id);
    write.job->job.mutable_spec()->mutable_graph()->set_name(graph);
    return write;
  }
  static JobWrite Steps(int64_t first, int count) {
    JobWrite write;
    for (int i = 0; i < count; ++i) write.reports.emplace_back().set_step(first + i);
    return write;
  }
  int64_t KeysBelow(const std::string& folder) {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_ + folder);
    request.set_range_end(EndOfPrefix(prefix_ + folder));
    request.set_count_only(true);
    return client_->Range(request)->count();
  }

  std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<FaultyEtcd> faulty_;
  std::function<absl::Duration()> left_;
  std::vector<std::string> lost_;
};

TEST_F(GuardedEtcdTest, AStoppedLeaderThatGoesOnWritesNothing) {
  const auto first = TakeOver();
  ASSERT_TRUE(first->Write("j", Job("j")).ok());
  ASSERT_TRUE(first->Write("j", Steps(0, 2)).ok());
  const auto second = TakeOver();
  EXPECT_FALSE(first->Write("j", Steps(2, 1)).ok()) << "even before the new leader has written";
  lost_.clear();
  ASSERT_TRUE(second->Write("j", Steps(2, 1)).ok());
  const auto refused = {
      first->Write("j", Steps(2, 3)), first->Write("k", Job("k", std::string(100'000, 'x'))),
      first->PutBlob("b", "x"),       first->DeleteServed("m", nullptr),
      first->NextEpoch().status(),    first->CheckPresent()};
  for (const absl::Status& status : refused) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no longer leads"));
  }
  EXPECT_EQ(lost_.size(), refused.size());
  EXPECT_EQ(second->Log("j", 0, 0, 100)->size(), 3u);
  EXPECT_EQ(second->List()->size(), 1u);
  EXPECT_EQ(KeysBelow("/c/"), 0) << "nor a chunk";
  EXPECT_TRUE(second->Write("j", Steps(3, 1)).ok()) << "the leader goes on";
}

// Otherwise a step would be there twice, or a job's creation be refused although it was made.
TEST_F(GuardedEtcdTest, AWriteWhoseAnswerIsLostIsMadeOnce) {
  const auto store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  for (const auto lost : {FaultyEtcd::Fault::kAnswerIsLost, FaultyEtcd::Fault::kCallIsLost}) {
    const std::string id = lost == FaultyEtcd::Fault::kCallIsLost ? "call" : "answer";
    int calls = 0;
    faulty_->fault = [&] { return ++calls % 3 != 0 ? lost : FaultyEtcd::Fault::kNone; };
    EXPECT_EQ(store->Write(id, Job(id, std::string(5000, 'x'))), absl::OkStatus());
    EXPECT_EQ(store->Write(id, Steps(0, 3)), absl::OkStatus());
    EXPECT_EQ(store->Write(id, Job(id)).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(store->Write(id, Steps(3, 1)), absl::OkStatus());
    faulty_->fault = [] { return FaultyEtcd::Fault::kNone; };
    EXPECT_EQ(store->Get(id)->job.spec().graph().name().size(), 5000u);
    EXPECT_EQ(store->Log(id, 0, 0, 100)->size(), 4u);
  }
  const uint64_t first = *store->NextEpoch();
  faulty_->fault = [lost = false]() mutable {
    return std::exchange(lost, true) ? FaultyEtcd::Fault::kNone : FaultyEtcd::Fault::kAnswerIsLost;
  };
  EXPECT_EQ(*store->NextEpoch(), first + 1);
  EXPECT_TRUE(lost_.empty());
}

// It waits for etcd, but not beyond the time for which it surely leads.
TEST_F(GuardedEtcdTest, WithoutAnAnswerInTimeTheLeadershipIsOver) {
  const absl::Time end = absl::Now() + absl::Seconds(1);
  left_ = [end] { return std::max(absl::ZeroDuration(), end - absl::Now()); };
  const auto store = TakeOver();
  faulty_->fault = [] { return FaultyEtcd::Fault::kCallIsLost; };
  const absl::Status status = store->Write("j", Job("j"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not renewed in time (lost)"));
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_GE(absl::Now(), end);
  EXPECT_LT(absl::Now(), end + absl::Seconds(1));
  EXPECT_FALSE(store->Get("j").ok()) << "nor does it answer from what may be old";
}

TEST_F(GuardedEtcdTest, ChunksOfAWriteThatNeverEndedAreRemoved) {
  auto store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  ASSERT_TRUE(store->PutBlob("kept", std::string(3500, 'k')).ok());
  int calls = 0;
  const absl::Time end = absl::Now() + absl::Milliseconds(700);
  left_ = [end] { return std::max(absl::ZeroDuration(), end - absl::Now()); };
  store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  faulty_->fault = [&] {
    return ++calls > 2 ? FaultyEtcd::Fault::kCallIsLost : FaultyEtcd::Fault::kNone;
  };
  EXPECT_FALSE(store->PutBlob("kept", std::string(9500, 'n')).ok());
  EXPECT_EQ(KeysBelow("/c/"), 4 + 2);
  faulty_->fault = [] { return FaultyEtcd::Fault::kNone; };
  left_ = nullptr;
  store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  EXPECT_EQ(KeysBelow("/c/"), 4);
  EXPECT_EQ(*store->GetBlob("kept"), std::string(3500, 'k'));
  ASSERT_TRUE(store->PutBlob("kept", "small").ok());
  EXPECT_EQ(KeysBelow("/c/"), 0);
}

TEST_F(GuardedEtcdTest, AChunkThatComesLateChangesNothing) {
  const auto store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  int calls = 0;
  faulty_->fault = [&] {
    ++calls;
    if (calls == 1) return FaultyEtcd::Fault::kCallIsLost;  // the chunk, which is put again
    return calls == 3 ? FaultyEtcd::Fault::kRefused : FaultyEtcd::Fault::kNone;
  };
  EXPECT_EQ(store->PutBlob("b", std::string(1001, 'o')).code(),
            absl::StatusCode::kResourceExhausted)
      << calls;
  faulty_->fault = [] { return FaultyEtcd::Fault::kNone; };
  ASSERT_TRUE(store->PutBlob("b", std::string(1001, 'n')).ok());
  ASSERT_EQ(faulty_->lost_calls.size(), 1u);
  ASSERT_TRUE(client_->Txn(faulty_->lost_calls[0])->succeeded()) << "it still leads";
  EXPECT_EQ(*store->GetBlob("b"), std::string(1001, 'n'));
}

TEST_F(GuardedEtcdTest, CompactionMeansAskAgain) {
  const auto store = TakeOver({.whole_bytes = 1000, .chunk_bytes = 1000});
  ASSERT_TRUE(store->Write("j", Job("j", std::string(5000, 'x'))).ok());
  ASSERT_TRUE(store->Write("j", Steps(0, 3)).ok());
  ASSERT_TRUE(store->PutBlob("b", std::string(5000, 'x')).ok());
  faulty_->compacts = true;
  const std::string path = ::testing::TempDir() + "/compacted.db";
  for (const absl::Status& status :
       {store->BackUp(path, [] { return false; }), store->GetBlob("b").status(),
        store->Get("j").status(), store->List().status()}) {
    if (status.ok()) continue;  // it needed one read
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ask again"));
  }
  EXPECT_FALSE(store->GetBlob("b").ok());
  faulty_->compacts = false;
  EXPECT_TRUE(store->GetBlob("b").ok());
}

// A log of any length has few keys, and few bytes more than its entries.
TEST_F(GuardedEtcdTest, LogsStaySmall) {
  const auto store = TakeOver();
  ASSERT_TRUE(store->Write("j", Job("j")).ok());
  constexpr int kSteps = 2000;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(store->Write("j", Steps(step, 1)).ok());
  }
  EXPECT_LT(KeysBelow("/v/log/"), 70);
  EXPECT_EQ(store->Log("j", 0, 0, 10'000)->size(), static_cast<size_t>(kSteps));
}

TEST_F(GuardedEtcdTest, AStoreBelongsToOneDataFolder) {
  auto store = TakeOver();
  EXPECT_TRUE(store->is_new());
  EXPECT_TRUE(store->BindDataFolder("one").ok());
  store = TakeOver();
  EXPECT_FALSE(store->is_new());
  EXPECT_TRUE(store->BindDataFolder("one").ok());
  const absl::Status other = store->BindDataFolder("two");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("another data folder"));
}

TEST_F(GuardedEtcdTest, AStoreOfAnotherVersionIsRefused) {
  TakeOver();
  etcdserverpb::TxnRequest request;
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(prefix_ + "/format");
  put->set_value("2");
  ASSERT_TRUE(client_->Txn(request).ok());
  const auto refused = EtcdStore::Open(client_.get(), prefix_, LeadForever(client_.get(), prefix_));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("has version 2"));
}

TEST_F(GuardedEtcdTest, AnEndpointThatDoesNotAnswerIsLeft) {
  EtcdClientOptions options;
  options.endpoints = {"127.0.0.1:1", SharedEtcd().endpoint()};
  EtcdClient client(std::move(options));
  const auto store = EtcdStore::Open(&client, prefix_, LeadForever(client_.get(), prefix_));
  ASSERT_EQ(store.status(), absl::OkStatus());
  const absl::Time begin = absl::Now();
  EXPECT_EQ((*store)->Write("j", Job("j")), absl::OkStatus());
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(400)) << "it is not asked again";
}

TEST_F(GuardedEtcdTest, WritesWaitWhileEtcdDoesNotAnswer) {
  const auto store = TakeOver();
  SharedEtcd().Pause();
  std::thread go_on([] {
    absl::SleepFor(absl::Seconds(1));
    SharedEtcd().Continue();
  });
  EXPECT_EQ(store->Write("j", Job("j")), absl::OkStatus());
  go_on.join();
  EXPECT_TRUE(store->Get("j").ok());
  EXPECT_TRUE(lost_.empty());
}

}  // namespace
}  // namespace espalier
