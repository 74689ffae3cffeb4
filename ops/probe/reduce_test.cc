#include "ops/probe/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "ops/graph/graph_proto.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Tensor {
  DType dtype = DType::kF32;
  Dims dims;
  std::vector<double> values;  // each can be represented in dtype
};

std::string Stored(DType dtype, const std::vector<double>& values) {
  std::string out;
  const auto append = [&](auto x) { out.append(reinterpret_cast<const char*>(&x), sizeof(x)); };
  for (const double v : values) {
    switch (dtype) {
      case DType::kF32:
        append(static_cast<float>(v));
        break;
      case DType::kBF16:
        append(F32ToBF16(static_cast<float>(v)));
        break;
      case DType::kF16:
        append(F32ToF16(static_cast<float>(v)));
        break;
      case DType::kI32:
        append(static_cast<int32_t>(v));
        break;
      case DType::kI64:
        append(static_cast<int64_t>(v));
        break;
      default:
        append(static_cast<uint8_t>(static_cast<int>(v)));
    }
  }
  return out;
}

// A box of the tensor, with its data.
struct Part {
  std::string data;
  TensorView view;
};

Part Cut(const Tensor& tensor, const Region& region) {
  std::vector<double> values;
  for (int64_t i = 0; i < region.num_elements(); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (size_t d = tensor.dims.size(); d-- > 0;) {
      index += (region.start[d] + rest % region.size[d]) * stride;
      rest /= region.size[d];
      stride *= tensor.dims[d];
    }
    values.push_back(tensor.values[static_cast<size_t>(index)]);
  }
  Part part{Stored(tensor.dtype, values), {}};
  part.view.spec = {tensor.dtype, region.size, region.start, tensor.dims};
  return part;
}

// Halves a region at random places, `times` times.
std::vector<Region> Sharding(const Dims& dims, int times, std::mt19937* random) {
  std::vector<Region> out = {Region::Whole(dims)};
  for (int i = 0; i < times && !dims.empty(); ++i) {
    Region& region = out[(*random)() % out.size()];
    const size_t d = (*random)() % dims.size();
    if (region.size[d] < 2) continue;
    const int64_t at =
        1 + static_cast<int64_t>((*random)() % static_cast<uint64_t>(region.size[d] - 1));
    Region rest = region;
    rest.start[d] += at;
    rest.size[d] -= at;
    region.size[d] = at;
    out.push_back(rest);
  }
  return out;
}

Reduction Parsed(const std::string& text) {
  const auto reduction = ParseReduction(text);
  EXPECT_TRUE(reduction.ok()) << reduction.status();
  return *reduction;
}

// The parts of each of `ranks`, which add the regions in turn.
std::vector<v1::ProbePart> PartsOf(const Tensor& tensor, const std::string& reduction,
                                   const std::vector<Region>& regions, size_t ranks,
                                   bool only = false) {
  std::vector<v1::ProbePart> parts;
  for (size_t rank = 0; rank < ranks; ++rank) {
    PartReducer reducer(Parsed(reduction), tensor.dtype, tensor.dims, false, only);
    for (size_t i = rank; i < regions.size(); i += ranks) {
      Part part = Cut(tensor, regions[i]);
      part.view.data = part.data.data();
      const absl::Status added = reducer.Add(part.view);
      EXPECT_TRUE(added.ok()) << added;
    }
    parts.push_back(reducer.Take());
  }
  return parts;
}

v1::ProbeValue Whole(const Tensor& tensor, const std::string& reduction, bool only = true) {
  const auto value = Finish(
      Parsed(reduction), PartsOf(tensor, reduction, {Region::Whole(tensor.dims)}, 1, only), false);
  EXPECT_TRUE(value.ok()) << reduction << ": " << value.status();
  return value.ok() ? *value : v1::ProbeValue();
}

Tensor Row(std::vector<double> values, DType dtype = DType::kF32) {
  return {dtype, {static_cast<int64_t>(values.size())}, std::move(values)};
}

double Scalar(const Tensor& tensor, const std::string& reduction) {
  return Whole(tensor, reduction).scalar();
}

