// Which transport the ranks of an attempt get, and what is refused on a network that nobody trusts.
#include "worker/collective/rank_connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/collective/in_process_communicator.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Made = absl::StatusOr<std::unique_ptr<Communicator>>;

// The ranks' store outlives what they own.
class Shared : public RendezvousStore {
 public:
  explicit Shared(RendezvousStore& store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    return store_.Get(key, timeout);
  }

 private:
  RendezvousStore& store_;
};

// Two ranks, which are on different hosts as far as they know.
struct Pair {
  std::vector<RankOptions> options{2};
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  std::vector<std::unique_ptr<Communicator>> gpus =
      NewInProcessCommunicators(2, absl::Seconds(10));  // in NCCL's place
  std::atomic<int> nccl = 0;

  Pair() {
    for (int rank = 0; rank < 2; ++rank) {
      options[rank].rank = rank;
      options[rank].size = 2;
      options[rank].several_hosts = true;
      options[rank].network.worker = "worker-" + std::to_string(rank);
    }
  }
  std::vector<Made> Connect() {
    std::vector<Made> made;
    for (int rank = 0; rank < 2; ++rank) made.emplace_back(absl::UnknownError("not called"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        made[rank] = ConnectRanks(
            options[rank], std::make_unique<Shared>(*store),
            [&, rank](std::unique_ptr<RendezvousStore>, std::unique_ptr<PeerMonitor> monitor) {
              ++nccl;
              EXPECT_EQ(monitor != nullptr, options[rank].several_hosts);
              return Made(std::move(gpus[rank]));
            });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return made;
  }
};

TEST(RankConnector, CpusOfSeveralHostsMeet) {
  Pair pair;
  std::vector<Made> made = pair.Connect();
  ASSERT_TRUE(made[0].ok()) << made[0].status();
  ASSERT_TRUE(made[1].ok()) << made[1].status();
  char text[] = "abc";
  ASSERT_TRUE((*made[0])->Send("xyz", 4, 1, 1).ok());
  ASSERT_TRUE((*made[1])->Receive(text, 4, 0, 1).ok());
  EXPECT_STREQ(text, "xyz");
  EXPECT_EQ(pair.nccl, 0);
}

TEST(RankConnector, GpusOfSeveralHostsNeedATrustedNetwork) {
  Pair pair;
  for (RankOptions& options : pair.options) options.is_cuda = true;
  for (const Made& refused : pair.Connect()) {
    EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("NCCL does not encrypt"), HasSubstr("--trusted-network"),
                      HasSubstr("worker-")));
  }
  EXPECT_EQ(pair.nccl, 0);
}

TEST(RankConnector, GpusOfOneHostAndOfATrustedNetworkUseNccl) {
  for (const bool several_hosts : {false, true}) {
    Pair pair;
    for (RankOptions& options : pair.options) {
      options.is_cuda = true;
      options.several_hosts = several_hosts;
      options.network.encrypted = !several_hosts;
    }
    for (const Made& made : pair.Connect()) EXPECT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(pair.nccl, 2);
  }
}

// The GPU's tensors then go through its host's memory.
TEST(RankConnector, AGpuAndACpuOfSeveralHostsMeetEncrypted) {
  Pair pair;
  pair.options[0].is_cuda = true;
  for (const Made& made : pair.Connect()) EXPECT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(pair.nccl, 0);
}

TEST(RankConnector, WorkersThatDoNotAgreeAreNamed) {
  Pair pair;
  pair.options[1].network.encrypted = false;
  for (const Made& refused : pair.Connect()) {
    EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("worker-1 (rank 1 (127.0.0.1)) runs with --trusted-network"),
                      HasSubstr("worker-0"), HasSubstr("start all workers with it")));
  }
}

}  // namespace
}  // namespace espalier
