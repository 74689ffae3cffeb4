#include "worker/collective/measure_communication.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/program.pb.h"

namespace espalier {
namespace {

using Kind = proto::CollectiveInstruction::Kind;

constexpr Kind kKinds[] = {
    proto::CollectiveInstruction::ALL_REDUCE, proto::CollectiveInstruction::ALL_GATHER,
    proto::CollectiveInstruction::REDUCE_SCATTER, proto::CollectiveInstruction::ALL_TO_ALL,
    proto::CollectiveInstruction::BROADCAST};
constexpr int kMostRanksOfAllSizes = 4;
constexpr int kInARow = 6;
constexpr int64_t kWorkBytes = 256 << 10;  // stays in a core's cache
constexpr int kWorkRounds = 64;

// One collective of one size over the first `ranks` ranks; a message if there is no kind.
struct Case {
  Kind kind = proto::CollectiveInstruction::KIND_UNSPECIFIED;
  int ranks = 2;
  int64_t bytes = 0;
};

std::vector<Case> CasesOf(const std::vector<int64_t>& sizes, int world) {
  std::vector<int> groups;
  for (int n = 2; n < world; n = n < 4 ? n + 1 : 2 * n) groups.push_back(n);
  groups.push_back(world);
  std::vector<Case> cases;
  for (int64_t bytes : sizes) cases.push_back({.bytes = bytes});
  for (int n : groups) {
    for (Kind kind : kKinds) {
      for (int64_t bytes : sizes) {
        const bool large = bytes * n > sizes.back() * kMostRanksOfAllSizes;
        if (!large && bytes >= static_cast<int64_t>(sizeof(float)) * n) {
          cases.push_back({kind, n, bytes});
        }
      }
    }
  }
  return cases;
}

class Measurement {
 public:
  Measurement(Communicator& communicator, Device& device, uint64_t tag)
      : communicator_(communicator), device_(device), tag_(tag) {}

  // For inputs of up to `bytes` over all ranks.
  absl::Status Prepare(int64_t bytes) {
    const int64_t all = bytes * std::max(kMostRanksOfAllSizes, 2);
    if (!communicator_.on_device()) {
      host_.resize(static_cast<size_t>(bytes + all + kWorkBytes));
      input_ = host_.data();
      output_ = input_ + bytes;
      work_ = output_ + all;
      return absl::OkStatus();
    }
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        device_.Allocate(bytes + all + kWorkBytes);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    input_ = memory_->data();
    output_ = input_ + bytes;
    work_ = output_ + all;
    return absl::OkStatus();
  }

  // Seconds that each of kInARow messages or collectives adds to the work between them, on this
  // rank; of a message, its part in it. As in a step: nobody waits for each other but in them, and
  // right behind them every rank works on, beside what still has to be sent. Timed alone they seem
  // two to four times as fast (docs/benchmarks): the threads that move bytes then have the cores
  // for themselves.
  absl::StatusOr<double> Added(const Case& c) {
    Communicator::Group group(c.ranks);
    std::iota(group.begin(), group.end(), 0);
    const bool collective = c.kind != proto::CollectiveInstruction::KIND_UNSPECIFIED;
    const auto communicate = [&]() -> absl::Status {
      if (collective) return Run(c, group);
      return communicator_.rank() == 0 ? communicator_.Send(input_, c.bytes, 1, tag_)
                                       : communicator_.Receive(output_, c.bytes, 0, tag_);
    };
    // Other ranks of the host may share its cores with this one's work.
    absl::StatusOr<double> work = InARow(group, c, [] { return absl::OkStatus(); });
    if (!work.ok()) return work.status();
    absl::StatusOr<double> both = InARow(group, c, communicate);
    if (!both.ok()) return both.status();
    return std::max(0.0, *both - *work) / kInARow;
  }

  // What all ranks have, one after the other.
  absl::StatusOr<std::vector<double>> Gather(const std::vector<double>& mine) {
    const size_t world = static_cast<size_t>(communicator_.size());
    const int64_t bytes = static_cast<int64_t>(mine.size() * sizeof(double));
    Communicator::Group all(world);
    std::iota(all.begin(), all.end(), 0);
    std::vector<double> everything(mine.size() * world);
    if (!communicator_.on_device()) {
      absl::Status s = communicator_.AllGather(mine.data(), everything.data(), bytes, all, tag_);
      if (!s.ok()) return s;
      return everything;
    }
    const int64_t whole = bytes * communicator_.size();
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = device_.Allocate(bytes + whole);
    if (!memory.ok()) return memory.status();
    char* in = (*memory)->data();
    absl::Status s = device_.CopyToDevice(in, mine.data(), bytes);
    if (s.ok()) s = communicator_.AllGather(in, in + bytes, bytes, all, tag_);
    if (s.ok()) s = device_.CopyToHost(everything.data(), in + bytes, whole);
    if (!s.ok()) return s;
    return everything;
  }

