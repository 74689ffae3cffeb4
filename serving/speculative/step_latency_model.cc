#include "serving/speculative/step_latency_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/types/span.h"

namespace espalier {
namespace {

constexpr int kExact = 32;           // up to here each number of rows has its own bucket
constexpr int kPerOctave = 16;       // beyond, buckets per doubling
constexpr int64_t kFresh = 1024;     // observations after which a time is old,
constexpr int64_t kOld = 16384;      // and one of a size that is known well
constexpr double kPrior = 2;         // contrasts that what a size took at first is worth
constexpr double kLeast = 0.02;      // weight of a contrast
constexpr double kMost = 0.7;        // that one says, in logarithms, times the root of its weight
constexpr int64_t kProof = 8;        // contrasts
constexpr int64_t kBeside = 3;       // steps apart that are compared, at most
constexpr int kFew = 3;              // times that are to be trusted
constexpr double kNear = 2;          // times as many rows
constexpr double kAnother = 1.5;     // times slower or faster
constexpr double kNoticed = 0.004;   // of a time: less does not draw the curve anew
constexpr int64_t kDrawEvery = 64;   // observations, since times grow old
constexpr int64_t kLookEvery = 4;    // of a size, for whether it has become another
constexpr double kOldWeight = 1e-4;  // of a time that is not recent
constexpr double kUnproven = 0.1;    // of one that the calibration's moment alone speaks for
constexpr int kRepeats = 3;          // turns of the calibration batches
constexpr int kCold = 2;             // steps after a larger one that are slower,
constexpr double kWarming = 0.02;    // if they take less of the time
constexpr double kLook = 4;          // part of the time for a first look
constexpr int kTurns = 5;            // of two that are compared
constexpr int kPast = 256;           // positions of each of the calibration's sequences
constexpr int kShortest = 16;        // that still says something
constexpr int kSequences = 64;       // of them, at most
constexpr int kRowsOfOne = 32;       // that see one of them

double Median(absl::Span<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int BucketOf(int rows) {
  if (rows <= kExact) return rows;
  return kExact + 1 + static_cast<int>(kPerOctave * std::log2(static_cast<double>(rows) / kExact));
}

// `sequences` of `length` positions each, `stride` KV slots apart, the first from `slot` on; the
// last `rows` of each are run.
RunnerBatch CalibrationBatch(int sequences, int length, int rows, int stride = 1, int slot = 0) {
  RunnerBatch batch;
  batch.sequence_start.push_back(0);
  batch.ancestor_start.push_back(0);
  for (int s = 0; s < sequences; ++s) {
    for (int position = 0; position < length; ++position) {
      const int at = slot + s * stride + position;
      batch.sequence_slots.push_back(at);
      if (position < length - rows) continue;
      batch.logit_rows.push_back(batch.rows());
      batch.row_outputs.push_back(RunnerBatch::kToken);
      batch.tokens.push_back(0);
      batch.positions.push_back(position);
      batch.slots.push_back(at);
      batch.row_sequence.push_back(s);
      batch.row_prefix.push_back(position + 1);
      batch.ancestor_start.push_back(0);
    }
    batch.sequence_start.push_back(static_cast<int>(batch.sequence_slots.size()));
  }
  return batch;
}

}  // namespace

void StepLatencyModel::Observe(const StepWork& work, double seconds) {
  const int number = BucketOf(work.rows);
  auto at = std::lower_bound(buckets_.begin(), buckets_.end(), number,
                             [](const Bucket& bucket, int n) { return bucket.number < n; });
  if (at == buckets_.end() || at->number != number) {
    at = buckets_.insert(at, Bucket());
    at->number = number;
  }
  const bool fresh = Fresh(*at);
  if (at->count >= kKept && !fresh) *at = {.number = number};
  const bool known = at->count >= kFew;
  const double positions = rates_.visible * work.visible + rates_.context * work.context;
  const double others = PaceOfOthers(number);
  const size_t slot = static_cast<size_t>(at->count % kKept);
  at->rows[slot] = work.rows;
  at->seconds[slot] = Paced(*at, seconds, positions);
  at->recent = Recent(*at) + 1;
  at->recent_at = at->when[slot] = ++observed_;
  ++at->count;
  const auto newest = [&](const std::array<double, kKept>& ring, int64_t most) {
    std::array<double, kKept> values;
    const auto count = static_cast<size_t>(std::min(at->count, most));
    for (size_t i = 0; i < count; ++i) {
      values[i] = ring[static_cast<size_t>(at->count - 1 - static_cast<int64_t>(i)) % kKept];
    }
    return Median(absl::MakeSpan(values.data(), count));
  };
  at->middle_rows = number <= kExact ? number : newest(at->rows, kKept);
  if (!known) {
    at->middle_seconds = newest(at->seconds, kLast);
  } else if (others > 0) {
    const double paced = std::max(0.0, seconds / others - positions);
    const double surprise = paced / at->middle_seconds;
    // More was an interruption, or will be seen from the last few times.
    if (surprise < kAnother) {
      const double weight = std::max(1.0 / (kPrior + static_cast<double>(++at->contrasts)), kLeast);
      const double most = kMost * std::sqrt(weight);
      at->middle_seconds *= std::exp(weight * std::clamp(std::log(surprise), -most, most));
    }
  }
  if (at->count <= kKept || at->count % kLookEvery == 0) {
    const double now = newest(at->seconds, kLast);
    if (now > kAnother * at->middle_seconds || at->middle_seconds > kAnother * now) {
      at->middle_seconds = now;
    }
  }
  const bool moved =
      at->middle_rows != at->drawn_rows ||
      std::abs(at->middle_seconds - at->drawn_seconds) > kNoticed * at->drawn_seconds;
  if (at->count > kKept && fresh && !moved && observed_ - drawn_at_ < kDrawEvery) return;
  at->drawn_rows = at->middle_rows;
  at->drawn_seconds = at->middle_seconds;
  drawn_at_ = observed_;
  stale_ = true;
}

// By those of the last few steps that were not of this size; 0 without any.
double StepLatencyModel::PaceOfOthers(int number) const {
  std::array<double, kBeside> values;
  size_t count = 0;
  for (int64_t i = paced_ - 1; i >= std::max<int64_t>(0, paced_ - kBeside); --i) {
    const Pace& pace = paces_[static_cast<size_t>(i % kPaces)];
    if (pace.bucket != number) values[count++] = pace.value;
  }
  return count == 0 ? 0 : Median(absl::MakeSpan(values.data(), count));
}

double StepLatencyModel::Paced(const Bucket& bucket, double seconds, double positions) {
  if (bucket.count >= kFew && bucket.middle_seconds > 0) {
    paces_[static_cast<size_t>(paced_++ % kPaces)] = {
        bucket.number, seconds / (bucket.middle_seconds + positions)};
    std::array<double, kPaces> values;
    const auto count = static_cast<size_t>(std::min<int64_t>(paced_, kPaces));
    for (size_t i = 0; i < count; ++i) values[i] = paces_[i].value;
    if (paced_ >= kFew) pace_ = Median(absl::MakeSpan(values.data(), count));
  }
  return std::max(0.0, seconds / pace_ - positions);
}

void StepLatencyModel::Slow(double times) {
  for (Pace& pace : paces_) pace.value *= times;
  pace_ *= times;
}

// Whether its last few times are recent ones.
bool StepLatencyModel::Fresh(const Bucket& bucket) const {
  if (bucket.count < kFew) return false;
  const int64_t age = observed_ - bucket.when[static_cast<size_t>(bucket.count - kFew) % kKept];
  return age <= (bucket.count >= kKept ? kOld : kFresh);
}

bool StepLatencyModel::Proven(const Bucket& bucket) const {
  return bucket.contrasts >= kProof && Fresh(bucket);
}

bool StepLatencyModel::Proven(int rows) const {
  const int number = BucketOf(rows);
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), number,
                                   [](const Bucket& bucket, int n) { return bucket.number < n; });
  return at != buckets_.end() && at->number == number && Proven(*at);
}

