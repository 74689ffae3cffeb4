#include "worker/trainer/link_measurement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "worker/collective/measure_communication.h"

namespace espalier {
namespace {

constexpr uint64_t kLinkTag = ~uint64_t{0};  // not used by the planner
constexpr int64_t kLinkBytes = 4 << 20;

// Returns the best of five round trips between ranks 0 and 1.
absl::StatusOr<double> RoundTrip(Communicator& communicator, std::vector<char>& message,
                                 int64_t bytes) {
  const int rank = communicator.rank();
  const int peer = 1 - rank;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const absl::Time start = absl::Now();
    absl::Status s;
    for (int turn = 0; turn < 2 && s.ok(); ++turn) {
      s = turn == rank ? communicator.Send(message.data(), bytes, peer, kLinkTag)
                       : communicator.Receive(message.data(), bytes, peer, kLinkTag);
    }
    if (s.ok()) s = communicator.Flush();
    if (!s.ok()) return s;
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return best;
}

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
  std::vector<char> message(kLinkBytes);
  absl::StatusOr<double> small = RoundTrip(communicator, message, 8);
  if (!small.ok()) return small.status();
  absl::StatusOr<double> large = RoundTrip(communicator, message, kLinkBytes);
  if (!large.ok()) return large.status();
  v1::Link link;
  link.set_latency_seconds(*small / 2);
  link.set_bandwidth(2.0 * kLinkBytes / std::max(1e-9, *large - *small));
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
