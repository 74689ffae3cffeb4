#include "ops/probe/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/elements.h"
#include "ops/probe/kernels.h"

namespace espalier {

using probe::CountNan;
using probe::ForBlocks;
using probe::ForElements;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Chan's parallel algorithm.
void MergeMoments(const v1::ProbePart::Moments& from, v1::ProbePart::Moments* to) {
  if (from.count() == 0) return;
  if (to->count() == 0) {
    *to = from;
    return;
  }
  to->set_min(std::min(to->min(), from.min()));
  to->set_max(std::max(to->max(), from.max()));
  to->set_not_a_number(to->not_a_number() + from.not_a_number());
  to->set_squares(to->squares() + from.squares());
  const double a = static_cast<double>(to->count());
  const double b = static_cast<double>(from.count());
  const double delta = from.mean() - to->mean();
  to->set_squared_deviations(to->squared_deviations() + from.squared_deviations() +
                             delta * delta * a * b / (a + b));
  // Infinities of one sign stay, those of both become NaN, as in a sum.
  to->set_mean(std::isfinite(delta) ? to->mean() + delta * b / (a + b) : to->mean() + from.mean());
  to->set_count(to->count() + from.count());
}

// Fills what the reduction needs, and the counts.
template <typename T>
v1::ProbePart::Moments MomentsOfBlock(Reduction::Kind kind, const T* x, int64_t n) {
  v1::ProbePart::Moments moments;
  moments.set_count(n);
  switch (kind) {
    case Reduction::kNorm:
      moments.set_squares(probe::SumOfSquares(x, n));
      break;
    case Reduction::kMean:
    case Reduction::kStd: {
      const double mean = probe::Sum(x, n) / static_cast<double>(n);
      moments.set_mean(mean);
      if (kind == Reduction::kStd) {
        moments.set_squared_deviations(probe::SumOfSquaredDeviations(x, n, mean));
      }
      break;
    }
    case Reduction::kMin:
    case Reduction::kMax: {
      double low = kInfinity, high = -kInfinity;
      probe::Extend(x, n, &low, &high);
      moments.set_min(low);
      moments.set_max(high);
      [[fallthrough]];
    }
    default:
      moments.set_not_a_number(CountNan(x, n));
  }
  return moments;
}

// Greater, as torch.topk orders: NaN first, then by value, then by index.
struct Ranked {
  double value;
  int64_t index;
};
bool Above(const Ranked& a, const Ranked& b) {
  const bool a_nan = std::isnan(a.value), b_nan = std::isnan(b.value);
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

// Keeps the `k` greatest, greatest first.
void KeepTop(int64_t k, std::vector<Ranked>* top) {
  if (static_cast<int64_t>(top->size()) > k) {
    std::nth_element(top->begin(), top->begin() + k, top->end(), Above);
    top->resize(static_cast<size_t>(k));
  }
  std::sort(top->begin(), top->end(), Above);
}

std::vector<Ranked> RankedOf(const v1::IndexedValues& elements) {
  std::vector<Ranked> out;
  for (int i = 0; i < elements.indices_size(); ++i) {
    out.push_back({elements.values(i), elements.indices(i)});
  }
  return out;
}

void SetElements(const std::vector<Ranked>& ranked, v1::IndexedValues* out) {
  out->Clear();
  for (const Ranked& r : ranked) {
    out->add_indices(r.index);
    out->add_values(r.value);
  }
}

// One index of each of `count` equal stretches.
std::vector<int64_t> SampledIndices(int64_t elements, int64_t count) {
  std::vector<int64_t> indices;
  count = std::min(count, elements);
  for (int64_t i = 0; i < count; ++i) {
    const auto start = static_cast<int64_t>(static_cast<__int128>(elements) * i / count);
    const auto end = static_cast<int64_t>(static_cast<__int128>(elements) * (i + 1) / count);
    uint64_t hash = static_cast<uint64_t>(i) + 0x9e3779b97f4a7c15u;  // splitmix64
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
    indices.push_back(start + static_cast<int64_t>(hash % static_cast<uint64_t>(end - start)));
  }
  return indices;
}

double Interpolated(double low, double high, double t) {
  if (low == high || t == 0) return low;
  return t < 0.5 ? low + (high - low) * t : high - (high - low) * (1 - t);
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("parts of a probe: ", what));
}

v1::ProbeValue FromMoments(Reduction::Kind kind, const v1::ProbePart::Moments& m) {
  v1::ProbeValue value;
  const auto n = static_cast<double>(m.count());
  const bool undefined = m.count() == 0 || m.not_a_number() > 0;
  switch (kind) {
    case Reduction::kNorm:
      value.set_scalar(std::sqrt(m.squares()));
      break;
    case Reduction::kMean:
      value.set_scalar(m.count() == 0 ? kNan : m.mean());
      break;
    case Reduction::kStd:
      value.set_scalar(m.count() < 2 ? kNan : std::sqrt(m.squared_deviations() / (n - 1)));
      break;
    case Reduction::kMin:
      value.set_scalar(undefined ? kNan : m.min());
      break;
    case Reduction::kMax:
      value.set_scalar(undefined ? kNan : m.max());
      break;
    default:
      value.set_scalar(static_cast<double>(m.not_a_number()));
  }
  return value;
}

// The class of each row of logits, as I64.
std::string ClassesOf(const TensorView& logits) {
  const int64_t classes = logits.dims().back();
  std::vector<int64_t> best(static_cast<size_t>(logits.num_elements() / classes));
  Ranked greatest{};
  int64_t i = 0;
  ForElements(logits, [&](double value) {
    const Ranked element{value, i % classes};
    if (element.index == 0 || Above(element, greatest)) greatest = element;
    if (element.index == classes - 1) best[static_cast<size_t>(i / classes)] = greatest.index;
    ++i;
  });
  return std::string(reinterpret_cast<const char*>(best.data()), best.size() * sizeof(int64_t));
}

}  // namespace

