#include "worker/collective/measure_communication.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "espalier/v1/program.pb.h"

namespace espalier {
namespace {

using Kind = v1::CollectiveInstruction::Kind;

constexpr Kind kKinds[] = {
    v1::CollectiveInstruction::ALL_REDUCE, v1::CollectiveInstruction::ALL_GATHER,
    v1::CollectiveInstruction::REDUCE_SCATTER, v1::CollectiveInstruction::ALL_TO_ALL,
    v1::CollectiveInstruction::BROADCAST};
constexpr int kMaxRanksAtAllSizes = 4;
constexpr int kRepeats = 6;
// On a network on which meeting takes longer than this, single messages say enough, and hundreds
// would take minutes.
constexpr double kSlowSeconds = 5e-3;
constexpr int kMeetings = 3;
constexpr int64_t kWorkBytes = 256 << 10;  // fits into a core's cache
constexpr int kWorkRounds = 12;
constexpr double kWorkSeconds = 2e-4;       // of kWorkRounds, and of an input of a few MiB, about
constexpr double kProportional = 32 << 10;  // bytes from which a message's time grows with its size

// One collective of one size over the first `ranks` ranks; without a kind, a message.
struct Case {
  Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
  int ranks = 2;
  int64_t bytes = 0;
};

// How often one case is measured.
struct Effort {
  int repeats = kRepeats;  // of each piece of work and its message
  int repetitions = 3;     // that count
  bool warm_up = true;     // one more before them, which allocates buffers
};

// The messages, in ascending order, then the collectives: those of all ranks first, which matter
// most if there is no time for all.
std::vector<Case> CasesOf(const std::vector<int64_t>& sizes, int world) {
  std::vector<int> groups = {world};
  for (int n = 2; n < world; n = n < 4 ? n + 1 : 2 * n) groups.push_back(n);
  std::vector<Case> cases;
  for (int64_t bytes : sizes) cases.push_back({.bytes = bytes});
  for (int n : groups) {
    for (Kind kind : kKinds) {
      for (int64_t bytes : sizes) {
        const bool large = bytes * n > sizes.back() * kMaxRanksAtAllSizes;
        if (!large && bytes >= static_cast<int64_t>(sizeof(float)) * n) {
          cases.push_back({kind, n, bytes});
        }
      }
    }
  }
  return cases;
}

bool IsMessage(const Case& c) { return c.kind == v1::CollectiveInstruction::KIND_UNSPECIFIED; }

class Measurement {
 public:
  Measurement(Communicator& communicator, Device& device, uint64_t tag)
      : communicator_(communicator), device_(device), tag_(tag) {}

  // Buffers for inputs of up to `bytes` on all ranks.
  absl::Status Prepare(int64_t bytes) {
    const int64_t all = bytes * std::max(kMaxRanksAtAllSizes, 2);
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

  // Seconds of the ranks' shortest meeting. Equal on all ranks.
  absl::StatusOr<double> MeetingSeconds() {
    Communicator::Group all(static_cast<size_t>(communicator_.size()));
    std::iota(all.begin(), all.end(), 0);
    double shortest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kMeetings; ++i) {
      const absl::Time start = absl::Now();
      if (absl::Status s = Meet(all); !s.ok()) return s;
      shortest = std::min(shortest, absl::ToDoubleSeconds(absl::Now() - start));
    }
    const absl::StatusOr<std::vector<double>> of_ranks = Gather({shortest});
    if (!of_ranks.ok()) return of_ranks.status();
    return *std::max_element(of_ranks->begin(), of_ranks->end());
  }

