#include "planner/plan/calibrate_communication.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/machine/communication.h"
#include "planner/simulator/cpu_contention.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;
using Instance = std::pair<std::vector<int>, double>;  // ranks, bytes of one rank's input

// The communication of one kind that an operator of a plan does on a rank, as its times report it.
struct Work {
  Collective::Kind kind = Collective::KIND_UNSPECIFIED;  // of a message: none
  bool sends = false;
  std::vector<Instance> instances;
};

// Measured and predicted seconds of one kind.
struct TransferSum {
  double measured = 0, predicted = 0;

  // Bounds on the factor by which times change. A run beyond them was disturbed.
  double Factor() const {
    constexpr double kMost = 8;
    return predicted <= 0 ? 1 : (1 + std::clamp(measured / predicted, 1 / kMost, kMost)) / 2;
  }
};

absl::Status Bad(int rank, int instruction, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("program of rank ", rank, ": instruction ", instruction, ": ", what));
}

// Names as in the ranks' times.
std::string OpOf(Collective::Kind kind) {
  return absl::AsciiStrToLower(Collective::Kind_Name(kind));
}

// By node and operator.
absl::StatusOr<std::map<std::pair<std::string, std::string>, Work>> WorkOf(
    const v1::Program& program, int rank) {
  std::map<std::pair<std::string, std::string>, Work> works;
  for (int i = 0; i < program.instructions_size(); ++i) {
    const v1::Instruction& instruction = program.instructions(i);
    int buffer = -1;
    Work* work = nullptr;
    std::vector<int> ranks;
    if (instruction.has_collective()) {
      const Collective& c = instruction.collective();
      if (c.group() < 0 || c.group() >= program.groups_size()) {
        return Bad(rank, i, absl::StrCat("group ", c.group(), " of ", program.groups_size()));
      }
      const auto& group = program.groups(c.group()).ranks();
      ranks.assign(group.begin(), group.end());
      buffer = c.input();
      work = &works[{instruction.node(), OpOf(c.kind())}];
      work->kind = c.kind();
    } else if (instruction.has_send()) {
      buffer = instruction.send().buffer();
      work = &works[{instruction.node(), "send"}];
      work->sends = true;
    } else if (instruction.has_receive()) {
      buffer = instruction.receive().buffer();
      work = &works[{instruction.node(), "receive"}];
    }
    if (work == nullptr) continue;
    if (buffer < 0 || buffer >= program.buffers_size()) {
      return Bad(rank, i, absl::StrCat("buffer ", buffer, " of ", program.buffers_size()));
    }
    const v1::TensorSpec& spec = program.buffers(buffer).spec();
    double bytes = static_cast<double>(SizeOf(FromProto(spec.dtype())));
    for (int64_t d : spec.dims()) bytes *= static_cast<double>(d);
    work->instances.emplace_back(std::move(ranks), bytes);
  }
  return works;
}

class Observer {
 public:
  explicit Observer(const CommunicationModel& model) : model_(model) {}

  // `seconds`: sum over all instances.
  void Add(int rank, const std::string& node, const std::string& op, const Work& work,
           double seconds) {
    if (work.kind == Collective::KIND_UNSPECIFIED) {
      double predicted = 0;
      for (const Instance& one : work.instances) {
        const auto message = model_.MessageSeconds(one.second);
        if (message.has_value()) predicted += work.sends ? message->send : message->receive;
      }
      if (predicted <= 0) return;
      TransferSum& sum = work.sends ? send_ : receive_;
      sum.measured += seconds;
      sum.predicted += predicted;
      if (work.sends || seconds < predicted) {
        drifts_.push_back({absl::StrCat(node, " ", op), predicted, seconds});
      }
      return;
    }
    Reported& reported = reported_[{node, op, work.instances}];
    reported.kind = work.kind;
    reported.least = reported.ranks++ == 0 ? seconds : std::min(reported.least, seconds);
  }

  // Call after all ranks have been added.
  std::vector<PredictionError> Learn(v1::CommunicationProfile* profile) {
    std::map<std::pair<int, int>, TransferSum> sums;  // by kind and number of ranks
    for (const auto& [key, reported] : reported_) {
      const auto& [node, op, instances] = key;
      // All collectives in one group, reported by every rank.
      const std::vector<int>& group = instances[0].first;
      const bool one_group = std::all_of(instances.begin(), instances.end(),
                                         [&](const Instance& i) { return i.first == group; });
      if (!one_group || reported.ranks != static_cast<int>(group.size()) || group.size() < 2)
        continue;
      double predicted = 0;
      for (const Instance& one : instances) {
        const int n = static_cast<int>(group.size());
        predicted += model_.CollectiveSeconds(reported.kind, n, one.second).value_or(0);
      }
      if (predicted <= 0) continue;
      TransferSum& sum = sums[{reported.kind, static_cast<int>(group.size())}];
      sum.measured += reported.least;
      sum.predicted += predicted;
      drifts_.push_back(
          {absl::StrCat(node, " ", op, " of ", group.size(), " ranks"), predicted, reported.least});
    }
    for (v1::CommunicationProfile::Collective& c : *profile->mutable_collectives()) {
      const auto found = sums.find({c.kind(), c.ranks()});
      if (found != sums.end()) c.set_seconds(c.seconds() * found->second.Factor());
    }
    const double sending = send_.Factor(), receiving = std::min(1.0, receive_.Factor());
    for (v1::CommunicationProfile::Message& m : *profile->mutable_messages()) {
      m.set_send_seconds(m.send_seconds() * sending);
      m.set_receive_seconds(m.receive_seconds() * receiving);
    }
    SortByError(&drifts_);
    return std::move(drifts_);
  }

 private:
  struct Reported {
    Collective::Kind kind = Collective::KIND_UNSPECIFIED;
    int ranks = 0;
    double least = 0;
  };

  const CommunicationModel& model_;
  std::map<std::tuple<std::string, std::string, std::vector<Instance>>, Reported> reported_;
  TransferSum send_, receive_;
  std::vector<PredictionError> drifts_;
};

}  // namespace

absl::StatusOr<std::vector<PredictionError>> CalibrateCommunication(
    const std::vector<v1::Program>& programs, const std::vector<std::vector<OperatorTime>>& times,
    const std::vector<v1::Device>& devices, v1::CommunicationProfile* profile) {
  if (profile->messages().empty() || CpuContention(devices).needed()) {
    return std::vector<PredictionError>();
  }
  const absl::StatusOr<CommunicationModel> model = CommunicationModel::Create(*profile);
  if (!model.ok()) return model.status();
  Observer observer(*model);
  for (size_t r = 0; r < std::min(programs.size(), times.size()); ++r) {
    auto works = WorkOf(programs[r], static_cast<int>(r));
    if (!works.ok()) return works.status();
    for (const OperatorTime& time : times[r]) {
      if (!std::isfinite(time.seconds) || time.seconds < 0) continue;
      const auto found = works->find({time.node, time.op});
      if (found == works->end()) continue;
      const Work& work = found->second;
      observer.Add(static_cast<int>(r), time.node, time.op, work,
                   time.seconds * static_cast<double>(work.instances.size()));
    }
  }
  return observer.Learn(profile);
}

}  // namespace espalier