// What a size is worth beside its neighbours: one that is hardly ever run, and was timed in a bad
// moment, must not make those dear that are.
double StepLatencyModel::Recent(const Bucket& bucket) const {
  const auto age = static_cast<double>(observed_ - bucket.recent_at);
  return bucket.recent / (1 + age / kFresh);
}

// Those that count, by rising size.
void StepLatencyModel::FindSizes() const {
  known_.clear();
  std::vector<const Bucket*> larger(buckets_.size(), nullptr);  // the next one that is proven
  for (size_t i = buckets_.size(); i-- > 1;) {
    larger[i - 1] = Proven(buckets_[i]) ? &buckets_[i] : larger[i];
  }
  const Bucket* smaller = nullptr;  // the last one that is
  // The next fresh one above is looked for once.
  size_t next = 0;
  const Bucket *below = nullptr, *lower = nullptr;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    double seconds = bucket.middle_seconds;
    if (Proven(bucket)) {
      smaller = &bucket;
    } else if (bucket.contrasts < kProof && larger[i] != nullptr) {
      // It is worth another try where it seems dearer than what lies between these.
      double most = larger[i]->middle_seconds;
      if (smaller != nullptr) {
        most -= (larger[i]->middle_rows - bucket.middle_rows) /
                (larger[i]->middle_rows - smaller->middle_rows) * (most - smaller->middle_seconds);
      }
      seconds = std::min(seconds, most);
    }
    if (Fresh(bucket)) {
      lower = std::exchange(below, &bucket);
    } else {
      next = std::max(next, i + 1);
      while (next < buckets_.size() && !Fresh(buckets_[next])) ++next;
      const Bucket* above = next < buckets_.size() ? &buckets_[next] : nullptr;
      // Between two that are known: what lies between these.
      if (above != nullptr && below != nullptr &&
          above->middle_rows <= kNear * bucket.middle_rows) {
        continue;
      }
      // So many of the smaller batch would do the same.
      if (below != nullptr) {
        const double times = bucket.middle_rows / below->middle_rows;
        // As the known sizes below it go on, if that is less: it is worth another try.
        if (lower != nullptr && times <= kNear) {
          const double slope = (below->middle_seconds - lower->middle_seconds) /
                               (below->middle_rows - lower->middle_rows);
          seconds = std::min(
              seconds, below->middle_seconds + slope * (bucket.middle_rows - below->middle_rows));
        }
        seconds = std::clamp(seconds, below->middle_seconds, times * below->middle_seconds);
      } else if (above != nullptr) {
        const double share = bucket.middle_rows / above->middle_rows;
        seconds = std::clamp(seconds, share * above->middle_seconds, above->middle_seconds);
      }
    }
    const double times = Recent(bucket);
    const double weight = bucket.contrasts > 0 ? times : kUnproven * times;
    known_.push_back({bucket.middle_rows, seconds, Fresh(bucket) ? weight : kOldWeight * weight});
  }
}

