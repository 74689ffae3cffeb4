#include "planner/machine/communication.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner/machine/collectives.h"
#include "planner/machine/rates.h"

namespace espalier {
namespace {

constexpr int kMaxEntries = 100000;
// Ranks of a made-up group: its ring only serves as a shape to fit.
constexpr int kMaxFittedRanks = 1024;

bool IsAmount(double value) { return value >= 0 && std::isfinite(value); }

absl::Status BadListEntry(const char* list, int index, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("communication profile: ", list, "[", index, "]: ", what));
}

absl::Status AddTo(std::vector<std::pair<double, double>>* curve, double bytes, double seconds,
                   const char* list, int index) {
  if (!IsAmount(bytes) || !IsAmount(seconds) || seconds > kMaxTaskSeconds) {
    return BadListEntry(
        list, index,
        absl::StrCat("bytes ", bytes, ", seconds ", seconds,
                     "; both must be 0 or more and finite, and seconds at most ", kMaxTaskSeconds));
  }
  const auto at = std::lower_bound(
      curve->begin(), curve->end(), bytes,
      [](const std::pair<double, double>& point, double b) { return point.first < b; });
  if (at != curve->end() && at->first == bytes) {
    return BadListEntry(list, index,
                        absl::StrCat(bytes, " bytes are there twice; each size must be once"));
  }
  curve->insert(at, {bytes, seconds});
  return absl::OkStatus();
}

// Makes times monotonic in the bytes: a smaller size that took longer was disturbed.
void MakeMonotonic(std::vector<std::pair<double, double>>* curve) {
  for (size_t i = curve->size(); i-- > 1;) {
    (*curve)[i - 1].second = std::min((*curve)[i - 1].second, (*curve)[i].second);
  }
}

}  // namespace

double CommunicationModel::At(const Curve& curve, double bytes) {
  if (bytes <= curve.front().first) return curve.front().second;
  if (curve.size() == 1) return curve.front().second * bytes / std::max(curve.front().first, 1.0);
  auto right = std::lower_bound(
      curve.begin(), curve.end(), bytes,
      [](const std::pair<double, double>& point, double b) { return point.first < b; });
  const bool beyond = right == curve.end();
  if (beyond) --right;
  const auto left = right - 1;
  double slope = (right->second - left->second) / (right->first - left->first);
  if (beyond) slope = std::max(slope, 0.0);
  return left->second + slope * (bytes - left->first);
}

absl::StatusOr<CommunicationModel> CommunicationModel::Create(
    const v1::CommunicationProfile& profile) {
  CommunicationModel model;
  if (profile.messages_size() > kMaxEntries || profile.collectives_size() > kMaxEntries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "communication profile: ", profile.messages_size(), " messages and ",
        profile.collectives_size(), " collectives; at most ", kMaxEntries, " of each"));
  }
  for (int i = 0; i < profile.messages_size(); ++i) {
    const v1::CommunicationProfile::Message& m = profile.messages(i);
    absl::Status s = AddTo(&model.send_, m.bytes(), m.send_seconds(), "messages", i);
    if (s.ok()) s = AddTo(&model.receive_, m.bytes(), m.receive_seconds(), "messages", i);
    if (!s.ok()) return s;
  }
  for (int i = 0; i < profile.collectives_size(); ++i) {
    const v1::CommunicationProfile::Collective& c = profile.collectives(i);
    if (c.kind() < v1::CollectiveInstruction::ALL_REDUCE ||
        c.kind() > v1::CollectiveInstruction::BROADCAST) {
      return BadListEntry("collectives", i,
                          absl::StrCat("kind is ", c.kind(), "; accepted: 1 to 5"));
    }
    if (c.ranks() < 2 || c.ranks() > Topology::kMaxDevices) {
      return BadListEntry(
          "collectives", i,
          absl::StrCat("ranks is ", c.ranks(), "; accepted: 2 to ", Topology::kMaxDevices));
    }
    Group& group = model.groups_[static_cast<Kind>(c.kind())][c.ranks()];
    if (absl::Status s = AddTo(&group.curve, c.bytes(), c.seconds(), "collectives", i); !s.ok()) {
      return s;
    }
  }
  MakeMonotonic(&model.send_);
  MakeMonotonic(&model.receive_);
  v1::Link shape;
  shape.set_latency_seconds(1e-5);
  shape.set_bandwidth(1e9);
  for (auto& [kind, groups] : model.groups_) {
    for (auto& [ranks, group] : groups) {
      MakeMonotonic(&group.curve);
      group.link = shape;
      if (ranks > kMaxFittedRanks) continue;
      absl::StatusOr<Topology> uniform = Topology::Uniform(ranks, shape);
      if (!uniform.ok()) return uniform.status();
      std::vector<int> all;
      for (int r = 0; r < ranks; ++r) all.push_back(r);
      absl::StatusOr<CollectiveModel> ring = CollectiveModel::Create(*uniform, kind, all);
      if (!ring.ok()) return ring.status();
      std::vector<CollectiveSample> samples;
      for (const auto& [bytes, seconds] : group.curve) {
        if (seconds > 0) samples.push_back({bytes, seconds});
      }
      if (samples.empty()) continue;
      absl::StatusOr<CollectiveFit> fit = FitCollective(*ring, CollectiveAlgorithm::kRing, samples);
      if (!fit.ok()) return fit.status();
      group.link.set_latency_seconds(shape.latency_seconds() * fit->latency_factor);
      group.link.set_bandwidth(shape.bandwidth() / std::max(fit->bandwidth_factor, 1e-9));
    }
  }
  return model;
}

std::optional<CommunicationModel::Message> CommunicationModel::MessageSeconds(double bytes) const {
  if (send_.empty()) return std::nullopt;
  return Message{At(send_, bytes), At(receive_, bytes)};
}

std::optional<double> CommunicationModel::CollectiveSeconds(Kind kind, int ranks,
                                                            double bytes) const {
  const auto groups = groups_.find(kind);
  if (groups == groups_.end()) return std::nullopt;
  auto group = groups->second.upper_bound(ranks);
  if (group != groups->second.begin()) --group;  // the next smaller one, if there is one
  if (group->first == ranks) return At(group->second.curve, bytes);
  return espalier::CollectiveSeconds(group->second.link, kind, ranks, bytes);
}

}  // namespace espalier
