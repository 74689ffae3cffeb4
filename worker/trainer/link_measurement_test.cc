#include "worker/trainer/link_measurement.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "worker/collective/in_process_communicator.h"

namespace espalier {
namespace {

// A connection on which a message takes some time, and each of its bytes.
class Connection : public Communicator {
 public:
  // late: seconds after which the rank notices that a round trip begins.
  Connection(Communicator& fast, double latency, double bandwidth, double late)
      : fast_(fast), latency_(latency), bandwidth_(bandwidth), late_(late) {}
  double seconds = 0;  // of sending

  int rank() const override { return fast_.rank(); }
  int size() const override { return fast_.size(); }
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    const double wait = latency_ + static_cast<double>(bytes) / bandwidth_;
    seconds += wait;
    absl::SleepFor(absl::Seconds(wait));
    return fast_.Send(data, bytes, peer, tag);
  }
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    absl::Status s = fast_.Receive(data, bytes, peer, tag);
    if (received_++ % 2 == 0) absl::SleepFor(absl::Seconds(late_));
    return s;
  }
  absl::Status AllReduce(DType, const void*, void*, int64_t, const Group&, uint64_t) override {
    return absl::UnimplementedError("");
  }
  absl::Status AllGather(const void*, void*, int64_t, const Group&, uint64_t) override {
    return absl::UnimplementedError("");
  }
  absl::Status ReduceScatter(DType, const void*, void*, int64_t, const Group&, uint64_t) override {
    return absl::UnimplementedError("");
  }
  absl::Status AllToAll(const void*, void*, int64_t, const Group&, uint64_t) override {
    return absl::UnimplementedError("");
  }
  absl::Status Broadcast(const void*, void*, int64_t, const Group&, uint64_t) override {
    return absl::UnimplementedError("");
  }
  absl::Status Flush() override { return fast_.Flush(); }
  void Abort(const std::string& reason) override { fast_.Abort(reason); }

 private:
  Communicator& fast_;
  const double latency_, bandwidth_, late_;
  int received_ = 0;  // the size of a round trip and its message in turn
};

class NoRun : public TrainingRun {
 public:
  int64_t begin() const override { return 0; }
  int64_t end() const override { return 0; }
  absl::Status Emit(const v1::RunEvent&) override { return absl::OkStatus(); }
  absl::Status CheckNotStopped() const override { return absl::OkStatus(); }
};

struct Measured {
  v1::Link link;
  double seconds = 0;  // of sending
};

// late: of rank 1.
std::vector<Measured> Measure(double latency, double bandwidth, double late = 0) {
  std::vector<std::unique_ptr<Communicator>> ranks =
      NewInProcessCommunicators(2, absl::Seconds(30));
  std::vector<Measured> measured(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Connection connection(*ranks[r], latency, bandwidth, r * late);
      LinkMeasurement observer({.communicator = &connection,
                                .on_link = [&](const v1::Link& link) { measured[r].link = link; }});
      NoRun run;
      EXPECT_TRUE(observer.OnRunBegin(run).ok());
      measured[r].seconds = connection.seconds;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return measured;
}

TEST(LinkMeasurement, FindsLatencyAndBandwidth) {
  for (const Measured& one : Measure(2e-3, 1e8)) {
    EXPECT_GT(one.link.latency_seconds(), 1.9e-3);
    EXPECT_GT(one.link.bandwidth(), 1e6);
    EXPECT_LT(one.link.bandwidth(), 1.3e8);
  }
}

TEST(LinkMeasurement, ARankThatIsLateFindsNoShorterLatency) {
  for (const Measured& one : Measure(2e-3, 1e8, 10e-3)) {
    EXPECT_GT(one.link.latency_seconds(), 1.9e-3);
  }
}

// Ten messages of 4 MiB would take 40 s: every job would begin so much later.
TEST(LinkMeasurement, ASlowConnectionIsMeasuredInABoundedTime) {
  for (const Measured& one : Measure(1e-3, 1e6)) {
    EXPECT_LT(one.seconds, 2);
    EXPECT_GT(one.link.bandwidth(), 1e5);
    EXPECT_LT(one.link.bandwidth(), 1.3e6);
  }
}

}  // namespace
}  // namespace espalier