std::vector<double> Values(const v1::ProbeValue& value) {
  return {value.elements().values().begin(), value.elements().values().end()};
}

Tensor Random(std::mt19937* random, DType dtype) {
  Tensor tensor{dtype, {}, {}};
  const int rank = static_cast<int>((*random)() % 5);
  const uint64_t most = rank < 4 ? 17 : 7;
  for (int d = 0; d < rank; ++d) {
    tensor.dims.push_back(1 + static_cast<int64_t>((*random)() % most));
  }
  std::normal_distribution<double> normal(3, 2);
  for (int64_t i = 0; i < NumElements(tensor.dims); ++i) {
    const double v = normal(*random);
    switch (dtype) {
      case DType::kF32:
        tensor.values.push_back(static_cast<float>(v));
        break;
      case DType::kBF16:
        tensor.values.push_back(BF16ToF32(F32ToBF16(static_cast<float>(v))));
        break;
      case DType::kF16:
        tensor.values.push_back(F16ToF32(F32ToF16(static_cast<float>(v))));
        break;
      case DType::kBool:
        tensor.values.push_back(v > 3 ? 1 : 0);
        break;
      default:
        tensor.values.push_back(std::floor(std::fabs(v)));
    }
  }
  return tensor;
}

void ExpectSame(const v1::ProbeValue& a, const v1::ProbeValue& b, const std::string& what) {
  if (a.kind_case() != v1::ProbeValue::kScalar) {
    EXPECT_EQ(a.DebugString(), b.DebugString()) << what;
  } else if (std::isnan(b.scalar())) {
    EXPECT_TRUE(std::isnan(a.scalar())) << what;
  } else {
    EXPECT_NEAR(a.scalar(), b.scalar(), 1e-12 * std::fabs(b.scalar())) << what;
  }
}

TEST(ProbeReduce, AnyShardingGivesTheValueOfTheWholeTensor) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16,  DType::kI32,
                            DType::kI64, DType::kU8,   DType::kBool, DType::kI8};
    Tensor tensor = Random(&random, dtypes[round % 8]);
    for (const char* reduction :
         {"full", "norm", "mean", "std", "min", "max", "count_nan", "histogram(9)",
          "histogram(7, 1, 4)", "quantiles(0, 0.9, 0.3, 0.5, 1)", "sample(11)", "top_k(5)"}) {
      const std::vector<Region> regions = Sharding(tensor.dims, 6, &random);
      auto parts = PartsOf(tensor, reduction, regions, 1 + random() % 8);
      std::shuffle(parts.begin(), parts.end(), random);
      const auto value = Finish(Parsed(reduction), parts, false);
      ASSERT_TRUE(value.ok()) << value.status();
      ExpectSame(*value, Whole(tensor, reduction),
                 std::string(reduction) + " of " + ToString(TensorType{tensor.dtype, tensor.dims}));
    }
  }
}

// Numbers that the definitions in reduce.h give for one dimensional data, written plainly.
double ReferenceScalar(const std::string& reduction, const std::vector<double>& x) {
  long double sum = 0, squares = 0, deviations = 0;
  for (const double v : x) sum += v;
  for (const double v : x) squares += static_cast<long double>(v) * v;
  const auto n = static_cast<long double>(x.size());
  for (const double v : x) deviations += (v - sum / n) * (v - sum / n);
  if (reduction == "norm") return static_cast<double>(std::sqrt(squares));
  if (reduction == "mean") return static_cast<double>(sum / n);
  if (reduction == "min") return *std::min_element(x.begin(), x.end());
  if (reduction == "max") return *std::max_element(x.begin(), x.end());
  if (reduction == "count_nan") return 0;
  return x.size() < 2 ? kNan : static_cast<double>(std::sqrt(deviations / (n - 1)));
}

