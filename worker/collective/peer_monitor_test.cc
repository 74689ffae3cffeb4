// A peer from which nothing arrives any more ends the attempt within the stated time; one that
// computes for long, and one that has ended, do not.
#include "worker/collective/peer_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/collective/process_communicator.h"
#include "worker/collective/unreachable_rank.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kSilence = absl::Seconds(1);

struct Ranks {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  std::unique_ptr<PeerMonitor> monitors[2];

  void Connect() {
    std::thread second([this] { Connect(1); });
    Connect(0);
    second.join();
  }
  void Connect(int rank) {
    PeerMonitorOptions options;
    options.rank = rank;
    options.size = 2;
    options.silence = kSilence;
    options.same_host = true;
    absl::StatusOr<std::unique_ptr<PeerMonitor>> made = PeerMonitor::Connect(options, *store);
    ASSERT_TRUE(made.ok()) << made.status();
    monitors[rank] = *std::move(made);
  }
};

TEST(PeerMonitor, RanksOfOneHostAreNotWatched) {
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  std::thread second(
      [&store] { EXPECT_EQ(*PeerMonitor::Connect({.rank = 1, .size = 2}, *store), nullptr); });
  EXPECT_EQ(*PeerMonitor::Connect({.rank = 0, .size = 2}, *store), nullptr);
  second.join();
}

TEST(PeerMonitor, PeersThatSendNothingElseAreNotLost) {
  Ranks ranks;
  ranks.Connect();
  absl::Status said;
  for (auto& monitor : ranks.monitors) {
    monitor->Watch([&said](const absl::Status& status) { said = status; });
  }
  absl::SleepFor(3 * kSilence);
  ranks.monitors[0].reset();
  ranks.monitors[1].reset();
  EXPECT_TRUE(said.ok()) << said;
}

TEST(PeerMonitor, APeerThatHasEndedIsNoLoss) {
  Ranks ranks;
  ranks.Connect();
  absl::Status said;
  for (auto& monitor : ranks.monitors) {
    monitor->Watch([&said](const absl::Status& status) { said = status; });
  }
  absl::SleepFor(kSilence / 2);
  ranks.monitors[1].reset();
  absl::SleepFor(2 * kSilence);
  ranks.monitors[0].reset();
  EXPECT_TRUE(said.ok()) << said;
}

// As if no packet of rank 0 reached rank 1: its monitor is connected and sends nothing.
TEST(PeerMonitor, SilenceEndsAWaitAndNamesThePair) {
  Ranks ranks;
  ranks.Connect();
  std::unique_ptr<Communicator> communicators[2];
  const auto connect = [&](int rank, std::unique_ptr<PeerMonitor> monitor) {
    ProcessCommunicatorOptions options;
    options.rank = rank;
    options.size = 2;
    options.share_memory = false;
    auto made = ConnectProcesses(options, *ranks.store, std::move(monitor));
    ASSERT_TRUE(made.ok()) << made.status();
    communicators[rank] = *std::move(made);
  };
  std::thread second([&] { connect(1, std::move(ranks.monitors[1])); });
  connect(0, nullptr);
  second.join();
  const absl::Time begin = absl::Now();
  float never = 0;
  const absl::Status received = communicators[1]->Receive(&never, sizeof(never), 0, 1);
  EXPECT_EQ(received.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(received.message(), AllOf(HasSubstr("nothing has arrived from rank 0 (127.0.0.1)"),
                                        HasSubstr("at rank 1 (127.0.0.1) for 1s")));
  EXPECT_LT(absl::Now() - begin, 5 * kSilence);
  EXPECT_EQ(communicators[1]->Send(&never, sizeof(never), 0, 2), received);
}

TEST(PeerMonitor, APairThatCannotConnectIsNamed) {
  PeerCard dead;
  dead.identity = "elsewhere";
  dead.host = "127.0.0.1";
  dead.port = "1";
  dead.secret = std::string(32, '0');
  dead.fingerprint = std::string(64, '0');
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  PeerMonitorOptions options;
  options.size = 2;
  ASSERT_TRUE(store->Set("monitor/1", dead.Encode()).ok());
  const absl::Status failed = PeerMonitor::Connect(options, *store).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(failed.message(),
              HasSubstr("rank 0 (127.0.0.1) cannot connect to rank 1 (127.0.0.1): Connection "
                        "refused"));
  EXPECT_EQ(UnreachableRank(failed), 1);
}

}  // namespace
}  // namespace espalier