PartReducer::PartReducer(Reduction reduction, DType dtype, Dims global, bool adds_up,
                         bool only_part)
    : reduction_(std::move(reduction)),
      dtype_(dtype),
      global_(std::move(global)),
      adds_up_(adds_up),
      only_part_(only_part && !adds_up) {}

bool PartReducer::sends_boxes() const {
  if (adds_up_) return true;
  switch (reduction_.kind) {
    case Reduction::kFull:
      return true;
    case Reduction::kConfusion:
      return true;
    case Reduction::kQuantiles:
      return !only_part_;
    case Reduction::kHistogram:
      return !reduction_.bounds.has_value() && !only_part_;
    default:
      return false;
  }
}

absl::Status PartReducer::Add(const TensorView& part) {
  if (part.dtype() != dtype_) {
    return Bad(absl::StrCat("one is ", Name(part.dtype()), ", the tensor ", Name(dtype_)));
  }
  const Dims& offset = part.spec.offset;
  bool inside = part.dims().size() == global_.size() && offset.size() == global_.size();
  for (size_t d = 0; inside && d < global_.size(); ++d) {
    inside = offset[d] >= 0 && part.dims()[d] >= 0 && offset[d] <= global_[d] - part.dims()[d];
  }
  if (!inside) {
    return Bad(absl::StrCat("one of ", ToString(part.dims()), " at ", ToString(offset),
                            " is not within the tensor's ", ToString(global_)));
  }
  if (part.num_elements() > 0 && !part.present()) return Bad("one has no data");
  if (only_part_ && part.dims() != global_) return Bad("the only one is not the whole tensor");
  if (sends_boxes()) {
    const bool classes = reduction_.kind == Reduction::kConfusion && !adds_up_ && IsFloat(dtype_) &&
                         !global_.empty() && global_.back() > 0 &&
                         part.dims().back() == global_.back();
    classes ? AddClasses(part) : AddBox(part);
    return absl::OkStatus();
  }
  v1::ProbePart::Box* box = part_.add_boxes();  // where the part lies, without elements
  box->mutable_offset()->Assign(offset.begin(), offset.end());
  box->mutable_values()->mutable_dims()->Assign(part.dims().begin(), part.dims().end());
  switch (reduction_.kind) {
    case Reduction::kHistogram:
      reduction_.bounds.has_value()
          ? AddHistogram(part, reduction_.bounds->first, reduction_.bounds->second)
          : AddWholeHistogram(part);
      break;
    case Reduction::kQuantiles:
      AddWholeQuantiles(part);
      break;
    case Reduction::kSample:
      AddSample(part);
      break;
    case Reduction::kTopK:
      AddTop(part);
      break;
    default:
      ForBlocks(part, [&](const auto* x, int64_t n) {
        MergeMoments(MomentsOfBlock(reduction_.kind, x, n), part_.mutable_moments());
      });
  }
  return absl::OkStatus();
}

void PartReducer::AddBox(const TensorView& part) {
  v1::ProbePart::Box* box = part_.add_boxes();
  box->mutable_offset()->Assign(part.spec.offset.begin(), part.spec.offset.end());
  v1::TensorValue* values = box->mutable_values();
  values->set_dtype(ToProto(dtype_));
  values->mutable_dims()->Assign(part.dims().begin(), part.dims().end());
  values->set_data(part.data,
                   part.num_elements() == 0 ? 0 : static_cast<size_t>(part.spec.bytes()));
}