std::vector<int64_t> ReferenceHistogram(const std::vector<double>& x, double low, double high,
                                        int count) {
  std::vector<int64_t> counts(static_cast<size_t>(count));
  const auto end = [&](int i) { return i == count ? high : low + i * ((high - low) / count); };
  for (int i = 0; i < count; ++i) {
    counts[static_cast<size_t>(i)] = std::count_if(x.begin(), x.end(), [&](double v) {
      return v >= end(i) && (v < end(i + 1) || (i == count - 1 && v == high));
    });
  }
  return counts;
}

TEST(ProbeReduce, AnyShardingGivesWhatStraightforwardCalculationsGive) {
  std::mt19937 random(3);
  for (int round = 0; round < 64; ++round) {
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16,  DType::kI32,
                            DType::kI64, DType::kU8,   DType::kBool, DType::kI8};
    const Tensor tensor = Random(&random, dtypes[round % 8]);
    const std::vector<double>& x = tensor.values;
    SCOPED_TRACE(ToString(TensorType{tensor.dtype, tensor.dims}));
    const auto sharded = [&](const std::string& reduction) {
      const auto value = Finish(
          Parsed(reduction),
          PartsOf(tensor, reduction, Sharding(tensor.dims, 9, &random), 1 + random() % 5), false);
      EXPECT_TRUE(value.ok()) << value.status();
      return value.ok() ? *value : v1::ProbeValue();
    };
    EXPECT_EQ(sharded("full").tensor().data(), Stored(tensor.dtype, x));
    for (const char* reduction : {"norm", "mean", "std", "min", "max", "count_nan"}) {
      const double expected = ReferenceScalar(reduction, x);
      const double actual = sharded(reduction).scalar();
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(actual)) << reduction;
      } else {
        EXPECT_NEAR(actual, expected, 1e-11 * std::max(1.0, std::fabs(expected))) << reduction;
      }
    }
    std::vector<double> sorted = x;
    std::sort(sorted.begin(), sorted.end());
    const v1::Histogram bounded = sharded("histogram(5, 1, 4)").histogram();
    EXPECT_THAT(bounded.counts(), testing::ElementsAreArray(ReferenceHistogram(x, 1, 4, 5)));
    EXPECT_EQ(bounded.outside(),
              std::count_if(x.begin(), x.end(), [](double v) { return v < 1 || v > 4; }));
    const v1::Histogram h = sharded("histogram(6)").histogram();
    const double margin = sorted.front() == sorted.back() ? 0.5 : 0;
    EXPECT_EQ(h.low(), sorted.front() - margin);
    EXPECT_EQ(h.high(), sorted.back() + margin);
    EXPECT_THAT(h.counts(), testing::ElementsAreArray(ReferenceHistogram(x, h.low(), h.high(), 6)));
    EXPECT_EQ(h.outside(), 0);
    const double quantiles[] = {0.75, 0, 0.1, 1};
    const std::vector<double> found = Values(sharded("quantiles(0.75, 0, 0.1, 1)"));
    ASSERT_EQ(found.size(), 4);
    for (size_t i = 0; i < 4; ++i) {
      const double place = quantiles[i] * static_cast<double>(x.size() - 1);
      const double low = sorted[static_cast<size_t>(std::floor(place))];
      const double high = sorted[static_cast<size_t>(std::ceil(place))];
      EXPECT_NEAR(found[i], low + (high - low) * (place - std::floor(place)), 1e-12 * 100);
    }
    std::vector<int64_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
    });
    order.resize(std::min(order.size(), size_t{3}));
    const v1::ProbeValue top = sharded("top_k(3)");
    EXPECT_THAT(top.elements().indices(), testing::ElementsAreArray(order));
    const v1::ProbeValue sample = sharded("sample(7)");
    EXPECT_EQ(sample.elements().indices_size(), std::min(x.size(), size_t{7}));
    for (const v1::ProbeValue& some : {top, sample}) {
      for (int i = 0; i < some.elements().indices_size(); ++i) {
        EXPECT_EQ(x[static_cast<size_t>(some.elements().indices(i))], some.elements().values(i));
      }
    }
  }
}