void StepLatencyModel::Refresh() const {
  stale_ = false;
  FindSizes();
  pools_.clear();
  for (const Known& size : known_) {
    Pool pool{size.rows, size.rows, size.seconds, size.weight};
    // Smaller batches that seem to cost more are pooled with this one: all have their mean.
    while (!pools_.empty() && pools_.back().seconds > pool.seconds) {
      const Pool& last = pools_.back();
      const double weight = last.weight + pool.weight;
      pool.seconds = (last.seconds * last.weight + pool.seconds * pool.weight) / weight;
      pool.weight = weight;
      pool.least = last.least;
      pools_.pop_back();
    }
    pools_.push_back(pool);
  }
  curve_.clear();
  for (const Pool& pool : pools_) {
    curve_.push_back({pool.least, pool.seconds});
    // Flat in between.
    if (pool.least < pool.most) curve_.push_back({pool.most, pool.seconds});
  }
}

double StepLatencyModel::Seconds(int rows) const { return pace_ * CurveSeconds(rows); }

double StepLatencyModel::CurveSeconds(int rows) const {
  if (stale_) Refresh();
  if (curve_.empty()) return 0;
  const double x = rows;
  const auto above = std::lower_bound(curve_.begin(), curve_.end(), x,
                                      [](const Point& point, double r) { return point.rows < r; });
  if (above == curve_.begin()) return above->seconds;
  const Point& low = *(above - 1);
  if (above != curve_.end()) {
    const double share = (x - low.rows) / (above->rows - low.rows);
    return low.seconds + share * (above->seconds - low.seconds);
  }
  const Point& first = curve_.front();
  const double slope = low.rows > first.rows
                           ? (low.seconds - first.seconds) / (low.rows - first.rows)
                           : low.seconds / low.rows;
  return low.seconds + slope * (x - low.rows);
}

