#include "planner/machine/contention.h"

#include <limits>
#include <numeric>
#include <utility>

namespace espalier {
namespace {

// Searches ask for the same few sets repeatedly; this bounds the cache to about 100 MB.
constexpr size_t kMaxNumbersKept = 4 << 20;

}  // namespace

const ContentionModel::Set& ContentionModel::SetOf(const std::vector<Group>& groups) {
  key_.clear();
  for (const Group& group : groups) {
    key_.push_back(static_cast<int>(group.kind));
    key_.push_back(static_cast<int>(group.ranks->size()));
    key_.insert(key_.end(), group.ranks->begin(), group.ranks->end());
  }
  if (const auto found = sets_.find(key_); found != sets_.end()) return *found->second;
  if (numbers_kept_ + key_.size() > kMaxNumbersKept) {
    sets_.clear();
    numbers_kept_ = 0;
  }
  numbers_kept_ += key_.size();
  auto set = std::make_unique<Set>();
  std::vector<CollectiveGroup> asked;
  for (const Group& group : groups) asked.push_back({group.kind, *group.ranks});
  absl::StatusOr<std::vector<CollectiveModel>> made =
      CollectiveModel::CreateConcurrent(topology_, asked);
  if (made.ok()) {
    for (CollectiveModel& model : *made) {
      const auto same = std::find(set->models.begin(), set->models.end(), model);
      set->model_of_group.push_back(static_cast<int>(same - set->models.begin()));
      if (same == set->models.end()) set->models.push_back(std::move(model));
    }
  }
  return *sets_.emplace(key_, std::move(set)).first->second;
}

std::vector<double> ContentionModel::Collectives(const std::vector<Group>& groups) {
  std::vector<double> seconds(groups.size(), std::numeric_limits<double>::infinity());
  const Set& set = SetOf(groups);
  for (size_t g = 0; g < set.model_of_group.size(); ++g) {
    const int model = set.model_of_group[g];
    const bool alike =
        g > 0 && model == set.model_of_group[g - 1] && groups[g].bytes == groups[g - 1].bytes;
    seconds[g] = alike ? seconds[g - 1] : set.models[model].Best(groups[g].bytes).seconds;
  }
  return seconds;
}

// Messages of one round; a device takes part in one of them.
void ContentionModel::AddRound(const std::vector<Message>& messages,
                               const std::vector<int>& members,
                               std::vector<double>* seconds) const {
  if (members.size() == 1) {
    const Message& m = messages[members[0]];
    (*seconds)[members[0]] = topology_.TransferSeconds(m.from, m.to, m.bytes);
    return;
  }
  struct Crossing {
    int edge = 0;
    double bytes = 0;
    int message = 0;
  };
  std::vector<Crossing> crossings;
  for (int m : members) {
    topology_.VisitPath(messages[m].from, messages[m].to, [&](int edge) {
      crossings.push_back({edge, messages[m].bytes, m});
    });
  }
  std::sort(crossings.begin(), crossings.end(), [](const Crossing& a, const Crossing& b) {
    return std::pair(a.edge, a.bytes) < std::pair(b.edge, b.bytes);
  });
  for (size_t begin = 0, end = 0; begin < crossings.size(); begin = end) {
    const int edge = crossings[begin].edge;
    while (end < crossings.size() && crossings[end].edge == edge) ++end;
    double smaller = 0;  // bytes of all smaller messages
    for (size_t i = begin; i < end; ++i) {
      const double bytes = crossings[i].bytes;
      const double ahead = smaller + static_cast<double>(end - i) * bytes;
      smaller += bytes;
      double& longest = (*seconds)[crossings[i].message];
      longest = std::max({longest, ahead / topology_.EdgeBandwidth(edge),
                          bytes / topology_.EdgeFlowBandwidth(edge)});
    }
  }
  for (int m : members) (*seconds)[m] += topology_.Latency(messages[m].from, messages[m].to);
}

std::vector<double> ContentionModel::Messages(const std::vector<Message>& messages) const {
  RoundScheduler rounds(topology_.num_devices());
  std::vector<std::vector<int>> members;  // by round
  for (size_t m = 0; m < messages.size(); ++m) {
    const int ends[] = {messages[m].from, messages[m].to};
    const size_t round = rounds.Add(ends);
    if (round == members.size()) members.emplace_back();
    members[round].push_back(static_cast<int>(m));
  }
  std::vector<double> seconds(messages.size(), 0);
  for (const std::vector<int>& round : members) AddRound(messages, round, &seconds);
  return seconds;
}

}  // namespace espalier
