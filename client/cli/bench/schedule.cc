#include "client/cli/bench/schedule.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

// Threads that run arrived requests in order; grows up to the highest concurrency needed.
class RequestThreads {
 public:
  RequestThreads(int64_t most, const std::function<void(int64_t)>& work)
      : most_(most), work_(work) {}

  // Admits one more request; starts a thread if none is idle, up to the limit.
  absl::Status Arrive() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++arrived_;
    if (arrived_ - taken_ > idle_ && static_cast<int64_t>(threads_.size()) < most_) {
      try {
        threads_.emplace_back([this] { Run(); });
        ++idle_;
      } catch (const std::system_error& error) {
        if (threads_.empty()) {
          return absl::ResourceExhaustedError(
              absl::StrCat("no thread can be started: ", error.what()));
        }
        most_ = static_cast<int64_t>(threads_.size());
      }
    }
    wake_.notify_one();
    return absl::OkStatus();
  }

  // Waits for all admitted requests. Returns the highest concurrency seen.
  int64_t Finish() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    return max_concurrent_;
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return closed_ || taken_ < arrived_; });
      if (taken_ == arrived_) return;
      const int64_t i = taken_++;
      --idle_;
      max_concurrent_ = std::max(max_concurrent_, ++running_);
      lock.unlock();
      work_(i);
      lock.lock();
      --running_;
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  int64_t most_;
  const std::function<void(int64_t)>& work_;
  std::vector<std::thread> threads_;
  int64_t arrived_ = 0, taken_ = 0;  // requests
  int64_t idle_ = 0, running_ = 0;   // threads
  int64_t max_concurrent_ = 0;
  bool closed_ = false;
};

}  // namespace

std::vector<double> Arrivals(int64_t count, double rate, double burstiness, uint64_t seed) {
  std::vector<double> arrivals(static_cast<size_t>(count), 0.0);
  if (rate <= 0) return arrivals;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  double at = 0;
  for (double& arrival : arrivals) {
    arrival = at;
    at += gap(random);
  }
  return arrivals;
}

absl::StatusOr<ScheduleResult> RunSchedule(const std::vector<double>& arrivals, int64_t most,
                                           const std::function<double()>& seconds,
                                           const std::function<void(int64_t, double)>& work) {
  const double start = seconds();
  const std::function<void(int64_t)> one = [&](int64_t i) {
    work(i, start + arrivals[static_cast<size_t>(i)]);
  };
  RequestThreads threads(most, one);
  absl::Status status;
  for (size_t i = 0; status.ok() && i < arrivals.size(); ++i) {
    // Immediate arrivals do not read the clock.
    const double wait = arrivals[i] > 0 ? start + arrivals[i] - seconds() : 0;
    if (wait > 0) absl::SleepFor(absl::Seconds(wait));
    status = threads.Arrive();
  }
  ScheduleResult result;
  result.max_concurrent = threads.Finish();
  result.seconds = seconds() - start;
  if (!status.ok()) return status;
  return result;
}

}  // namespace espalier
