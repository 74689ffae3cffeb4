#include "planner/serving/place_serving.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/lowering/replicate_kv_heads.h"
#include "planner/machine/rates.h"
#include "planner/report/format.h"
#include "planner/serving/placement_latency.h"

namespace espalier {
namespace {

// Tries every number of stages up to this one, then doublings: one more stage adds one message and
// saves a smaller part of the memory.
constexpr int kMaxStagesEach = 8;

absl::Status CheckProblem(const ServingProblem& problem) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", what...));
  };
  if (problem.models.empty()) return wrong("there is no model");
  if (problem.machine.topology != nullptr) {
    return wrong("workers' links are taken from 'link' and measurements; there is a topology");
  }
  if (!problem.own.has_value() && problem.machine.devices.empty()) {
    return wrong("there is no worker, and the coordinator's process may not be used");
  }
  if (!(problem.remote_seconds >= 0) || !(problem.tokens_per_round > 0)) {
    return wrong("remote_seconds is ", problem.remote_seconds, " and tokens_per_round ",
                 problem.tokens_per_round, "; accepted: at least 0, and above 0");
  }
  for (const PlacedModel& model : problem.models) {
    if (model.full == nullptr || model.step == nullptr || !(model.steps > 0)) {
      return wrong("model '", model.name, "' has no graphs, or ", model.steps, " steps");
    }
    if (model.concurrent.size() != problem.models[0].concurrent.size()) {
      return wrong("model '", model.name, "' has steps of ", model.concurrent.size(), " shares, '",
                   problem.models[0].name, "' of ", problem.models[0].concurrent.size());
    }
  }
  return absl::OkStatus();
}

// One way to split one model, and the memory that each part needs.
struct Cut {
  ServingDegrees degrees;
  bool own = false;
  MemoryNeeds needs;

  // Of the rank that needs most; required of every device.
  int64_t most() const { return *std::max_element(needs.bytes.begin(), needs.bytes.end()); }
};