  // Seconds for `repeats` pieces of work on the first rank while others wait, and for this rank
  // with a collective or message after each piece. As in a step, ranks wait only within operations
  // and compute right after them, so that contention between ranks of one host (caches, bandwidth,
  // core time) is included.
  struct Times {
    double alone = 0;
    double both = 0;
    double send = 0;  // of `both`, within calls of Send
  };
  absl::StatusOr<Times> Time(const Case& c, int repeats) {
    Communicator::Group group(c.ranks);
    std::iota(group.begin(), group.end(), 0);
    Times times;
    if (absl::Status s = Meet(group); !s.ok()) return s;
    if (communicator_.rank() == 0) {
      absl::StatusOr<double> alone = Repeat(c, repeats, [] { return absl::OkStatus(); });
      if (!alone.ok()) return alone.status();
      times.alone = *alone;
    }
    if (absl::Status s = Meet(group); !s.ok()) return s;
    absl::StatusOr<double> both = IsMessage(c) ? PingPong(c, repeats, &times.send)
                                               : Repeat(c, repeats, [&] { return Run(c, group); });
    if (!both.ok()) return both.status();
    times.both = *both;
    return times;
  }

  // By number of the first ranks: the maximum, over hosts, of their number per core.
  absl::StatusOr<std::vector<double>> RanksPerCore() {
    const int world = communicator_.size();
    std::vector<double> per_core(static_cast<size_t>(world) + 1, 1);
    if (communicator_.on_device()) return per_core;
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    // Exact in a double.
    const double host = static_cast<double>(std::hash<std::string_view>()(name) >> 12);
    absl::StatusOr<std::vector<double>> hosts =
        Gather({host, static_cast<double>(std::thread::hardware_concurrency())});
    if (!hosts.ok()) return hosts.status();
    for (int ranks = 1; ranks <= world; ++ranks) {
      for (int r = 0; r < ranks; ++r) {
        double alike = 0;
        for (int other = 0; other < ranks; ++other) alike += (*hosts)[2 * other] == (*hosts)[2 * r];
        per_core[ranks] = std::max(per_core[ranks], alike / std::max(1.0, (*hosts)[2 * r + 1]));
      }
    }
    return per_core;
  }