 private:
  template <typename Do>
  absl::StatusOr<double> InARow(const Communicator::Group& group, const Case& c, Do what) {
    // Whoever is there first would count its waiting.
    absl::Status s = communicator_.Flush();
    if (s.ok()) s = Meet(group);
    const absl::Time start = absl::Now();
    for (int i = 0; i < kInARow && s.ok(); ++i) {
      // An operator that leaves the input behind.
      s = Work();
      if (s.ok()) s = Write(input_, c.bytes);
      if (s.ok()) s = what();
      if (s.ok()) s = device_.Synchronize();
    }
    if (!s.ok()) return s;
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  // About half a millisecond of a core.
  absl::Status Work() {
    absl::Status s;
    for (int i = 0; i < kWorkRounds && s.ok(); ++i) s = Write(work_, kWorkBytes);
    return s;
  }

  absl::Status Write(char* data, int64_t bytes) {
    if (communicator_.on_device()) {
      return device_.Fill(data, DType::kF32, bytes / static_cast<int64_t>(sizeof(float)), 1);
    }
    std::fill_n(reinterpret_cast<float*>(data), bytes / static_cast<int64_t>(sizeof(float)), 1.0f);
    return absl::OkStatus();
  }

  absl::Status Meet(const Communicator::Group& group) {
    absl::Status s = communicator_.AllReduce(DType::kF32, input_, output_, 1, group, tag_);
    if (s.ok()) s = communicator_.Flush();
    return s.ok() ? device_.Synchronize() : s;
  }

  absl::Status Run(const Case& c, const Communicator::Group& group) {
    const int64_t count = c.bytes / static_cast<int64_t>(sizeof(float)), n = c.ranks;
    switch (c.kind) {
      case proto::CollectiveInstruction::ALL_REDUCE:
        return communicator_.AllReduce(DType::kF32, input_, output_, count, group, tag_);
      case proto::CollectiveInstruction::ALL_GATHER:
        return communicator_.AllGather(input_, output_, c.bytes, group, tag_);
      case proto::CollectiveInstruction::REDUCE_SCATTER:
        return communicator_.ReduceScatter(DType::kF32, input_, output_, count / n, group, tag_);
      case proto::CollectiveInstruction::ALL_TO_ALL:
        return communicator_.AllToAll(input_, output_, count / n * 4, group, tag_);
      default:
        return communicator_.Broadcast(input_, output_, c.bytes, group, tag_);
    }
  }

  Communicator& communicator_;
  Device& device_;
  const uint64_t tag_;
  std::vector<char> host_;
  std::unique_ptr<DeviceMemory> memory_;
  char* input_ = nullptr;
  char* output_ = nullptr;
  char* work_ = nullptr;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::StatusOr<proto::CommunicationProfile> MeasureCommunication(
    Communicator& communicator, Device& device, const MeasureCommunicationOptions& options) {
  proto::CommunicationProfile profile;
  const int world = communicator.size();
  if (options.repetitions < 1 || options.repetitions > 1000 || options.bytes.empty() ||
      !std::is_sorted(options.bytes.begin(), options.bytes.end()) || options.bytes.front() < 4 ||
      std::any_of(options.bytes.begin(), options.bytes.end(), [](int64_t b) { return b % 4; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "measuring communication: ", options.bytes.size(), " sizes and ", options.repetitions,
        " repetitions; accepted: ascending multiples of 4 bytes, 1 to 1000 repetitions"));
  }
  if (world < 2) return profile;
  const std::vector<Case> cases = CasesOf(options.bytes, world);
  Measurement measurement(communicator, device, options.tag);
  if (absl::Status s = measurement.Prepare(options.bytes.back()); !s.ok()) return s;
  std::vector<double> mine;  // by case, by repetition
  for (const Case& c : cases) {
    for (int i = 0; i <= options.repetitions; ++i) {
      double seconds = 0;
      if (communicator.rank() < c.ranks) {
        absl::StatusOr<double> added = measurement.Added(c);
        if (!added.ok()) return added.status();
        seconds = *added;
      }
      if (i > 0) mine.push_back(seconds);  // the first makes buffers that are kept
    }
  }
  absl::StatusOr<std::vector<double>> all = measurement.Gather(mine);
  if (!all.ok()) return all.status();
  const auto of = [&](int rank, size_t c, int i) {
    return (*all)[static_cast<size_t>(rank) * mine.size() + c * options.repetitions + i];
  };
  for (size_t c = 0; c < cases.size(); ++c) {
    const double bytes = static_cast<double>(cases[c].bytes);
    std::vector<double> first, second, slowest;
    for (int i = 0; i < options.repetitions; ++i) {
      first.push_back(of(0, c, i));
      second.push_back(of(1, c, i));
      slowest.push_back(0);
      for (int r = 0; r < cases[c].ranks; ++r) {
        slowest.back() = std::max(slowest.back(), of(r, c, i));
      }
    }
    if (cases[c].kind == proto::CollectiveInstruction::KIND_UNSPECIFIED) {
      proto::CommunicationProfile::Message* message = profile.add_messages();
      message->set_bytes(bytes);
      // Between devices both take part from beginning to end. The least that is not that: 1 ns.
      message->set_send_seconds(communicator.on_device() ? 0 : std::max(1e-9, Median(first)));
      message->set_receive_seconds(Median(second));
      continue;
    }
    proto::CommunicationProfile::Collective* collective = profile.add_collectives();
    collective->set_kind(cases[c].kind);
    collective->set_ranks(cases[c].ranks);
    collective->set_bytes(bytes);
    collective->set_seconds(std::max(1e-9, Median(slowest)));
  }
  return profile;
}

}  // namespace espalier
