#include "worker/collective/measure_communication.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>
#include <thread>

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
// On a network on which meeting takes longer than this, single messages of two sizes say enough,
// and hundreds would take minutes.
constexpr double kSlowSeconds = 5e-3;
constexpr int kMeetings = 3;
constexpr int64_t kWorkBytes = 256 << 10;  // fits into a core's cache
constexpr int kWorkRounds = 12;

// One collective of one size over the first `ranks` ranks; without a kind, a message.
struct Case {
  Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
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
        const bool large = bytes * n > sizes.back() * kMaxRanksAtAllSizes;
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

  // Whether the network is slow, by the ranks' shortest meeting. Equal on all ranks.
  absl::StatusOr<bool> IsSlow() {
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
    return *std::max_element(of_ranks->begin(), of_ranks->end()) > kSlowSeconds;
  }

  // Of each piece of work and its message; kRepeats at first.
  void SetRepeats(int repeats) { repeats_ = repeats; }
  int repeats() const { return repeats_; }

  // Seconds for repeats() pieces of work on the first rank while others wait, and for this rank
  // with a collective or message after each piece. As in a step, ranks wait only within operations
  // and compute right after them, so that contention between ranks of one host (caches, bandwidth,
  // core time) is included.
  struct Times {
    double alone = 0;
    double both = 0;
    double send = 0;  // of `both`, within calls of Send
  };
  absl::StatusOr<Times> Time(const Case& c) {
    Communicator::Group group(c.ranks);
    std::iota(group.begin(), group.end(), 0);
    Times times;
    if (absl::Status s = Meet(group); !s.ok()) return s;
    if (communicator_.rank() == 0) {
      absl::StatusOr<double> alone = Repeat(c, [] { return absl::OkStatus(); });
      if (!alone.ok()) return alone.status();
      times.alone = *alone;
    }
    if (absl::Status s = Meet(group); !s.ok()) return s;
    const bool is_message = c.kind == v1::CollectiveInstruction::KIND_UNSPECIFIED;
    absl::StatusOr<double> both =
        is_message ? PingPong(c, &times.send) : Repeat(c, [&] { return Run(c, group); });
    if (!both.ok()) return both.status();
    times.both = *both;
    return times;
  }

  // The maximum, over hosts, of the number of the first `ranks` ranks per core.
  absl::StatusOr<double> RanksPerCore(int ranks) {
    if (communicator_.on_device()) return 1.0;
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    // Exact in a double.
    const double host = static_cast<double>(std::hash<std::string_view>()(name) >> 12);
    absl::StatusOr<std::vector<double>> hosts =
        Gather({host, static_cast<double>(std::thread::hardware_concurrency())});
    if (!hosts.ok()) return hosts.status();
    double most = 1;
    for (int r = 0; r < ranks; ++r) {
      double alike = 0;
      for (int other = 0; other < ranks; ++other) alike += (*hosts)[2 * other] == (*hosts)[2 * r];
      most = std::max(most, alike / std::max(1.0, (*hosts)[2 * r + 1]));
    }
    return most;
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
  absl::StatusOr<double> Repeat(const Case& c, Do what) {
    absl::Status s;
    const absl::Time start = absl::Now();
    for (int i = 0; i < repeats_ && s.ok(); ++i) {
      // Stands for an operator that produces the input.
      s = Work();
      if (s.ok()) s = Write(input_, c.bytes);
      if (s.ok()) s = what();
      if (s.ok()) s = device_.Synchronize();
    }
    if (!s.ok()) return s;
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  // repeats() messages each way: one rank computes while the other waits for its message.
  absl::StatusOr<double> PingPong(const Case& c, double* sending) {
    absl::Status s;
    const int me = communicator_.rank();
    const absl::Time start = absl::Now();
    absl::Duration in_send;
    for (int i = 0; i < 2 * repeats_ && s.ok(); ++i) {
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
  int repeats_ = kRepeats;
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
  Measurement measurement(communicator, device, options.tag);
  if (absl::Status s = measurement.Prepare(options.bytes.back()); !s.ok()) return s;
  const absl::StatusOr<bool> slow = measurement.IsSlow();
  if (!slow.ok()) return slow.status();
  if (*slow) measurement.SetRepeats(1);
  const int repetitions = *slow ? 1 : options.repetitions;
  const std::vector<Case> cases =
      CasesOf(*slow && options.bytes.size() > 2
                  ? std::vector<int64_t>{options.bytes.front(), options.bytes.back()}
                  : options.bytes,
              world);
  std::vector<double> mine;  // by case, by repetition: the fields of Times
  for (const Case& c : cases) {
    for (int i = 0; i <= repetitions; ++i) {
      Measurement::Times times;
      if (communicator.rank() < c.ranks) {
        absl::StatusOr<Measurement::Times> timed = measurement.Time(c);
        if (!timed.ok()) return timed.status();
        times = *timed;
      }
      // The first repetition allocates buffers.
      if (i > 0) mine.insert(mine.end(), {times.alone, times.both, times.send});
    }
  }
  absl::StatusOr<std::vector<double>> all = measurement.Gather(mine);
  if (!all.ok()) return all.status();
  const auto of = [&](int rank, size_t c, int i) {
    const double* fields =
        all->data() + static_cast<size_t>(rank) * mine.size() + 3 * (c * repetitions + i);
    return Measurement::Times{fields[0], fields[1], fields[2]};
  };
  for (size_t c = 0; c < cases.size(); ++c) {
    const double bytes = static_cast<double>(cases[c].bytes);
    const bool is_message = cases[c].kind == v1::CollectiveInstruction::KIND_UNSPECIFIED;
    absl::StatusOr<double> share = measurement.RanksPerCore(cases[c].ranks);
    if (!share.ok()) return share.status();
    std::vector<double> added, sending;
    for (int i = 0; i < repetitions; ++i) {
      // Time of the slowest rank; ranks that share cores share their work evenly.
      Measurement::Times times = of(0, c, i);
      times.send = 0;
      for (int r = 0; r < cases[c].ranks; ++r) {
        times.both = std::max(times.both, of(r, c, i).both);
        times.send += of(r, c, i).send;
      }
      // In ping-pong only one rank computes at a time.
      const double work = times.alone * (is_message ? 2 : *share);
      added.push_back((times.both - work) /
                      (is_message ? 2 * measurement.repeats() : measurement.repeats()));
      sending.push_back(times.send / (2 * measurement.repeats()));
    }
    if (is_message) {
      // 0 marks transfers between devices, in which both ranks take part throughout; others are at
      // least 1 ns.
      const double send = communicator.on_device() ? 0 : std::max(1e-9, Median(sending));
      v1::CommunicationProfile::Message* message = profile.add_messages();
      message->set_bytes(bytes);
      message->set_send_seconds(send);
      message->set_receive_seconds(std::max(1e-9, Median(added) - send));
      continue;
    }
    v1::CommunicationProfile::Collective* collective = profile.add_collectives();
    collective->set_kind(cases[c].kind);
    collective->set_ranks(cases[c].ranks);
    collective->set_bytes(bytes);
    collective->set_seconds(std::max(1e-9, Median(added)));
  }
  return profile;
}

}  // namespace espalier