// Whole rows of logits: their classes do.
void PartReducer::AddClasses(const TensorView& part) {
  v1::ProbePart::Box* box = part_.add_boxes();
  box->mutable_offset()->Assign(part.spec.offset.begin(), part.spec.offset.end());
  v1::TensorValue* values = box->mutable_values();
  values->set_dtype(v1::I64);
  values->mutable_dims()->Assign(part.dims().begin(), part.dims().end());
  values->set_data(ClassesOf(part));
}

void PartReducer::AddHistogram(const TensorView& part, double low, double high) {
  const probe::Ranges ranges(low, high, reduction_.count);
  v1::Histogram* histogram = part_.mutable_histogram();
  histogram->set_low(low);
  histogram->set_high(high);
  histogram->mutable_counts()->Resize(static_cast<int>(reduction_.count), 0);
  int64_t* counts = histogram->mutable_counts()->mutable_data();
  int64_t outside = 0;
  ForElements(part, [&](double x) {
    const int64_t range = ranges.Of(x);
    range < 0 ? ++outside : ++counts[range];
  });
  histogram->set_outside(histogram->outside() + outside);
}

void PartReducer::AddWholeHistogram(const TensorView& part) {
  double low = kInfinity, high = -kInfinity;
  ForElements(part, [&](double x) {
    if (!std::isfinite(x)) return;
    low = std::min(low, x);
    high = std::max(high, x);
  });
  if (low > high) {
    low = 0;
    high = 1;
  } else if (low == high) {
    // Of great elements, 0.5 would change nothing, or leave ranges without numbers in them.
    const double margin = std::max(0.5, std::fabs(low) * 0x1p-40);
    low -= margin;
    high += margin;
  }
  AddHistogram(part, low, high);
}

void PartReducer::AddWholeQuantiles(const TensorView& part) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(part.num_elements()));
  bool nan = false;
  ForElements(part, [&](double x) {
    nan |= std::isnan(x);
    values.push_back(x);
  });
  const std::vector<double>& quantiles = reduction_.quantiles;
  std::vector<size_t> order(quantiles.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return quantiles[a] < quantiles[b]; });
  std::vector<double> results(quantiles.size(), kNan);
  auto from = values.begin();  // what is before it is not greater than what is after
  for (const size_t i : order) {
    if (nan || values.empty()) break;
    const double place = quantiles[i] * static_cast<double>(values.size() - 1);
    const double below = std::floor(place);
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
    std::nth_element(from, at, values.end());
    from = at;
    const double above = at + 1 == values.end() ? *at : *std::min_element(at + 1, values.end());
    results[i] = Interpolated(*at, above, place - below);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    part_.mutable_elements()->add_indices(static_cast<int64_t>(i));
    part_.mutable_elements()->add_values(results[i]);
  }
}

void PartReducer::AddTop(const TensorView& part) {
  const auto k = static_cast<size_t>(reduction_.count);
  const probe::GlobalIndex index(part.spec.offset, part.dims(), global_);
  std::vector<Ranked> top = RankedOf(part_.elements());
  const auto least = [&] { return top.size() < k ? -kInfinity : top[k - 1].value; };
  double enough = least();  // k elements are at least so great
  int64_t i = 0;
  ForElements(part, [&](double value) {
    const int64_t local = i++;
    if (value < enough) return;
    top.push_back({value, index.Of(local)});
    if (top.size() < 2 * k + 1024) return;
    KeepTop(reduction_.count, &top);
    enough = least();
  });
  KeepTop(reduction_.count, &top);
  SetElements(top, part_.mutable_elements());
}

void PartReducer::AddSample(const TensorView& part) {
  for (const int64_t index : SampledIndices(NumElements(global_), reduction_.count)) {
    int64_t local = 0, rest = index, stride = 1;
    bool inside = true;
    for (size_t d = global_.size(); d-- > 0;) {
      const int64_t at = rest % global_[d] - part.spec.offset[d];
      rest /= global_[d];
      inside = inside && at >= 0 && at < part.dims()[d];
      local += at * stride;
      stride *= part.dims()[d];
    }
    if (!inside) continue;
    part_.mutable_elements()->add_indices(index);
    part_.mutable_elements()->add_values(probe::Element(part, local));
  }
}

v1::ProbePart PartReducer::Take() {
  part_.set_dtype(ToProto(dtype_));
  part_.mutable_dims()->Assign(global_.begin(), global_.end());
  return std::exchange(part_, v1::ProbePart());
}