  // All-gathers values in rank order.
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
  absl::StatusOr<double> Repeat(const Case& c, int repeats, Do what) {
    absl::Status s;
    const absl::Time start = absl::Now();
    for (int i = 0; i < repeats && s.ok(); ++i) {
      // Stands for an operator that produces the input.
      s = Work();
      if (s.ok()) s = Write(input_, c.bytes);
      if (s.ok()) s = what();
      if (s.ok()) s = device_.Synchronize();
    }
    if (!s.ok()) return s;
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  // `repeats` messages each way: one rank computes while the other waits for its message.
  absl::StatusOr<double> PingPong(const Case& c, int repeats, double* sending) {
    absl::Status s;
    const int me = communicator_.rank();
    const absl::Time start = absl::Now();
    absl::Duration in_send;
    for (int i = 0; i < 2 * repeats && s.ok(); ++i) {
      if (i % 2 != me) {
        s = communicator_.Receive(output_, c.bytes, 1 - me, tag_);
        if (s.ok()) s = device_.Synchronize();
        continue;
      }
      s = Work();
      if (s.ok()) s = Write(input_, c.bytes);
      if (s.ok()) s = device_.Synchronize();
      const absl::Time before = absl::Now();
      if (s.ok()) s = communicator_.Send(input_, c.bytes, 1 - me, tag_);
      if (s.ok()) s = device_.Synchronize();
      in_send += absl::Now() - before;
    }
    if (!s.ok()) return s;
    *sending = absl::ToDoubleSeconds(in_send);
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  // About 0.1 ms on one core, as operators of small models.
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

  // Otherwise the first rank to arrive would count its waiting.
  absl::Status Meet(const Communicator::Group& group) {
    absl::Status s = communicator_.Flush();
    if (!s.ok()) return s;
    s = communicator_.AllReduce(DType::kF32, input_, output_, 1, group, tag_);
    if (s.ok()) s = communicator_.Flush();
    return s.ok() ? device_.Synchronize() : s;
  }

  absl::Status Run(const Case& c, const Communicator::Group& group) {
    const int64_t count = c.bytes / static_cast<int64_t>(sizeof(float)), n = c.ranks;
    switch (c.kind) {
      case v1::CollectiveInstruction::ALL_REDUCE:
        return communicator_.AllReduce(DType::kF32, input_, output_, count, group, tag_);
      case v1::CollectiveInstruction::ALL_GATHER:
        return communicator_.AllGather(input_, output_, c.bytes, group, tag_);
      case v1::CollectiveInstruction::REDUCE_SCATTER:
        return communicator_.ReduceScatter(DType::kF32, input_, output_, count / n, group, tag_);
      case v1::CollectiveInstruction::ALL_TO_ALL:
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

// Chooses what is measured, and how often, so that all of it ends within the budget. What it
// decides by is equal on all ranks.
class Schedule {
 public:
  Schedule(double budget, double meeting, int repetitions)
      : budget_(budget), meeting_(meeting), full_{kRepeats, repetitions, true} {}

  bool slow() const { return meeting_ > kSlowSeconds; }

  // Nothing: there is no time for this case.
  std::optional<Effort> For(const Case& c) const {
    const std::optional<double> expected = Expected(c);
    if (!expected.has_value()) return std::nullopt;
    const double left = budget_ - elapsed_;
    const Effort least{1, 1, false};
    for (const Effort& effort : {full_, Effort{1, full_.repetitions, true}}) {
      // Later cases are to have time, too.
      if (!slow() && Seconds(c, effort, *expected) <= left / 4) return effort;
    }
    if (Seconds(c, least, *expected) <= left / 2) return least;
    return std::nullopt;
  }

  // `seconds`: of one operation of the case; `elapsed`: since the beginning.
  void Measured(const Case& c, double seconds, double elapsed) {
    elapsed_ = elapsed;
    if (IsMessage(c)) messages_[c.bytes] = seconds;
  }

  int64_t largest_message() const { return messages_.empty() ? 0 : messages_.rbegin()->first; }

 private:
  // Of one operation, if smaller ones let it be foreseen.
  std::optional<double> Expected(const Case& c) const {
    if (!IsMessage(c)) {
      const auto message = messages_.find(c.bytes);
      if (message == messages_.end()) return std::nullopt;
      return message->second * std::max(2, c.ranks - 1);
    }
    if (messages_.empty()) return meeting_;
    const auto& [bytes, seconds] = *messages_.rbegin();
    const double before = std::max(static_cast<double>(bytes), kProportional);
    return seconds * std::max(1.0, static_cast<double>(c.bytes) / before);
  }

  double Seconds(const Case& c, const Effort& effort, double expected) const {
    const int operations = IsMessage(c) ? 2 : 1;
    return (effort.repetitions + effort.warm_up) *
           (2 * meeting_ + effort.repeats * (operations * expected + 2 * kWorkSeconds));
  }

  const double budget_, meeting_;
  const Effort full_;
  double elapsed_ = 0;
  std::map<int64_t, double> messages_;  // seconds by bytes
};

// Removes what was measured at one size only, of several: nothing can be foreseen by it, and the
// planner knows the connections' latency and bandwidth.
void RemoveSingleSizes(const std::vector<Case>& cases, v1::CommunicationProfile* profile) {
  const auto planned = [&](Kind kind, int ranks) {
    return std::count_if(cases.begin(), cases.end(), [&](const Case& c) {
      return c.kind == kind && (IsMessage(c) || c.ranks == ranks);
    });
  };
  if (profile->messages_size() == 1 && planned(v1::CollectiveInstruction::KIND_UNSPECIFIED, 2) > 1)
    profile->clear_messages();
  std::map<std::pair<int, int>, int> sizes;
  for (const auto& c : profile->collectives()) ++sizes[{c.kind(), c.ranks()}];
  auto* const collectives = profile->mutable_collectives();
  collectives->erase(std::remove_if(collectives->begin(), collectives->end(),
                                    [&](const v1::CommunicationProfile::Collective& c) {
                                      return sizes[{c.kind(), c.ranks()}] == 1 &&
                                             planned(static_cast<Kind>(c.kind()), c.ranks()) > 1;
                                    }),
                     collectives->end());
}

}  // namespace

absl::StatusOr<v1::CommunicationProfile> MeasureCommunication(
    Communicator& communicator, Device& device, const MeasureCommunicationOptions& options) {
  v1::CommunicationProfile profile;
  const int world = communicator.size();
  if (options.repetitions < 1 || options.repetitions > 1000 || options.bytes.empty() ||
      !std::is_sorted(options.bytes.begin(), options.bytes.end()) || options.bytes.front() < 4 ||
      std::any_of(options.bytes.begin(), options.bytes.end(), [](int64_t b) { return b % 4; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "measuring communication: ", options.bytes.size(), " sizes and ", options.repetitions,
        " repetitions; accepted: ascending multiples of 4 bytes, 1 to 1000 repetitions"));
  }
  if (world < 2) return profile;
  const absl::Time begin = absl::Now();
  Measurement measurement(communicator, device, options.tag);
  if (absl::Status s = measurement.Prepare(options.bytes.back()); !s.ok()) return s;
  const absl::StatusOr<double> meeting = measurement.MeetingSeconds();
  if (!meeting.ok()) return meeting.status();
  const absl::StatusOr<std::vector<double>> ranks_per_core = measurement.RanksPerCore();
  if (!ranks_per_core.ok()) return ranks_per_core.status();
  Schedule schedule(absl::ToDoubleSeconds(options.budget), *meeting, options.repetitions);
  const std::vector<Case> cases = CasesOf(options.bytes, world);
  for (const Case& c : cases) {
    const bool is_message = IsMessage(c);
    // The least and the greatest size say enough of a slow network.
    const bool between = c.bytes != options.bytes.front() && c.bytes != schedule.largest_message();
    if (schedule.slow() && !is_message && between) continue;
    const std::optional<Effort> effort = schedule.For(c);
    if (!effort.has_value()) continue;
    std::vector<double> mine;  // by repetition: the fields of Times
    for (int i = effort->warm_up ? -1 : 0; i < effort->repetitions; ++i) {
      Measurement::Times times;
      if (communicator.rank() < c.ranks) {
        absl::StatusOr<Measurement::Times> timed = measurement.Time(c, effort->repeats);
        if (!timed.ok()) return timed.status();
        times = *timed;
      }
      if (i >= 0) mine.insert(mine.end(), {times.alone, times.both, times.send});
    }
    mine.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    absl::StatusOr<std::vector<double>> all = measurement.Gather(mine);
    if (!all.ok()) return all.status();
    const auto of = [&](int rank, int i) {
      const double* fields = all->data() + static_cast<size_t>(rank) * mine.size() + 3 * i;
      return Measurement::Times{fields[0], fields[1], fields[2]};
    };
    std::vector<double> added, sending;
    for (int i = 0; i < effort->repetitions; ++i) {
      // Time of the slowest rank; ranks that share cores share their work evenly.
      Measurement::Times times = of(0, i);
      times.send = 0;
      for (int r = 0; r < c.ranks; ++r) {
        times.both = std::max(times.both, of(r, i).both);
        times.send += of(r, i).send;
      }
      // In ping-pong only one rank computes at a time.
      const double work = times.alone * (is_message ? 2 : (*ranks_per_core)[c.ranks]);
      added.push_back((times.both - work) / (is_message ? 2 * effort->repeats : effort->repeats));
      sending.push_back(times.send / (2 * effort->repeats));
    }
    double elapsed = 0;
    for (int r = 0; r < world; ++r) {
      elapsed = std::max(elapsed, (*all)[(static_cast<size_t>(r) + 1) * mine.size() - 1]);
    }
    const double seconds = std::max(1e-9, Median(added));
    schedule.Measured(c, seconds, elapsed);
    if (is_message) {
      // 0 marks transfers between devices, in which both ranks take part throughout; others are at
      // least 1 ns.
      const double send = communicator.on_device() ? 0 : std::max(1e-9, Median(sending));
      v1::CommunicationProfile::Message* message = profile.add_messages();
      message->set_bytes(static_cast<double>(c.bytes));
      message->set_send_seconds(send);
      message->set_receive_seconds(std::max(1e-9, Median(added) - send));
      continue;
    }
    v1::CommunicationProfile::Collective* collective = profile.add_collectives();
    collective->set_kind(c.kind);
    collective->set_ranks(c.ranks);
    collective->set_bytes(static_cast<double>(c.bytes));
    collective->set_seconds(seconds);
  }
  RemoveSingleSizes(cases, &profile);
  return profile;
}

}  // namespace espalier