double StepLatencyModel::Seconds(const StepWork& work) const {
  return Seconds(work.rows) + PositionSeconds(work.visible, work.context);
}

namespace {

class Calibration {
 public:
  Calibration(ModelRunner& runner, int max_rows, const std::function<double()>& seconds)
      : runner_(runner), limits_(runner.limits()), seconds_(seconds) {
    slots_ = std::min(limits_.kv_slots, limits_.max_context_slots);
    most_ = std::min({max_rows, limits_.max_rows, slots_});
    apart_ = std::min(most_, limits_.max_sequences);
  }

  // What batches of growing size took, in several turns.
  absl::Status FindCurve(double budget) {
    const double begin = seconds_();
    const auto spent = [&] { return seconds_() - begin; };
    double took = 0;
    // The first step of all allocates and reads weights from disk.
    if (absl::Status s = Time(CurveBatch(1), &took); !s.ok()) return s;
    // Doublings first: how far can it go, and how long does it take?
    StepLatencyModel rough;
    std::vector<int> sizes;
    double turn = 0;
    for (int rows = 1; rows <= most_ && (rows <= 2 || turn < budget / kLook); rows *= 2) {
      if (absl::Status s = Time(CurveBatch(rows), &took); !s.ok()) return s;
      rough.Observe({.rows = rows}, took);
      sizes.push_back(rows);
      turn += took;
    }
    // What lies between as far as there is time: every size that has a bucket of its own, and steps
    // of a quarter.
    const int largest = sizes.back();
    for (int rows = 3; rows < 2 * largest && rows <= most_; rows += rows < 32 ? 1 : rows / 4) {
      if ((rows & (rows - 1)) == 0) continue;
      turn += rough.Seconds(rows);
      if (turn > budget / kRepeats) break;
      sizes.push_back(rows);
    }
    std::sort(sizes.begin(), sizes.end());
    for (int i = 0; i < kRepeats; ++i) {
      // The largest has left other things in the caches than those that follow one another find. To
      // a step that takes long that does not matter.
      const bool warms = kCold * rough.Seconds(sizes[0]) < kWarming * budget / kRepeats;
      for (int cold = 0; warms && cold < kCold; ++cold) {
        if (absl::Status s = Time(CurveBatch(sizes[0]), &took); !s.ok()) return s;
      }
      for (const int rows : sizes) {
        // The machine has become slower.
        if (i > 0 && spent() > 2 * budget) return absl::OkStatus();
        const RunnerBatch batch = CurveBatch(rows);
        if (absl::Status s = Time(batch, &took); !s.ok()) return s;
        turns_[i].push_back({WorkOf(batch), took});
      }
    }
    return absl::OkStatus();
  }

  absl::Status FindRates(double budget, StepLatencyModel::Rates* rates) {
    const double begin = seconds_();
    StepLatencyModel rough;
    for (const Sample& sample : samples()) rough.Observe(sample.work, sample.seconds);
    // Memory that nobody has written yet would be read too fast. A slow model fills few slots.
    int past = std::min({kPast, limits_.max_positions, slots_});
    const int most_sequences = std::clamp(slots_ / past, 1, std::min(apart_, kSequences));
    int rows = std::min(most_, past), many = 0, filled = 0;
    while (rows > 1 && rough.Seconds(rows) > budget / 8) rows /= 2;
    while (many < most_sequences && seconds_() - begin < budget / 2) {
      const int count = std::min(rows, past - filled);
      double took = 0;
      absl::Status status = Time(CalibrationBatch(1, filled + count, count, 0, many * past), &took);
      if (!status.ok()) return status;
      filled += count;
      if (filled == past) ++many;
      filled %= past;
    }
    if (many == 0) {
      past = filled;
      many = 1;
    }
    if (past < kShortest) return absl::OkStatus();
    // Of one more position that a row of its own sees: its own price, and that of reading it.
    double own = 0;
    absl::Status status = Compare(CalibrationBatch(many, past, 1, past),
                                  CalibrationBatch(many, 1, 1, past), begin + budget, &own);
    own /= static_cast<double>(many) * (past - 1);
    // The same where `together` rows share the reading.
    const int together = std::min({kRowsOfOne, most_, past / 2});
    double shared = 0;
    if (status.ok()) {
      status = Compare(CalibrationBatch(1, past, together), CalibrationBatch(1, together, together),
                       begin + budget, &shared);
    }
    if (!status.ok()) return status;
    shared /= static_cast<double>(together) * (past - together);
    if (together > 1) {
      rates->context = std::clamp((own - shared) / (1 - 1.0 / together), 0.0, std::max(own, 0.0));
    }
    rates->visible = std::max(0.0, own - rates->context);
    return absl::OkStatus();
  }