// More elements than AddTop keeps between its selections, and ties.
TEST(ProbeReduce, TopOfManyElementsIsTheFirstOfEqualOnes) {
  std::mt19937 random(9);
  std::vector<double> values(20000);
  for (double& v : values) v = static_cast<double>(random() % 50);
  values[17000] = kNan;
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return std::isnan(x) != std::isnan(y) ? std::isnan(x) : x > y;
  });
  order.resize(500);
  EXPECT_THAT(Whole(Row(values), "top_k(500)").elements().indices(),
              testing::ElementsAreArray(order));
}

TEST(ProbeReduce, MessagesThatContradictThemselvesAreRefused) {
  const Tensor tensor = Row({1, 2, 3});
  for (const char* reduction : {"top_k(2)", "sample(2)", "quantiles(0.5)"}) {
    auto parts = PartsOf(tensor, reduction, {Region::Whole(tensor.dims)}, 1, true);
    parts[0].mutable_elements()->add_indices(7);
    EXPECT_FALSE(Finish(Parsed(reduction), parts, false).ok()) << reduction;
  }
  auto parts = PartsOf(tensor, "quantiles(0.5)", {Region::Whole(tensor.dims)}, 1, true);
  EXPECT_FALSE(Finish(Parsed("quantiles(0.5, 1)"), parts, false).ok());
  parts = PartsOf(tensor, "full", {Region::Whole(tensor.dims)}, 1);
  parts[0].mutable_boxes(0)->mutable_values()->mutable_data()->pop_back();
  EXPECT_FALSE(Finish(Parsed("full"), parts, false).ok());
}

