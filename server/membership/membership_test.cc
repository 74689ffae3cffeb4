#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"

namespace espalier {
namespace {

v1::JoinRequest JoinOf(const std::string& name, const std::string& address) {
  v1::JoinRequest request;
  request.set_name(name);
  request.set_address(address);
  request.set_protocol_version(kProtocolVersion);
  request.set_call_key(std::string(32, 'k'));
  request.mutable_device()->set_kind(v1::Device::CPU);
  request.mutable_device()->set_memory_bytes(1 << 30);
  request.mutable_device()->set_matmul_flops(1e9);
  request.mutable_device()->set_memory_bandwidth(1e9);
  return request;
}

class RegistryTest : public ::testing::Test {
 protected:
  v1::Lease Join(const std::string& name, const std::string& address) {
    absl::StatusOr<v1::Lease> lease = registry_.Join(JoinOf(name, address));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *lease : v1::Lease();
  }
  absl::Status Beat(const v1::Lease& lease) {
    v1::HeartbeatRequest request;
    *request.mutable_lease() = lease;
    return registry_.Heartbeat(request).status();
  }

  // Whether the coordinator says that nothing uses the worker any more.
  bool Drained(const v1::Lease& lease) {
    v1::HeartbeatRequest request;
    *request.mutable_lease() = lease;
    const absl::StatusOr<v1::HeartbeatReply> reply = registry_.Heartbeat(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() && reply->drained();
  }

  FakeClock clock_;
  uint64_t epoch_ = 0;
  std::function<void()> before_epoch_;
  int changes_ = 0;
  std::vector<std::string> lost_;  // names
  WorkerRegistry registry_{
      &clock_, absl::Seconds(10),
      [this]() -> absl::StatusOr<uint64_t> {
        if (before_epoch_) std::exchange(before_epoch_, nullptr)();
        return ++epoch_;
      },
      [this] { ++changes_; },
      [this](const Member& worker, absl::string_view) { lost_.push_back(worker.name); }};
};

TEST_F(RegistryTest, HeartbeatsKeepLeaseAndSilenceEndsIt) {
  const v1::Lease lease = Join("a", "127.0.0.1:1");
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(Beat(lease).ok());
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(registry_.Check(lease).ok());
  EXPECT_EQ(registry_.Expire(), 0);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(registry_.Check(lease).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_.Expire(), 1);
  EXPECT_EQ(Beat(lease).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(registry_.List().size(), 1u);
  EXPECT_EQ(registry_.List()[0].state(), v1::WorkerInfo::DEAD);
  EXPECT_TRUE(registry_.Idle().empty());
}

TEST_F(RegistryTest, OldEpochIsRefusedAfterRejoin) {
  const v1::Lease old = Join("a", "127.0.0.1:1");
  ASSERT_TRUE(registry_.Assign(registry_.Idle(), "job").ok());
  const v1::Lease fresh = Join("a", "127.0.0.1:1");
  EXPECT_GT(fresh.epoch(), old.epoch());
  EXPECT_EQ(registry_.Check(old).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(registry_.Check(fresh).ok());
  v1::Lease forged = fresh;
  forged.set_epoch(old.epoch());
  EXPECT_EQ(registry_.Check(forged).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_.Idle().size(), 1u) << "the new incarnation has no job";
}

TEST_F(RegistryTest, ARepeatedJoinGetsTheSameLease) {
  v1::JoinRequest request = JoinOf("a", "127.0.0.1:1");
  request.set_idempotency_key("k");
  EXPECT_EQ(registry_.Join(request)->epoch(), registry_.Join(request)->epoch());
  EXPECT_EQ(registry_.List().size(), 1u);
}

// Regression: it got the lease of the first address, where it could not be reached.
TEST_F(RegistryTest, AnotherJoinWithTheSameKeyIsRefused) {
  v1::JoinRequest request = JoinOf("a", "127.0.0.1:1");
  request.set_idempotency_key("k");
  ASSERT_TRUE(registry_.Join(request).ok());
  request.set_address("127.0.0.1:2");
  const absl::Status changed = registry_.Join(request).status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kInvalidArgument) << changed;
  EXPECT_THAT(std::string(changed.message()), ::testing::HasSubstr("another request"));
  ASSERT_EQ(registry_.List().size(), 1u);
  EXPECT_EQ(registry_.List()[0].address(), "127.0.0.1:1");
}

TEST_F(RegistryTest, RepeatedJoinGetsSameLease) {
  v1::JoinRequest request = JoinOf("a", "127.0.0.1:1");
  request.set_idempotency_key("k");
  absl::StatusOr<v1::Lease> second;
  before_epoch_ = [&] { second = registry_.Join(request); };
  const absl::StatusOr<v1::Lease> first = registry_.Join(request);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->epoch(), second->epoch());
  EXPECT_TRUE(registry_.Check(*second).ok());
  EXPECT_EQ(registry_.List().size(), 1u);
  EXPECT_THAT(lost_, ::testing::IsEmpty());
}

// Jobs on both would fail when they begin.
TEST_F(RegistryTest, AWorkerThatDoesNotEncryptAsThoseOfOtherHostsIsRefused) {
  constexpr auto kEncrypted = v1::JoinRequest::ENCRYPTED;
  constexpr auto kInClear = v1::JoinRequest::IN_CLEAR;
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  const auto join = [&](const std::string& name, const std::string& host,
                        v1::JoinRequest::TensorsBetweenHosts tensors) {
    v1::JoinRequest request = JoinOf(name, name + ":1");
    request.set_shared_memory_id(host);
    request.set_tensors_between_hosts(tensors);
    return registry_.Join(request);
  };
  const absl::StatusOr<v1::Lease> first = join("first", "a", kEncrypted);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status clear = join("clear", "b", kInClear).status();
  EXPECT_EQ(clear.code(), absl::StatusCode::kFailedPrecondition) << clear;
  EXPECT_THAT(std::string(clear.message()),
              AllOf(HasSubstr("this worker runs with --trusted-network"),
                    HasSubstr("other hosts do not: w1 (first); start it without")));
  EXPECT_FALSE(join("unknown", "", kInClear).ok()) << "it may be on another host";
  EXPECT_TRUE(join("same", "b", kEncrypted).ok());
  EXPECT_TRUE(join("older", "b", v1::JoinRequest::TENSORS_UNSPECIFIED).ok());
  EXPECT_EQ(registry_.Live(), 3);
  clock_.Advance(absl::Seconds(11));
  EXPECT_TRUE(join("clear", "b", kInClear).ok()) << "none of the others lives";
  const absl::Status encrypts = join("first", "a", kEncrypted).status();
  EXPECT_THAT(std::string(encrypts.message()),
              AllOf(HasSubstr("this worker encrypts"), HasSubstr("(clear); start it with --trus")));
  EXPECT_TRUE(join("neighbour", "b", kEncrypted).ok()) << "they share memory";
  // On a third host now neither may join.
  EXPECT_FALSE(join("third", "c", kEncrypted).ok());
  EXPECT_FALSE(join("third", "c", kInClear).ok());
}

TEST_F(RegistryTest, AWorkerMayStartAgainWithTheOtherEncryption) {
  const auto join = [&](const std::string& address, bool encrypts) {
    v1::JoinRequest request = JoinOf("w", address);
    request.set_tensors_between_hosts(encrypts ? v1::JoinRequest::ENCRYPTED
                                               : v1::JoinRequest::IN_CLEAR);
    return registry_.Join(request);
  };
  ASSERT_TRUE(join("a:1", true).ok());
  const absl::StatusOr<v1::Lease> again = join("a:1", false);
  ASSERT_TRUE(again.ok()) << "it replaces itself: " << again.status();
  ASSERT_TRUE(registry_.Drain(*again).ok());
  EXPECT_TRUE(join("a:2", true).ok()) << "no job uses the one that drains";
}

TEST_F(RegistryTest, OfTwoWorkersThatJoinAtOnceOneIsRefused) {
  const auto join = [&](const std::string& address, bool encrypts) {
    v1::JoinRequest request = JoinOf("w", address);
    request.set_tensors_between_hosts(encrypts ? v1::JoinRequest::ENCRYPTED
                                               : v1::JoinRequest::IN_CLEAR);
    return registry_.Join(request);
  };
  before_epoch_ = [&] { EXPECT_TRUE(join("b:1", false).ok()); };
  EXPECT_EQ(join("a:1", true).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, EveryLossIsReportedOnce) {
  using ::testing::ElementsAre;
  const v1::Lease silent = Join("silent", "127.0.0.1:1");
  const v1::Lease mute = Join("mute", "127.0.0.1:2");
  const v1::Lease replaced = Join("replaced", "127.0.0.1:3");
  registry_.Suspect(mute);
  EXPECT_THAT(lost_, ElementsAre("mute"));
  const v1::Lease again = Join("again", "127.0.0.1:3");
  EXPECT_THAT(lost_, ElementsAre("mute", "replaced"));
  for (const v1::Lease& lease : {mute, replaced}) {
    registry_.Suspect(lease);
    EXPECT_FALSE(registry_.Leave(lease).ok());
  }
  const v1::Lease back = Join("back", "127.0.0.1:2");
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(Beat(again).ok() && Beat(back).ok());
  clock_.Advance(absl::Seconds(2));
  // Its lease has expired but Expire has not run yet.
  registry_.Suspect(silent);
  EXPECT_EQ(registry_.Expire(), 1);
  EXPECT_EQ(registry_.Expire(), 0);
  EXPECT_THAT(lost_, ElementsAre("mute", "replaced", "silent"));
}

TEST_F(RegistryTest, ExpiredLeaseIsOneLossWhenAddressIsTaken) {
  Join("a", "127.0.0.1:1");
  clock_.Advance(absl::Seconds(11));
  Join("b", "127.0.0.1:1");
  EXPECT_EQ(registry_.Expire(), 0);
  EXPECT_THAT(lost_, ::testing::ElementsAre("a"));
}

TEST_F(RegistryTest, WhoLeavesIsNotLost) {
  const v1::Lease lease = Join("a", "127.0.0.1:1");
  ASSERT_TRUE(registry_.Leave(lease).ok());
  registry_.Suspect(lease);
  Join("b", "127.0.0.1:1");
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(registry_.Expire(), 0);
  EXPECT_THAT(lost_, ::testing::IsEmpty());
}

TEST_F(RegistryTest, AWorkerThatDrainsKeepsWhatItHasAndGetsNothingMore) {
  using ::testing::ElementsAre;
  const v1::Lease lease = Join("a", "127.0.0.1:1");
  const std::vector<Member> members = registry_.Idle();
  ASSERT_TRUE(registry_.Assign(members, {"llm", "chat", 100, 1}).ok());
  EXPECT_FALSE(registry_.IsDraining(lease));
  const int changes = changes_;
  EXPECT_THAT(*registry_.Drain(lease), ElementsAre("llm"));
  EXPECT_EQ(changes_, changes + 1) << "its jobs are to know";
  EXPECT_TRUE(registry_.IsDraining(lease));
  EXPECT_THAT(registry_.AvailableFor("chat"), ::testing::IsEmpty());
  const absl::Status refused = registry_.Assign(members, {"ssm", "chat", 100, 1});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(), "worker 'w1' is about to leave");
  EXPECT_EQ(registry_.List()[0].state(), v1::WorkerInfo::DRAINING);
  EXPECT_EQ(registry_.List()[0].job_id(), "llm");
  EXPECT_EQ(registry_.Count().draining, 1);
  EXPECT_EQ(registry_.Count().busy, 0);
  EXPECT_FALSE(Drained(lease));

  registry_.Release("llm");
  EXPECT_TRUE(Drained(lease));
  EXPECT_THAT(registry_.Idle(), ::testing::IsEmpty());
  EXPECT_THAT(*registry_.Drain(lease), ::testing::IsEmpty()) << "it may say so again";
  ASSERT_TRUE(registry_.Leave(lease).ok());
  EXPECT_FALSE(registry_.IsDraining(lease));
  EXPECT_EQ(registry_.Check(lease).message(), "worker 'w1' was told to end and has left");
  EXPECT_EQ(registry_.List()[0].state(), v1::WorkerInfo::LEFT) << "it is not shown as dead";
  EXPECT_EQ(registry_.Count().left, 1);
  EXPECT_EQ(registry_.Count().dead + registry_.Count().draining, 0);
  EXPECT_THAT(lost_, ::testing::IsEmpty());
}

TEST_F(RegistryTest, NothingIsDrainedUnasked) {
  const v1::Lease lease = Join("a", "127.0.0.1:1");
  EXPECT_FALSE(Drained(lease)) << "an idle worker stays";
  v1::Lease stale = lease;
  stale.set_epoch(7);
  EXPECT_EQ(registry_.Drain(stale).status().code(), absl::StatusCode::kFailedPrecondition);
  // Draining ends with the lease: the worker says so again once it has joined again.
  ASSERT_TRUE(registry_.Drain(lease).ok());
  const v1::Lease fresh = Join("a", "127.0.0.1:1");
  EXPECT_FALSE(registry_.IsDraining(fresh));
  EXPECT_EQ(registry_.Idle().size(), 1u);
}

TEST_F(RegistryTest, AssignTakesAllOrNobody) {
  Join("a", "127.0.0.1:1");
  std::vector<Member> first = registry_.Idle();
  Join("b", "127.0.0.1:2");
  const std::vector<Member> both = registry_.Idle();
  ASSERT_TRUE(registry_.Assign(first, "one").ok());
  EXPECT_FALSE(registry_.Assign(both, "two").ok());
  EXPECT_EQ(registry_.Idle().size(), 1u);
  registry_.Release("one");
  EXPECT_TRUE(registry_.Assign(both, "two").ok());
  EXPECT_TRUE(registry_.Idle().empty());
}

TEST_F(RegistryTest, JobsOfOneGroupShareAWorkerAsFarAsItsMemoryGoes) {
  Join("a", "127.0.0.1:1");
  const std::vector<Member> a = registry_.Idle();
  const int64_t memory = a[0].device.memory_bytes();
  ASSERT_TRUE(registry_.Assign(a, {"lm", "group", memory - 100}).ok());
  Join("b", "127.0.0.1:2");
  // Idle workers first; other groups see only these.
  const std::vector<WorkerRegistry::AvailableWorker> available = registry_.AvailableFor("group");
  ASSERT_EQ(available.size(), 2u);
  EXPECT_FALSE(available[0].shared);
  EXPECT_EQ(available[0].bytes, memory);
  EXPECT_EQ(available[1].member.name, "a");
  EXPECT_TRUE(available[1].shared);
  EXPECT_EQ(available[1].bytes, 100);
  EXPECT_EQ(registry_.AvailableFor("other").size(), 1u);
  EXPECT_EQ(registry_.AvailableFor("").size(), 1u);
  const absl::Status full = registry_.Assign(a, {"lm/ssm0", "group", 101});
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(full.message().find("leaves 100 bytes"), absl::string_view::npos) << full;
  EXPECT_FALSE(registry_.Assign(a, {"lm/ssm0", "other", 1}).ok());
  EXPECT_FALSE(registry_.Assign(a, "training").ok());
  ASSERT_TRUE(registry_.Assign(a, {"lm/ssm0", "group", 60}).ok());
  EXPECT_EQ(registry_.AvailableFor("group")[1].bytes, 40);
  EXPECT_EQ(registry_.List()[0].job_id(), "lm, lm/ssm0");
  EXPECT_EQ(registry_.Idle().size(), 1u);
  registry_.Release("lm");
  EXPECT_EQ(registry_.List()[0].job_id(), "lm/ssm0");
  EXPECT_EQ(registry_.AvailableFor("group")[1].bytes, memory - 60);
  registry_.Release("lm/ssm0");
  EXPECT_EQ(registry_.Idle().size(), 2u);
}

TEST_F(RegistryTest, ReleaseOfOldAttemptKeepsWorkersOfLaterOne) {
  Join("a", "127.0.0.1:1");
  ASSERT_TRUE(registry_.Assign(registry_.Idle(), {"lm", "", 0, /*attempt=*/1}).ok());
  Join("b", "127.0.0.1:2");
  ASSERT_TRUE(registry_.Assign(registry_.Idle(), {"lm", "", 0, /*attempt=*/2}).ok());
  registry_.Release("lm", 1);
  ASSERT_EQ(registry_.Idle().size(), 1u);
  EXPECT_EQ(registry_.Idle()[0].name, "a");
  registry_.Release("lm");
  EXPECT_EQ(registry_.Idle().size(), 2u);
}

TEST_F(RegistryTest, JoinSaysWhatIsWrong) {
  v1::JoinRequest request = JoinOf("a", "nowhere");
  EXPECT_EQ(registry_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = JoinOf("a", "127.0.0.1:1");
  request.set_protocol_version(7);
  EXPECT_EQ(registry_.Join(request).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const size_t length : {0, 31, 257}) {
    request = JoinOf("a", "127.0.0.1:1");
    request.set_call_key(std::string(length, 'k'));
    EXPECT_EQ(registry_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
  }
  request = JoinOf("a", "127.0.0.1:1");
  request.clear_device();
  EXPECT_EQ(registry_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Rendezvous, AGetWaitsForTheSetOfAnotherRank) {
  Rendezvous store;
  store.Begin("j", 1);
  std::thread setter([&] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_TRUE(store.Set("j", 1, "k", "v").ok());
  });
  auto value = store.Get("j", 1, "k", absl::Seconds(30));
  setter.join();
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->value_or(""), "v");
}

TEST(Rendezvous, EndOfAttemptWakesWaitersAndRefusesLaterCalls) {
  Rendezvous store;
  store.Begin("j", 1);
  std::thread ender([&] {
    absl::SleepFor(absl::Milliseconds(20));
    store.Begin("j", 2);
  });
  EXPECT_EQ(store.Get("j", 1, "k", absl::Seconds(30)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ender.join();
  EXPECT_EQ(store.Set("j", 1, "k", "v").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store.Set("j", 2, "k", "v").ok());
  EXPECT_EQ(store.Set("other", 1, "k", "v").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Rendezvous, LateEndDoesNotAffectNextAttempt) {
  Rendezvous store;
  store.Begin("j", 1);
  store.Begin("j", 2);
  ASSERT_TRUE(store.Set("j", 2, "k", "v").ok());
  store.End("j", 1);
  EXPECT_TRUE(store.Get("j", 2, "k", absl::ZeroDuration()).ok());
  store.End("j", 2);
  EXPECT_FALSE(store.Get("j", 2, "k", absl::ZeroDuration()).ok());
}

TEST(Rendezvous, MissingKeyIsNotFoundAtDeadline) {
  Rendezvous store;
  store.Begin("j", 1);
  auto at_once = store.Get("j", 1, "k", absl::ZeroDuration());
  ASSERT_TRUE(at_once.ok());
  EXPECT_FALSE(at_once->has_value());
  EXPECT_EQ(store.Get("j", 1, "k", absl::Seconds(30), [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace espalier
