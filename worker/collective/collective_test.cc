// Every implementation gives the same answers: the tests run over threads, over Gloo's TCP and over
// memory that ranks share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "ops/cpu/convert.h"
#include "worker/collective/gloo_communicator.h"
#include "worker/collective/in_process.h"
#include "worker/collective/measure_communication.h"

namespace espalier {
namespace {

enum class Kind { kInProcess, kGloo, kShared };

using Body = std::function<void(Communicator&)>;

void RunRanks(Kind kind, int size, absl::Duration timeout, const Body& body) {
  std::vector<std::unique_ptr<Communicator>> all(size);
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  if (kind == Kind::kInProcess) {
    all = NewInProcessCommunicators(size, timeout);
  } else {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        GlooOptions options;
        options.rank = rank;
        options.size = size;
        options.timeout = timeout;
        options.share_memory = kind == Kind::kShared;
        auto made = ConnectGloo(options, *store);
        ASSERT_TRUE(made.ok()) << made.status();
        all[rank] = *std::move(made);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { body(*all[rank]); });
  for (std::thread& thread : threads) thread.join();
}

float Term(int rank, int64_t i) { return std::sin(rank * 13.7f + i) * std::pow(10.0f, rank % 3); }

class CollectiveTest : public testing::TestWithParam<Kind> {};

TEST_P(CollectiveTest, AllReduceAddsInRankOrderOnEveryRank) {
  RunRanks(GetParam(), 3, absl::Seconds(10), [&](Communicator& c) {
    // Not multiples of the number of ranks; the last is sent in parts.
    for (int64_t count : {1, 1001, 50000}) {
      const int64_t round = count % 7;
      std::vector<float> values(count);
      for (int64_t i = 0; i < count; ++i) values[i] = Term(c.rank(), i + round);
      absl::Status s = c.AllReduce(DType::kF32, values.data(), values.data(), count, {0, 1, 2}, 7);
      ASSERT_TRUE(s.ok()) << s;
      for (int64_t i = 0; i < count; ++i) {
        const float expected = (Term(0, i + round) + Term(1, i + round)) + Term(2, i + round);
        ASSERT_EQ(values[i], expected) << i;
      }
    }
    EXPECT_TRUE(c.Flush().ok());
  });
}

TEST_P(CollectiveTest, HalfTypesAddInF32WithOneRounding) {
  RunRanks(GetParam(), 3, absl::Seconds(10), [&](Communicator& c) {
    // In bf16 steps 256 + 1 + 1 would stay 256.
    std::vector<uint16_t> values(5, F32ToBF16(c.rank() == 0 ? 256.0f : 1.0f));
    ASSERT_TRUE(c.AllReduce(DType::kBF16, values.data(), values.data(), 5, {0, 1, 2}, 1).ok());
    for (uint16_t v : values) EXPECT_EQ(BF16ToF32(v), 258.0f);
    EXPECT_TRUE(c.Flush().ok());
  });
}

TEST_P(CollectiveTest, SubgroupsAndTheOtherCollectives) {
  RunRanks(GetParam(), 4, absl::Seconds(10), [&](Communicator& c) {
    const Communicator::Group group =
        c.rank() % 2 == 0 ? Communicator::Group{0, 2} : Communicator::Group{1, 3};
    const int me = c.rank() / 2, base = c.rank() % 2;
    std::vector<int32_t> mine{c.rank(), c.rank() + 10}, gathered(4);
    ASSERT_TRUE(c.AllGather(mine.data(), gathered.data(), 8, group, 1).ok());
    EXPECT_EQ(gathered, (std::vector<int32_t>{base, base + 10, base + 2, base + 12}));

    std::vector<int32_t> input{1, 2, 3, 4}, part(2);
    ASSERT_TRUE(c.ReduceScatter(DType::kI32, input.data(), part.data(), 2, group, 2).ok());
    EXPECT_EQ(part, (std::vector<int32_t>{2 * (1 + 2 * me), 2 * (2 + 2 * me)}));

    std::vector<int32_t> outgoing{c.rank() * 10, c.rank() * 10 + 1}, incoming(2);
    ASSERT_TRUE(c.AllToAll(outgoing.data(), incoming.data(), 4, group, 3).ok());
    EXPECT_EQ(incoming, (std::vector<int32_t>{base * 10 + me, (base + 2) * 10 + me}));

    int64_t value = c.rank() + 100;
    ASSERT_TRUE(c.Broadcast(&value, &value, 8, {0, 1, 2, 3}, 4).ok());
    EXPECT_EQ(value, 100);
    EXPECT_TRUE(c.Flush().ok());
  });
}

TEST_P(CollectiveTest, BothEndsMaySendFirst) {
  RunRanks(GetParam(), 2, absl::Seconds(10), [&](Communicator& c) {
    std::vector<char> mine(1 << 20, static_cast<char>('a' + c.rank())), theirs(1 << 20);
    for (uint64_t tag = 0; tag < 3; ++tag) {
      ASSERT_TRUE(c.Send(mine.data(), 1 << 20, 1 - c.rank(), tag).ok());
      mine[0] = 'z';  // the send has its own copy
      ASSERT_TRUE(c.Receive(theirs.data(), 1 << 20, 1 - c.rank(), tag).ok());
      EXPECT_EQ(theirs[1], 'b' - c.rank());
    }
    EXPECT_TRUE(c.Flush().ok());
  });
}

TEST_P(CollectiveTest, ASilentPeerEndsInAnErrorThatNamesIt) {
  RunRanks(GetParam(), 2, absl::Milliseconds(300), [&](Communicator& c) {
    if (c.rank() == 1) {
      absl::SleepFor(absl::Milliseconds(600));
      return;
    }
    int value = 0;
    absl::Status s = c.Receive(&value, 4, 1, 5);
    EXPECT_TRUE(absl::IsDeadlineExceeded(s) || absl::IsUnavailable(s)) << s;
    EXPECT_NE(std::string(s.message()).find("rank 1"), std::string::npos) << s;
  });
}

TEST_P(CollectiveTest, AbortEndsAWaitAtOnceAndSticks) {
  const absl::Time start = absl::Now();
  RunRanks(GetParam(), 2, absl::Seconds(60), [&](Communicator& c) {
    if (c.rank() == 1) {
      absl::SleepFor(absl::Milliseconds(400));
      return;
    }
    std::thread stopper([&] {
      absl::SleepFor(absl::Milliseconds(100));
      c.Abort("job cancelled");
    });
    int value = 0;
    absl::Status s = c.Receive(&value, 4, 1, 5);
    EXPECT_EQ(s, absl::CancelledError("job cancelled"));
    stopper.join();
    EXPECT_EQ(c.Send(&value, 4, 1, 6), absl::CancelledError("job cancelled"));
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

// Buffers of sends are used again, but not before what they hold has left.
TEST_P(CollectiveTest, ASlowReceiverGetsWhatWasSent) {
  RunRanks(GetParam(), 2, absl::Seconds(10), [&](Communicator& c) {
    constexpr int kSteps = 6, kMessages = 5;
    const auto value = [](int step, int message) { return step * 100.0f + message; };
    for (int step = 0; step < kSteps; ++step) {
      for (int message = 0; message < kMessages; ++message) {
        // Sizes that come again, in this step and in later ones.
        std::vector<float> data(1000 * (1 + message % 2), value(step, message));
        const int64_t bytes = static_cast<int64_t>(data.size() * sizeof(float));
        if (c.rank() == 0) {
          ASSERT_TRUE(c.Send(data.data(), bytes, 1, 3).ok());
          std::fill(data.begin(), data.end(), -1.0f);
          continue;
        }
        if (message == 0) absl::SleepFor(absl::Milliseconds(5));
        ASSERT_TRUE(c.Receive(data.data(), bytes, 0, 3).ok());
        for (float v : data) ASSERT_EQ(v, value(step, message));
      }
      ASSERT_TRUE(c.EndStep().ok());
    }
    EXPECT_TRUE(c.Flush().ok());
  });
}

TEST_P(CollectiveTest, CommunicationIsMeasuredAlikeOnAllRanks) {
  std::vector<std::string> said(3);
  RunRanks(GetParam(), 3, absl::Seconds(10), [&](Communicator& c) {
    std::unique_ptr<Device> device = NewCpuDevice({1, 0});
    MeasureCommunicationOptions options;
    options.bytes = {64, 4096};
    options.repetitions = 3;
    auto profile = MeasureCommunication(c, *device, options);
    ASSERT_TRUE(profile.ok()) << profile.status();
    said[c.rank()] = profile->SerializeAsString();
    if (c.rank() != 0) return;
    ASSERT_EQ(profile->messages_size(), 2);
    EXPECT_EQ(profile->messages(1).bytes(), 4096);
    EXPECT_GT(profile->messages(1).receive_seconds(), 0);
    EXPECT_EQ(profile->collectives_size(), 5 * 2 * 2);  // kinds, of 2 and of 3 ranks, sizes
    for (const auto& c : profile->collectives()) {
      EXPECT_GT(c.seconds(), 0);
      EXPECT_LT(c.seconds(), 5);
    }
    options.repetitions = 0;
    EXPECT_TRUE(absl::IsInvalidArgument(MeasureCommunication(c, *device, options).status()));
  });
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveTest,
                         testing::Values(Kind::kInProcess, Kind::kGloo, Kind::kShared),
                         [](const auto& info) {
                           return info.param == Kind::kInProcess ? "InProcess"
                                  : info.param == Kind::kGloo    ? "Gloo"
                                                                 : "Shared";
                         });

TEST(Gloo, APeerThatNeverComesIsReported) {
  auto store = NewInProcessStore();
  GlooOptions options;
  options.size = 2;
  options.timeout = absl::Milliseconds(300);
  auto made = ConnectGloo(options, *store);
  EXPECT_FALSE(made.ok());
  EXPECT_NE(std::string(made.status().message()).find("rank 0 of 2"), std::string::npos);
}

}  // namespace
}  // namespace espalier
