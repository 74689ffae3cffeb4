#include "worker/trainer/link_measurement.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/collective/measure_communication.h"

namespace espalier {
namespace {

constexpr uint64_t kLinkTag = ~uint64_t{0};  // not used by the planner
constexpr int64_t kSmallBytes = 8;
constexpr int64_t kFirstLargeBytes = 64 << 10, kGrowth = 8, kLargestBytes = 4 << 20;
constexpr int kRounds = 5;
// No round is begun that is expected to end later.
constexpr absl::Duration kBudget = absl::Seconds(1);

struct Round {
  int64_t bytes = 0;
  double seconds = 0;  // the best
};

// Round trips between ranks 0 and 1, of growing sizes: of each the best of several. Rank 0 decides
// how many there are, and says the size of each before it. It takes the times, too, and sends them
// at the end: when rank 1 notices that a round trip has begun, the first message may have arrived.
class RoundTrips {
 public:
  explicit RoundTrips(Communicator& communicator)
      : communicator_(communicator), peer_(1 - communicator.rank()) {}

  // The least size and the greatest one for which there was time.
  absl::StatusOr<std::pair<Round, Round>> Measure() {
    const bool leads = communicator_.rank() == 0;
    if (absl::Status s = leads ? Lead() : Follow(); !s.ok()) return s;
    std::array<Round, 2> ends;
    if (leads) {
      ends = {Round{rounds_.begin()->first, rounds_.begin()->second},
              Round{rounds_.rbegin()->first, rounds_.rbegin()->second}};
    }
    absl::Status s = leads ? communicator_.Send(ends.data(), sizeof(ends), peer_, kLinkTag)
                           : communicator_.Receive(ends.data(), sizeof(ends), peer_, kLinkTag);
    if (s.ok()) s = communicator_.Flush();
    if (!s.ok()) return s;
    return std::pair(ends[0], ends[1]);
  }

 private:
  absl::Status Lead() {
    const absl::Time end = absl::Now() + kBudget;
    absl::Status s = Once(kSmallBytes);
    if (s.ok()) s = Again(kSmallBytes, end);
    int64_t bytes = kFirstLargeBytes;
    if (s.ok()) s = Once(bytes);
    while (s.ok() && bytes < kLargestBytes &&
           absl::Now() + absl::Seconds(kGrowth * rounds_[bytes]) <= end) {
      bytes *= kGrowth;
      s = Once(bytes);
    }
    if (s.ok()) s = Again(bytes, end);
    return s.ok() ? Say(0) : s;
  }

  absl::Status Follow() {
    while (true) {
      int64_t bytes = 0;
      absl::Status s = communicator_.Receive(&bytes, sizeof(bytes), peer_, kLinkTag);
      if (!s.ok() || bytes == 0) return s;
      if (bytes < 0 || bytes > kLargestBytes) {
        return absl::InternalError(absl::StrCat("rank 0 begins a round trip of ", bytes,
                                                " bytes; expected 1 to ", kLargestBytes));
      }
      if (s = RoundTrip(bytes); !s.ok()) return s;
    }
  }

  absl::Status Again(int64_t bytes, absl::Time end) {
    absl::Status s;
    for (int i = 1; i < kRounds && s.ok(); ++i) {
      if (absl::Now() + absl::Seconds(rounds_[bytes]) > end) break;
      s = Once(bytes);
    }
    return s;
  }

  absl::Status Once(int64_t bytes) {
    if (absl::Status s = Say(bytes); !s.ok()) return s;
    const absl::Time start = absl::Now();
    if (absl::Status s = RoundTrip(bytes); !s.ok()) return s;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    const auto [best, is_new] = rounds_.emplace(bytes, seconds);
    best->second = std::min(best->second, seconds);
    return absl::OkStatus();
  }

  // 0: the end.
  absl::Status Say(int64_t bytes) {
    absl::Status s = communicator_.Send(&bytes, sizeof(bytes), peer_, kLinkTag);
    return s.ok() ? communicator_.Flush() : s;
  }

  absl::Status RoundTrip(int64_t bytes) {
    message_.resize(std::max(message_.size(), static_cast<size_t>(bytes)));
    absl::Status s;
    for (int turn = 0; turn < 2 && s.ok(); ++turn) {
      s = turn == communicator_.rank()
              ? communicator_.Send(message_.data(), bytes, peer_, kLinkTag)
              : communicator_.Receive(message_.data(), bytes, peer_, kLinkTag);
    }
    return s.ok() ? communicator_.Flush() : s;
  }

  Communicator& communicator_;
  const int peer_;
  std::vector<char> message_;
  std::map<int64_t, double> rounds_;  // seconds by bytes; of rank 0
};

}  // namespace

LinkMeasurement::LinkMeasurement(LinkMeasurementOptions options) : options_(std::move(options)) {}

absl::Status LinkMeasurement::OnRunBegin(TrainingRun& run) {
  if (absl::Status s = MeasureLink(); !s.ok()) return s;
  return options_.profile ? ReportCommunication(run) : absl::OkStatus();
}

// Ping-pong between ranks 0 and 1, which gives the planner's link model latency and bandwidth.
absl::Status LinkMeasurement::MeasureLink() {
  Communicator& communicator = *options_.communicator;
  if (communicator.rank() > 1 || communicator.on_device()) return absl::OkStatus();
  const absl::StatusOr<std::pair<Round, Round>> trips = RoundTrips(communicator).Measure();
  if (!trips.ok()) return trips.status();
  const auto& [small, large] = *trips;
  v1::Link link;
  link.set_latency_seconds(small.seconds / 2);
  link.set_bandwidth(2.0 * static_cast<double>(large.bytes) /
                     std::max(1e-9, large.seconds - small.seconds));
  options_.on_link(link);
  return absl::OkStatus();
}

absl::Status LinkMeasurement::ReportCommunication(TrainingRun& run) {
  absl::StatusOr<v1::CommunicationProfile> profile =
      MeasureCommunication(*options_.communicator, *options_.device, {.tag = kLinkTag});
  if (!profile.ok()) return profile.status();
  if (options_.communicator->rank() != 0) return absl::OkStatus();
  v1::RunEvent event;
  *event.mutable_communication() = *std::move(profile);
  return run.Emit(event);
}

}  // namespace espalier
