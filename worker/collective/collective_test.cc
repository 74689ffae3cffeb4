// Every communicator gives the same results: tests run over threads, TLS, plain TCP, shared memory,
// and a mix of shared memory and TLS.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "ops/cpu/dtype/convert.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/collective/measure_communication.h"
#include "worker/collective/process_communicator.h"

namespace espalier {
namespace {

enum class Kind { kInProcess, kEncrypted, kPlain, kShared, kSeveralHosts };

// Host of a rank, for kSeveralHosts.
constexpr int kHosts[] = {0, 1, 2, 2, 3, 0};

bool ShareMemory(Kind kind, int a, int b) {
  return kind == Kind::kShared || (kind == Kind::kSeveralHosts && kHosts[a] == kHosts[b]);
}

// Makes ranks appear to be on several hosts in `store`.
class OfSeveralHosts : public RendezvousStore {
 public:
  OfSeveralHosts(RendezvousStore& store, int rank) : store_(store), rank_(rank) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    absl::StatusOr<std::string> value = store_.Get(key, timeout);
    int peer = rank_;
    const bool is_card = key.rfind("host/", 0) == 0 && absl::SimpleAtoi(key.substr(5), &peer);
    if (value.ok() && is_card && kHosts[peer] != kHosts[rank_]) return "elsewhere-" + *value;
    return value;
  }