class PlacementSearch {
 public:
  explicit PlacementSearch(const ServingProblem& problem) : problem_(problem) {
    const std::vector<v1::Device>& devices = problem.machine.devices;
    order_.resize(devices.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto rank = [&](int d) {
      const v1::Device device = WithDefaults(devices[static_cast<size_t>(d)]);
      return std::tuple(device.kind() == v1::Device::CUDA ? 0 : 1, -device.memory_bandwidth(),
                        -device.matmul_flops(), device.op_overhead_seconds(),
                        -device.memory_bytes(), device.host(), d);
    };
    std::sort(order_.begin(), order_.end(), [&](int a, int b) { return rank(a) < rank(b); });
    held_.resize(devices.size());
  }

  absl::StatusOr<std::vector<ServingChoice>> Run() {
    for (size_t m = 0; m < problem_.models.size(); ++m) {
      absl::StatusOr<std::vector<Cut>> cuts = CutsOf(problem_.models[m]);
      if (!cuts.ok()) return cuts.status();
      cuts_.push_back(*std::move(cuts));
    }
    placements_.resize(problem_.models.size());
    if (absl::Status status = Choose(0); !status.ok()) return status;
    if (best_.empty()) return NothingFits();
    std::vector<ServingChoice> out;
    for (auto& [key, choice] : best_) out.push_back(std::move(choice));
    for (auto& [bytes, choice] : refused_) {
      if (refused_shown_++ == problem_.max_candidates) break;
      out.push_back(std::move(choice));
    }
    return out;
  }

 private:
  using Window = std::vector<int>;  // devices, by rank
  // Seconds of a round, shared workers, workers, and order of trial.
  using Key = std::tuple<double, int, int, int64_t>;
  // Memory that placed models occupy on a device.
  struct Held {
    int models = 0;
    int64_t bytes = 0;
  };

  absl::StatusOr<std::vector<Cut>> CutsOf(const PlacedModel& model) const {
    std::vector<Cut> cuts;
    absl::Status cannot_stream;
    // Returns false if no other number of parts is possible either.
    const auto add = [&](const ServingDegrees& degrees, bool own) -> absl::StatusOr<bool> {
      absl::StatusOr<MemoryNeeds> needs = MemoryNeedsOf(problem_, model, degrees);
      if (absl::IsInvalidArgument(needs.status()) && degrees.ranks() > 1) return false;
      // Smaller parts may stream.
      if (absl::IsResourceExhausted(needs.status())) {
        cannot_stream = needs.status();
        return true;
      }
      if (!needs.ok()) return needs.status();
      cuts.push_back({degrees, own, *std::move(needs)});
      return true;
    };
    if (problem_.own.has_value()) {
      if (absl::Status s = add({1, 1}, true).status(); !s.ok()) return s;
    }
    const int devices = static_cast<int>(problem_.machine.devices.size());
    for (int tensor = 1; tensor <= devices; ++tensor) {
      // Checked first, as it is cheap.
      if (!CheckHeadsDivide(*model.full, tensor).ok()) continue;
      for (int stages = 1; tensor * stages <= devices;
           stages += stages < kMaxStagesEach ? 1 : stages) {
        const absl::StatusOr<bool> more = add({tensor, stages}, false);
        if (!more.ok()) return more.status();
        if (!*more) break;
      }
    }
    if (cuts.empty()) return cannot_stream;
    return cuts;
  }

  // Equal for interchangeable devices.
  std::vector<std::string> EquivalenceKey(const Window& window) const {
    std::vector<std::string> alike;
    std::map<std::string, int> hosts;
    for (int d : window) {
      v1::Device like = problem_.machine.devices[static_cast<size_t>(d)];
      const auto host = hosts.try_emplace(like.host(), static_cast<int>(hosts.size())).first;
      if (!like.host().empty()) like.set_host(absl::StrCat(host->second));
      like.clear_model();
      alike.push_back(like.SerializeAsString());
    }
    return alike;
  }

  // Remaining bytes; a device that does not report its memory has enough.
  int64_t FreeMemory(int device) const {
    const size_t d = static_cast<size_t>(device);
    const int64_t there = problem_.machine.devices[d].memory_bytes();
    return there <= 0 ? std::numeric_limits<int64_t>::max() : there - held_[d].bytes;
  }

  // The distinct sets of devices of one kind with `bytes` left each, adjacent except for devices
  // that lack memory. For the coordinator's process: the empty set.
  std::vector<Window> WindowsOf(const Cut& cut, int64_t bytes) const {
    if (cut.own) return {{}};
    const int count = cut.degrees.ranks();
    std::vector<int> eligible;
    for (int d : order_) {
      if (bytes <= FreeMemory(d)) eligible.push_back(d);
    }
    std::vector<Window> windows;
    std::set<std::vector<std::string>> seen;
    for (size_t begin = 0; begin + static_cast<size_t>(count) <= eligible.size(); ++begin) {
      Window window(eligible.begin() + static_cast<int64_t>(begin),
                    eligible.begin() + static_cast<int64_t>(begin) + count);
      const auto kind = [&](int d) {
        return problem_.machine.devices[static_cast<size_t>(d)].kind();
      };
      std::vector<std::string> like = EquivalenceKey(window);
      for (int d : window) {
        const Held& held = held_[static_cast<size_t>(d)];
        like.push_back(absl::StrCat(held.models, " ", held.bytes));
      }
      if (kind(window.front()) == kind(window.back()) && seen.insert(std::move(like)).second) {
        windows.push_back(std::move(window));
      }
    }
    return windows;
  }

  // Predicts one step of model m; cached, as many choices share it.
  absl::StatusOr<PredictedPlacement> PlacementOf(size_t m, const Cut& cut, const Window& window) {
    std::vector<std::string> key = EquivalenceKey(window);
    key.push_back(absl::StrCat(cut.own, " ", cut.degrees.tensor_parallel, " ",
                               cut.degrees.pipeline_parallel));
    PredictedPlacement placed{.degrees = cut.degrees, .devices = window, .bytes = cut.needs.bytes};
    if (const auto found = placements_[m].find(key); found != placements_[m].end()) {
      placed.seconds = found->second.seconds;
      placed.concurrent = found->second.concurrent;
      return placed;
    }
    absl::Status status = SetLatency(problem_, problem_.models[m], cut.needs.streamed, &placed);
    if (!status.ok()) return status;
    placements_[m][key] = placed;
    return placed;
  }

  bool CoordinatorHasSpace(int64_t bytes) const {
    return problem_.own->memory_bytes() <= 0 || bytes <= problem_.own->memory_bytes();
  }

  absl::Status Choose(size_t m) {
    if (m == problem_.models.size()) {
      Enter();
      return absl::OkStatus();
    }
    for (const Cut& cut : cuts_[m]) {
      const int64_t most = cut.most();
      std::vector<Window> windows = WindowsOf(cut, most);
      if (cut.own && !CoordinatorHasSpace(own_bytes_ + most)) windows.clear();
      if (windows.empty()) {
        if (absl::Status status = RecordRejection(m, cut, most); !status.ok()) return status;
      }
      for (const Window& window : windows) {
        absl::StatusOr<PredictedPlacement> placed = PlacementOf(m, cut, window);
        if (!placed.ok()) return placed.status();
        chosen_.push_back(*std::move(placed));
        absl::Status status;
        if (!Full() || MinRoundLatency(problem_, chosen_) <= std::get<0>(best_.rbegin()->first)) {
          Take(cut, window, 1);
          status = Choose(m + 1);
          Take(cut, window, -1);
        }
        chosen_.pop_back();
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // `sign` is 1, or -1 to undo.
  void Take(const Cut& cut, const Window& window, int sign) {
    if (cut.own) own_bytes_ += sign * cut.needs.bytes[0];
    for (int d : window) {
      Held& held = held_[static_cast<size_t>(d)];
      held.models += sign;
      held.bytes += sign * cut.most();
    }
  }

  bool Full() const { return static_cast<int>(best_.size()) >= problem_.max_candidates; }

  void Enter() {
    const RoundLatency round = RoundLatencyOf(problem_, chosen_);
    ServingChoice choice;
    choice.models = chosen_;
    choice.concurrent_steps = round.concurrent_steps;
    choice.llm_seconds = round.llm_seconds;
    choice.draft_seconds = round.draft_seconds;
    choice.tokens_per_second = problem_.tokens_per_round / round.seconds;
    int shared = 0, workers = 0;
    for (const Held& held : held_) {
      shared += held.models > 1 ? 1 : 0;
      workers += held.models > 0 ? 1 : 0;
    }
    best_.emplace(Key{round.seconds, shared, workers, tried_++}, std::move(choice));
    if (static_cast<int>(best_.size()) > problem_.max_candidates)
      best_.erase(std::prev(best_.end()));
  }

  // Records a split that fits no devices for lack of memory.
  absl::Status RecordRejection(size_t m, const Cut& cut, int64_t most) {
    std::string why;
    const auto readable = [](int64_t bytes) { return ReadableBytes(static_cast<double>(bytes)); };
    if (cut.own) {
      why = absl::StrCat("needs ", readable(most), " in the coordinator's process, which has ",
                         readable(problem_.own->memory_bytes() - own_bytes_), " left");
    } else {
      int64_t largest = 0;
      int eligible = 0;
      for (int d : order_) {
        eligible += most <= FreeMemory(d) ? 1 : 0;
        largest = std::max(largest, FreeMemory(d));
      }
      // Prevented by mixed kinds of devices, not by memory.
      if (eligible >= cut.degrees.ranks()) return absl::OkStatus();
      why = absl::StrCat(
          "needs ", readable(most), " on each of ", cut.degrees.ranks(), " workers of one kind; ",
          eligible, " have them left, and the most that one ", "has left is ", readable(largest));
    }
    const std::pair key(-static_cast<int>(m), most);
    if (!closest_.has_value() || key < *closest_) {
      closest_ = key;
      closest_why_ = absl::StrCat("model '", problem_.models[m].name, "' ", why);
    }
    // For SSMs there would be one per placement of the models before them.
    const std::vector<Window> any = WindowsOf(cut, 0);
    if (m > 0 || any.empty()) return absl::OkStatus();
    absl::StatusOr<PredictedPlacement> placed = PlacementOf(m, cut, any[0]);
    if (!placed.ok()) return placed.status();
    ServingChoice choice;
    choice.llm_seconds = placed->seconds * problem_.models[0].steps;
    choice.refused = why;
    choice.models.push_back(*std::move(placed));
    refused_.emplace(most, std::move(choice));
    return absl::OkStatus();
  }

  absl::Status NothingFits() const {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no placement of ", problem_.models.size(),
        problem_.models.size() == 1 ? " model" : " models", " fits ",
        problem_.own.has_value() ? "the coordinator's process and " : "",
        problem_.machine.devices.size(), " idle workers: at best, ", closest_why_,
        "; start workers with more memory, or ask for less: fewer or shorter requests at once, "
        "weights or KV cache in fewer bits"));
  }

  const ServingProblem& problem_;
  std::vector<int> order_;              // devices, fastest first
  std::vector<std::vector<Cut>> cuts_;  // by model
  // by model and equivalent devices
  std::vector<std::map<std::vector<std::string>, PredictedPlacement>> placements_;

  // The choice under construction.
  std::vector<PredictedPlacement> chosen_;
  std::vector<Held> held_;  // by device
  int64_t own_bytes_ = 0;

  std::map<Key, ServingChoice> best_;
  int64_t tried_ = 0;
  std::multimap<int64_t, ServingChoice> refused_;  // by the bytes of the largest part
  int refused_shown_ = 0;
  // Closest to a complete choice: most models placed, then the fewest bytes.
  std::optional<std::pair<int, int64_t>> closest_;
  std::string closest_why_;
};

}  // namespace

absl::StatusOr<PredictedPlacement> PredictPlacement(const ServingProblem& problem,
                                                    const PlacedModel& model,
                                                    const ServingDegrees& degrees,
                                                    const std::vector<int>& devices) {
  absl::StatusOr<MemoryNeeds> needs = MemoryNeedsOf(problem, model, degrees);
  if (!needs.ok()) return needs.status();
  PredictedPlacement placed{
      .degrees = degrees, .devices = devices, .bytes = std::move(needs->bytes)};
  absl::Status status = SetLatency(problem, model, needs->streamed, &placed);
  if (!status.ok()) return status;
  return placed;
}

absl::StatusOr<std::vector<ServingChoice>> PlaceServing(const ServingProblem& problem) {
  if (absl::Status status = CheckProblem(problem); !status.ok()) return status;
  return PlacementSearch(problem).Run();
}

}  // namespace espalier