  struct Sample {
    StepWork work;
    double seconds = 0;
  };

  // At the pace of the last complete turn: the median of all turns' sizes against it says how much
  // slower a turn was.
  std::vector<Sample> samples() const {
    const std::vector<Sample>* last = &turns_[0];
    for (const std::vector<Sample>& turn : turns_) {
      if (turn.size() == turns_[0].size()) last = &turn;
    }
    std::vector<Sample> out;
    for (const std::vector<Sample>& turn : turns_) {
      std::vector<double> slower;
      for (size_t i = 0; i < turn.size(); ++i) {
        slower.push_back(turn[i].seconds / (*last)[i].seconds);
      }
      const double pace = slower.empty() ? 1 : Median(absl::MakeSpan(slower));
      for (const Sample& sample : turn) out.push_back({sample.work, sample.seconds / pace});
    }
    return out;
  }

 private:
  RunnerBatch CurveBatch(int rows) const {
    if (rows <= apart_) return CalibrationBatch(rows, 1, 1);
    // As prompts, of which there are as few as hold them.
    const int prompts =
        std::min(apart_, (rows + limits_.max_positions - 1) / limits_.max_positions);
    const int length = std::min(rows / prompts, limits_.max_positions);
    return CalibrationBatch(prompts, length, length, length);
  }

  static StepWork WorkOf(const RunnerBatch& batch) {
    StepWork work{.rows = batch.rows(),
                  .context = static_cast<double>(batch.sequence_slots.size())};
    for (const int prefix : batch.row_prefix) work.visible += prefix;
    return work;
  }

  absl::Status Time(const RunnerBatch& batch, double* took) {
    const double start = seconds_();
    absl::Status status = runner_.Step(batch, &logits_);
    *took = seconds_() - start;
    return status;
  }

  // What `a` takes longer than those of `b` just before and after it, the median of several turns;
  // until `deadline`, once at least.
  absl::Status Compare(const RunnerBatch& a, const RunnerBatch& b, double deadline,
                       double* seconds) {
    std::vector<double> longer;
    double before = 0, of_a = 0, after = 0;
    if (absl::Status s = Time(b, &before); !s.ok()) return s;
    for (int i = 0; i < kTurns && (i == 0 || seconds_() < deadline); ++i) {
      if (absl::Status s = Time(a, &of_a); !s.ok()) return s;
      if (absl::Status s = Time(b, &after); !s.ok()) return s;
      longer.push_back(of_a - (before + after) / 2);
      before = after;
    }
    *seconds = Median(absl::MakeSpan(longer));
    return absl::OkStatus();
  }

  ModelRunner& runner_;
  const RunnerLimits limits_;
  const std::function<double()>& seconds_;
  int slots_, most_, apart_;
  std::array<std::vector<Sample>, kRepeats> turns_;  // of all sizes
  RunnerOutput logits_;
};

}  // namespace

absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepLatencyModel* cost) {
  Calibration calibration(runner, max_rows, seconds);
  StepLatencyModel::Rates rates;
  if (absl::Status s = calibration.FindCurve(budget_seconds); !s.ok()) return s;
  if (absl::Status s = calibration.FindRates(budget_seconds, &rates); !s.ok()) return s;
  // Prompts' rows see each other: the curve is what is left of them without that.
  cost->set_rates(rates);
  for (const Calibration::Sample& sample : calibration.samples()) {
    cost->Observe(sample.work, sample.seconds);
  }
  return absl::OkStatus();
}

}  // namespace espalier