 private:
  RendezvousStore& store_;
  const int rank_;
};

using Body = std::function<void(Communicator&)>;

void RunRanks(Kind kind, int size, absl::Duration timeout, const Body& body,
              int64_t max_buffered_bytes = ProcessCommunicatorOptions().max_buffered_bytes) {
  std::vector<std::unique_ptr<Communicator>> all(size);
  std::unique_ptr<RendezvousStore> store = NewInProcessStore();
  if (kind == Kind::kInProcess) {
    all = NewInProcessCommunicators(size, timeout);
  } else {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        ProcessCommunicatorOptions options;
        options.rank = rank;
        options.size = size;
        options.timeout = timeout;
        options.network.encrypted = kind != Kind::kPlain;
        options.share_memory = kind != Kind::kEncrypted && kind != Kind::kPlain;
        options.max_buffered_bytes = max_buffered_bytes;
        OfSeveralHosts several_hosts(*store, rank);
        auto made = ConnectProcesses(options, kind == Kind::kSeveralHosts ? several_hosts : *store);
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
    // Not multiples of the number of ranks; the last one is sent in parts.
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
    // Accumulating in bf16, 256 + 1 + 1 would be 256.
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

// Stands for tensors of hundreds of MB with default buffers.
TEST_P(CollectiveTest, TensorsLargerThanSendBuffersArriveBitExact) {
  constexpr int64_t kCount = 120000;
  constexpr int kFirst = 4096;  // as many messages as a channel's queue holds
  // No part fits; one fits, two do not; all fit.
  const std::vector<std::pair<int, int64_t>> cases{{3, 1000},   {3, 200000},  {4, 1000},
                                                   {4, 130000}, {4, 2000000}, {6, 1000}};
  for (const auto& [size, buffered] : cases) {
    SCOPED_TRACE(testing::Message() << size << " ranks, " << buffered << " bytes");
    Communicator::Group group;
    for (int rank = 0; rank < size; ++rank) group.push_back(rank);
    std::vector<std::vector<float>> sums(size);
    const auto body = [&, size = size](Communicator& c) {
      // Shared memory has much more space: a channel full of other messages leaves later ones to
      // the buffers.
      std::vector<int> linked;
      for (int peer : group) {
        if (peer != c.rank() && ShareMemory(GetParam(), peer, c.rank())) linked.push_back(peer);
      }
      for (int peer : linked) {
        for (int i = 0; i < kFirst; ++i) ASSERT_TRUE(c.Send("x", 1, peer, 99).ok());
      }
      std::vector<float> values(kCount);
      for (int64_t i = 0; i < kCount; ++i) values[i] = Term(c.rank(), i);
      std::vector<float>& sum = sums[c.rank()];
      sum.resize(kCount);
      absl::Status s = c.AllReduce(DType::kF32, values.data(), sum.data(), kCount, group, 1);
      ASSERT_TRUE(s.ok()) << s;
      const int64_t part = kCount / size, bytes = part * static_cast<int64_t>(sizeof(float));
      std::vector<float> mine(part), all(kCount), back(kCount);
      s = c.ReduceScatter(DType::kF32, values.data(), mine.data(), part, group, 2);
      ASSERT_TRUE(s.ok()) << s;
      s = c.AllGather(mine.data(), all.data(), bytes, group, 3);
      ASSERT_TRUE(s.ok()) << s;
      EXPECT_TRUE(all == sum);
      s = c.AllToAll(values.data(), all.data(), bytes, group, 4);
      ASSERT_TRUE(s.ok()) << s;
      s = c.AllToAll(all.data(), back.data(), bytes, group, 5);
      ASSERT_TRUE(s.ok()) << s;
      EXPECT_TRUE(back == values);
      char x = 0;
      for (int peer : linked) {
        for (int i = 0; i < kFirst; ++i) ASSERT_TRUE(c.Receive(&x, 1, peer, 99).ok());
      }
      EXPECT_TRUE(c.Flush().ok());
    };
    RunRanks(GetParam(), size, absl::Seconds(20), body, buffered);
    for (int64_t i = 0; i < kCount; ++i) {
      float expected = Term(0, i);
      for (int rank = 1; rank < size; ++rank) expected += Term(rank, i);
      ASSERT_EQ(sums[0][i], expected) << i;
    }
    for (const std::vector<float>& sum : sums) EXPECT_TRUE(sum == sums[0]);
  }
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

TEST_P(CollectiveTest, SilentPeerTimesOutAndIsNamed) {
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

// Send buffers are reused, but not before their contents are sent.
TEST_P(CollectiveTest, SlowReceiverGetsBufferedSends) {
  RunRanks(GetParam(), 2, absl::Seconds(10), [&](Communicator& c) {
    constexpr int kSteps = 6, kMessages = 5;
    const auto value = [](int step, int message) { return step * 100.0f + message; };
    for (int step = 0; step < kSteps; ++step) {
      for (int message = 0; message < kMessages; ++message) {
        // Sizes that repeat in this step and later ones.
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

TEST_P(CollectiveTest, AllRanksGetTheSameCommunicationProfile) {
  std::vector<std::string> said(3);
  RunRanks(GetParam(), 3, absl::Seconds(10), [&](Communicator& c) {
    std::unique_ptr<Device> device = NewCpuDevice({1, 0});
    MeasureCommunicationOptions options;
    options.bytes = {64, 4096};
    options.repetitions = 3;
    options.budget = absl::Minutes(1);  // on a busy machine, too, all is measured
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

// Every message and collective takes a while, and each of its bytes.
class Slow : public Communicator {
 public:
  explicit Slow(Communicator& fast, double latency = 8e-3, double bandwidth = 1e12)
      : fast_(fast), latency_(latency), bandwidth_(bandwidth) {}
  int calls = 0;
  double seconds = 0;

  int rank() const override { return fast_.rank(); }
  int size() const override { return fast_.size(); }
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    return Wait(fast_.Send(data, bytes, peer, tag), bytes);
  }
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    return Wait(fast_.Receive(data, bytes, peer, tag), 0);
  }
  absl::Status AllReduce(DType dtype, const void* input, void* output, int64_t count,
                         const Group& group, uint64_t tag) override {
    return Wait(fast_.AllReduce(dtype, input, output, count, group, tag), 4 * count);
  }
  absl::Status AllGather(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t tag) override {
    return Wait(fast_.AllGather(input, output, bytes, group, tag), bytes);
  }
  absl::Status ReduceScatter(DType dtype, const void* input, void* output, int64_t count,
                             const Group& group, uint64_t tag) override {
    return Wait(fast_.ReduceScatter(dtype, input, output, count, group, tag), 4 * count);
  }
  absl::Status AllToAll(const void* input, void* output, int64_t bytes, const Group& group,
                        uint64_t tag) override {
    return Wait(fast_.AllToAll(input, output, bytes, group, tag), bytes);
  }
  absl::Status Broadcast(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t tag) override {
    return Wait(fast_.Broadcast(input, output, bytes, group, tag), bytes);
  }
  absl::Status Flush() override { return fast_.Flush(); }
  void Abort(const std::string& reason) override { fast_.Abort(reason); }

 private:
  absl::Status Wait(const absl::Status& status, int64_t bytes) {
    ++calls;
    const double wait = latency_ + static_cast<double>(bytes) / bandwidth_;
    seconds += wait;
    absl::SleepFor(absl::Seconds(wait));
    return status;
  }

  Communicator& fast_;
  const double latency_, bandwidth_;
};

// The first job on such a network must not spend minutes with it.
TEST(MeasureCommunication, ASlowNetworkIsMeasuredByFewMessages) {
  RunRanks(Kind::kInProcess, 2, absl::Seconds(10), [&](Communicator& fast) {
    Slow slow(fast);
    std::unique_ptr<Device> device = NewCpuDevice({1, 0});
    const auto profile = MeasureCommunication(slow, *device, {});
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->messages_size(), 4);
    EXPECT_EQ(profile->collectives_size(), 5 * 2);
    EXPECT_LT(slow.calls, 100);
    for (const auto& collective : profile->collectives()) EXPECT_GT(collective.seconds(), 7e-3);
  });
}

// 4 MiB would take four seconds each way, and each of 15 collectives as long.
TEST(MeasureCommunication, WhatTakesTooLongIsLeftOut) {
  for (const double latency : {1e-4, 8e-3}) {  // the latter is that of a slow network
    std::vector<std::string> said(3);
    RunRanks(Kind::kInProcess, 3, absl::Seconds(20), [&](Communicator& fast) {
      Slow slow(fast, latency, 1e6);
      std::unique_ptr<Device> device = NewCpuDevice({1, 0});
      const MeasureCommunicationOptions options;
      const auto profile = MeasureCommunication(slow, *device, options);
      ASSERT_TRUE(profile.ok()) << profile.status();
      said[fast.rank()] = profile->SerializeAsString();
      // It ends with what had been begun.
      EXPECT_LT(slow.seconds, absl::ToDoubleSeconds(options.budget) + 1);
      ASSERT_GE(profile->messages_size(), 2);
      EXPECT_LT(profile->messages().rbegin()->bytes(), 4 << 20);
      // No curve of one point, which would be taken for proportional.
      std::map<std::pair<int, int>, int> sizes;
      for (const auto& c : profile->collectives()) ++sizes[{c.kind(), c.ranks()}];
      EXPECT_FALSE(sizes.empty());
      for (const auto& [group, count] : sizes) EXPECT_GE(count, 2) << group.first << group.second;
    });
    EXPECT_EQ(said[0], said[1]);
    EXPECT_EQ(said[0], said[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveTest,
                         testing::Values(Kind::kInProcess, Kind::kEncrypted, Kind::kPlain,
                                         Kind::kShared, Kind::kSeveralHosts),
                         [](const auto& info) {
                           return info.param == Kind::kInProcess   ? "InProcess"
                                  : info.param == Kind::kEncrypted ? "Encrypted"
                                  : info.param == Kind::kPlain     ? "Plain"
                                  : info.param == Kind::kShared    ? "Shared"
                                                                   : "SeveralHosts";
                         });

TEST(Processes, MissingPeerIsReported) {
  auto store = NewInProcessStore();
  ProcessCommunicatorOptions options;
  options.size = 2;
  options.connect_timeout = absl::Milliseconds(300);
  auto made = ConnectProcesses(options, *store);
  EXPECT_FALSE(made.ok());
  EXPECT_NE(std::string(made.status().message()).find("rank 0 of 2"), std::string::npos);
}

// It may be writing its checkpoint shard.
TEST(Processes, PeerMayBeSilentLongerThanConnectTimeout) {
  for (const bool share_memory : {false, true}) {
    SCOPED_TRACE(share_memory);
    constexpr absl::Duration kConnect = absl::Seconds(2);
    auto store = NewInProcessStore();
    std::vector<std::unique_ptr<Communicator>> all(2);  // until both are done
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        ProcessCommunicatorOptions options;
        options.rank = rank;
        options.size = 2;
        options.connect_timeout = kConnect;
        options.timeout = absl::Seconds(60);
        options.share_memory = share_memory;
        auto made = ConnectProcesses(options, *store);
        ASSERT_TRUE(made.ok()) << made.status();
        all[rank] = *std::move(made);
        char word[] = "late";
        if (rank == 1) absl::SleepFor(kConnect * 3 / 2);
        absl::Status s =
            rank == 1 ? all[rank]->Send(word, 4, 0, 3) : all[rank]->Receive(word, 4, 1, 3);
        if (s.ok()) s = all[rank]->Flush();
        EXPECT_TRUE(s.ok()) << "rank " << rank << ": " << s;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace espalier