// What torch 2 and numpy 2 return for the same elements.
TEST(ProbeReduce, DefinitionsAreThoseOfTorchAndNumpy) {
  const Tensor row = Row({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(Scalar(row, "std"), 1.2909944487358056);  // torch.std, unbiased
  EXPECT_THAT(Values(Whole(row, "quantiles")), ElementsAre(1, 1.75, 2.5, 3.25, 4));
  EXPECT_THAT(Values(Whole(row, "quantiles(0.1)")), ElementsAre(testing::DoubleEq(1.3)));
  EXPECT_THAT(Whole(row, "histogram(3)").histogram().counts(), ElementsAre(1, 1, 2));
  // numpy.histogram([2, 2], 4): ends 1.5 and 2.5.
  const v1::Histogram same = Whole(Row({2, 2}), "histogram(4)").histogram();
  EXPECT_EQ(same.low(), 1.5);
  EXPECT_EQ(same.high(), 2.5);
  EXPECT_THAT(same.counts(), ElementsAre(0, 0, 2, 0));
  // Whole numbers at the ends of ranges, where i / 49 * 49 is now and then less than i.
  std::vector<double> ends(49);
  std::iota(ends.begin(), ends.end(), 0);
  EXPECT_THAT(Whole(Row(ends), "histogram(49, 0, 49)").histogram().counts(), testing::Each(1));
  const v1::ProbeValue top = Whole(Row({5, 7, 7, 1}), "top_k(3)");
  EXPECT_THAT(top.elements().indices(), ElementsAre(1, 2, 0));
}

TEST(ProbeReduce, NotANumberAndInfinity) {
  const Tensor nan = Row({1, kNan, 3});
  for (const char* reduction : {"norm", "mean", "std", "min", "max"}) {
    EXPECT_TRUE(std::isnan(Scalar(nan, reduction))) << reduction;
  }
  EXPECT_EQ(Scalar(nan, "count_nan"), 1);
  EXPECT_TRUE(std::isnan(Values(Whole(nan, "quantiles(0.5)"))[0]));
  EXPECT_EQ(Whole(nan, "histogram(2)").histogram().outside(), 1);
  EXPECT_THAT(Whole(nan, "top_k(2)").elements().indices(), ElementsAre(1, 2));
  const Tensor infinite = Row({1, kInf, 3});
  EXPECT_EQ(Scalar(infinite, "norm"), kInf);
  EXPECT_EQ(Scalar(infinite, "mean"), kInf);
  EXPECT_TRUE(std::isnan(Scalar(infinite, "std")));
  EXPECT_EQ(Scalar(infinite, "max"), kInf);
  EXPECT_TRUE(std::isnan(Scalar(Row({-kInf, kInf}), "mean")));
  const v1::Histogram h = Whole(infinite, "histogram(2)").histogram();
  EXPECT_EQ(h.high(), 3);
  EXPECT_EQ(h.outside(), 1);
  // An infinity in one part only, beside finite ones.
  Tensor wide = Row(std::vector<double>(5000, 1));
  wide.values[10] = kInf;
  EXPECT_EQ(Scalar(wide, "mean"), kInf);
}

TEST(ProbeReduce, ScalarsAndEmptyTensors) {
  const Tensor scalar{DType::kF32, {}, {-2.5}};
  EXPECT_EQ(Scalar(scalar, "norm"), 2.5);
  EXPECT_TRUE(std::isnan(Scalar(scalar, "std")));
  EXPECT_THAT(Whole(scalar, "sample(4)").elements().indices(), ElementsAre(0));
  EXPECT_EQ(Whole(scalar, "full").tensor().dims_size(), 0);
  const Tensor empty{DType::kF32, {3, 0}, {}};
  EXPECT_EQ(Scalar(empty, "norm"), 0);
  EXPECT_EQ(Scalar(empty, "count_nan"), 0);
  for (const char* reduction : {"mean", "std", "min", "max"}) {
    EXPECT_TRUE(std::isnan(Scalar(empty, reduction))) << reduction;
  }
  EXPECT_THAT(Whole(empty, "histogram(2)").histogram().counts(), ElementsAre(0, 0));
  EXPECT_TRUE(std::isnan(Values(Whole(empty, "quantiles(1)"))[0]));
  EXPECT_EQ(Whole(empty, "top_k(2)").elements().values_size(), 0);
  // No rank adds anything.
  PartReducer reducer(Parsed("mean"), DType::kF32, {0}, false, false);
  const auto value = Finish(Parsed("mean"), {reducer.Take(), reducer.Take()}, false);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_TRUE(std::isnan(value->scalar()));
}

TEST(ProbeReduce, AddendsAreAddedUpBeforeTheyAreReduced) {
  const auto part = [](const std::string& reduction, std::vector<float> values, int64_t offset) {
    PartReducer reducer(Parsed(reduction), DType::kF32, {4}, /*adds_up=*/true, false);
    TensorView view{values.data(),
                    {DType::kF32, {static_cast<int64_t>(values.size())}, {offset}, {4}}};
    EXPECT_TRUE(reducer.Add(view).ok());
    return reducer.Take();
  };
  // 1, -1, 2, 3
  for (const auto& [reduction, expected] : std::vector<std::pair<std::string, double>>{
           {"norm", std::sqrt(15.0)}, {"max", 3}, {"min", -1}, {"mean", 1.25}}) {
    const auto value = Finish(Parsed(reduction),
                              {part(reduction, {1, -2, 1, 1}, 0), part(reduction, {2, 3}, 1),
                               part(reduction, {-1, -2, 2}, 1)},
                              true);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_NEAR(value->scalar(), expected, 1e-12);
  }
  const auto hole =
      Finish(Parsed("norm"), {part("norm", {1, 2, 3}, 0), part("norm", {1}, 0)}, true);
  EXPECT_THAT(hole.status().message(), HasSubstr("none has element 3"));
}

TEST(ProbeReduce, PartsThatDoNotCoverTheTensorOnceAreRefused) {
  const Tensor tensor{DType::kF32, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};
  const Region top{{0, 0}, {2, 2}}, bottom{{2, 0}, {2, 2}}, middle{{1, 0}, {2, 2}};
  for (const char* reduction : {"full", "norm", "std", "max", "histogram(2)", "histogram(2, 0, 9)",
                                "quantiles", "sample(2)", "top_k(2)"}) {
    const auto finish = [&](const std::vector<Region>& regions) {
      return std::string(Finish(Parsed(reduction), PartsOf(tensor, reduction, regions, 2), false)
                             .status()
                             .message());
    };
    EXPECT_EQ(finish({top, bottom}), "");
    EXPECT_THAT(finish({top}), HasSubstr("4 of the tensor's 8 elements")) << reduction;
    EXPECT_THAT(finish({top, middle}), HasSubstr("[2, 2] at [0, 0] and [2, 2] at [1, 0] overlap"));
    EXPECT_THAT(finish({top, bottom, middle}), HasSubstr("more elements than the tensor's 8"));
    EXPECT_FALSE(Finish(Parsed(reduction), {}, false).ok());
  }
  PartReducer reducer(Parsed("norm"), DType::kF32, {4}, false, false);
  float data[4] = {};
  EXPECT_FALSE(reducer.Add({data, {DType::kF32, {2}, {3}, {4}}}).ok());
  EXPECT_FALSE(reducer.Add({data, {DType::kF16, {2}, {0}, {4}}}).ok());
  EXPECT_FALSE(reducer.Add({data, {DType::kF32, {2, 2}, {0, 0}, {4}}}).ok());
  EXPECT_FALSE(reducer.Add({nullptr, {DType::kF32, {4}, {0}, {4}}}).ok());
}

TEST(ProbeReduce, ConfusionCountsLabelsByPredictedClass) {
  std::mt19937 random(5);
  Tensor logits{DType::kF32, {6, 5, 4}, {}};
  Tensor labels{DType::kI64, {6, 5}, {}};
  std::vector<int64_t> expected(16);
  for (int row = 0; row < 30; ++row) {
    int best = 0;
    for (int c = 0; c < 4; ++c) {
      logits.values.push_back(static_cast<double>(random() % 7));  // ties
      const auto at = static_cast<size_t>(row * 4);
      if (logits.values[at + static_cast<size_t>(c)] >
          logits.values[at + static_cast<size_t>(best)])
        best = c;
    }
    const int label = static_cast<int>(random() % 4) - (row == 3 ? 6 : 0);  // less than 0: none
    labels.values.push_back(label);
    if (label >= 0) ++expected[static_cast<size_t>(label * 4 + best)];
  }
  for (int round = 0; round < 20; ++round) {
    // Rows split, and now and then the classes, too.
    const auto value =
        FinishConfusion(PartsOf(logits, "confusion", Sharding(logits.dims, 5, &random), 3),
                        PartsOf(labels, "confusion", Sharding(labels.dims, 3, &random), 2));
    ASSERT_TRUE(value.ok()) << value.status();
    std::vector<int64_t> counts(16);
    ASSERT_EQ(value->tensor().data().size(), 128);
    std::memcpy(counts.data(), value->tensor().data().data(), 128);
    EXPECT_EQ(counts, expected);
  }
  labels.values[11] = 4;
  EXPECT_THAT(FinishConfusion(PartsOf(logits, "confusion", {Region::Whole(logits.dims)}, 1),
                              PartsOf(labels, "confusion", {Region::Whole(labels.dims)}, 1))
                  .status()
                  .message(),
              HasSubstr("there is a label 4, but the logits have 4 classes, 0 to 3"));
  labels.dims = {5, 6};
  const std::vector<Region> whole = {Region::Whole(labels.dims)};
  EXPECT_THAT(FinishConfusion(PartsOf(logits, "confusion", {Region::Whole(logits.dims)}, 1),
                              PartsOf(labels, "confusion", whole, 1))
                  .status()
                  .message(),
              HasSubstr("labels are i64[5, 6]; expected whole numbers [6, 5]"));
}

TEST(ProbeReduce, SamplesAreSpreadAndDistinct) {
  std::vector<double> values(1000);
  std::iota(values.begin(), values.end(), 0);
  const v1::ProbeValue value = Whole(Row(values), "sample(100)");
  ASSERT_EQ(value.elements().indices_size(), 100);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(value.elements().indices(i) / 10, i);
    EXPECT_EQ(value.elements().values(i), value.elements().indices(i));
  }
}

}  // namespace
}  // namespace espalier