absl::StatusOr<v1::ProbeValue> Finish(const Reduction& reduction, std::vector<v1::ProbePart> parts,
                                      bool adds_up) {
  if (reduction.kind == Reduction::kConfusion) return Bad("confusion needs those of two tensors");
  if (absl::Status s = probe::CheckParts(parts, adds_up); !s.ok()) return s;
  for (const v1::ProbePart& part : parts) {
    if (part.elements().indices_size() != part.elements().values_size()) {
      return Bad("one has elements without indices, or indices without elements");
    }
  }
  // The same sums in any order of arrival. Ranks without elements have nothing to say.
  const v1::ProbePart first = parts[0].boxes_size() == 0 ? parts[0] : v1::ProbePart();
  std::erase_if(parts, [](const v1::ProbePart& part) { return part.boxes_size() == 0; });
  if (parts.empty()) parts.push_back(first);
  std::stable_sort(parts.begin(), parts.end(), [](const v1::ProbePart& a, const v1::ProbePart& b) {
    if (a.boxes_size() == 0 || b.boxes_size() == 0) return a.boxes_size() < b.boxes_size();
    const Dims at(a.boxes(0).offset().begin(), a.boxes(0).offset().end());
    const Dims other(b.boxes(0).offset().begin(), b.boxes(0).offset().end());
    if (at != other) return at < other;
    return a.boxes(0).values().data() < b.boxes(0).values().data();  // addends
  });
  const bool reduced_whole =
      parts.size() == 1 && (parts[0].has_histogram() || parts[0].has_elements());
  const bool boxes =
      adds_up || reduction.kind == Reduction::kFull ||
      (reduction.kind == Reduction::kQuantiles && !reduced_whole) ||
      (reduction.kind == Reduction::kHistogram && !reduction.bounds && !reduced_whole);
  v1::ProbeValue value;
  if (boxes) {
    auto whole = probe::Assemble(parts, adds_up);
    if (!whole.ok()) return whole.status();
    if (reduction.kind == Reduction::kFull) {
      *value.mutable_tensor() = *std::move(whole);
      return value;
    }
    const Dims dims(whole->dims().begin(), whole->dims().end());
    const DType dtype = FromProto(whole->dtype());
    PartReducer reducer(reduction, dtype, dims, /*adds_up=*/false, /*only_part=*/true);
    TensorView view{whole->mutable_data()->data(), TensorSpec::Whole({dtype, dims})};
    if (absl::Status s = reducer.Add(view); !s.ok()) return s;
    std::vector<v1::ProbePart> one;
    one.push_back(reducer.Take());
    return Finish(reduction, std::move(one), /*adds_up=*/false);
  }
  switch (reduction.kind) {
    case Reduction::kHistogram: {
      v1::Histogram* sum = value.mutable_histogram();
      for (const v1::ProbePart& part : parts) {
        if (!part.has_histogram()) continue;  // of a rank that holds nothing
        const v1::Histogram& histogram = part.histogram();
        if (histogram.counts_size() != reduction.count) return Bad("histograms differ in ranges");
        sum->set_low(histogram.low());
        sum->set_high(histogram.high());
        sum->mutable_counts()->Resize(histogram.counts_size(), 0);
        for (int i = 0; i < histogram.counts_size(); ++i) {
          sum->set_counts(i, sum->counts(i) + histogram.counts(i));
        }
        sum->set_outside(sum->outside() + histogram.outside());
      }
      if (sum->counts_size() == 0) {  // of no elements
        sum->set_low(reduction.bounds ? reduction.bounds->first : 0);
        sum->set_high(reduction.bounds ? reduction.bounds->second : 1);
        sum->mutable_counts()->Resize(static_cast<int>(reduction.count), 0);
      }
      return value;
    }
    case Reduction::kQuantiles:
      if (parts[0].elements().values_size() != static_cast<int>(reduction.quantiles.size())) {
        return Bad("one has another number of quantiles");
      }
      *value.mutable_elements() = parts[0].elements();
      return value;
    case Reduction::kSample:
    case Reduction::kTopK: {
      std::vector<Ranked> all;
      for (const v1::ProbePart& part : parts) {
        const std::vector<Ranked> some = RankedOf(part.elements());
        all.insert(all.end(), some.begin(), some.end());
      }
      if (reduction.kind == Reduction::kTopK) {
        KeepTop(reduction.count, &all);
      } else {
        std::sort(all.begin(), all.end(),
                  [](const Ranked& a, const Ranked& b) { return a.index < b.index; });
      }
      SetElements(all, value.mutable_elements());
      return value;
    }
    default: {
      v1::ProbePart::Moments moments;
      for (const v1::ProbePart& part : parts) {
        if (part.has_moments()) MergeMoments(part.moments(), &moments);
      }
      return FromMoments(reduction.kind, moments);
    }
  }
}

}  // namespace espalier
