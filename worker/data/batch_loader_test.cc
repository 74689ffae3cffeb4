#include "worker/data/batch_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "storage/example_weights.h"
#include "worker/data/permutation.h"

namespace espalier {
namespace {

TEST(ShuffledIndex, IsAPermutationThatDependsOnSeedAndEpoch) {
  for (int64_t size : {1, 2, 3, 7, 64, 1000, 1797}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t index = ShuffledIndex(3, 5, size, i);
      ASSERT_GE(index, 0);
      ASSERT_LT(index, size);
      seen.insert(index);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
  }
  std::vector<int64_t> a, b, c;
  for (int64_t i = 0; i < 1000; ++i) {
    a.push_back(ShuffledIndex(3, 5, 1000, i));
    b.push_back(ShuffledIndex(3, 6, 1000, i));
    c.push_back(ShuffledIndex(4, 5, 1000, i));
  }
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
  int fixed = 0;  // a random permutation has one on average
  for (int64_t i = 0; i < 1000; ++i) fixed += a[i] == i;
  EXPECT_LT(fixed, 10);
}

std::shared_ptr<const Dataset> Text(int bytes, int64_t sequence, double holdout = 0) {
  std::string text(bytes, ' ');
  for (int i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  return *Dataset::FromText(text, sequence, holdout);
}

std::vector<int32_t> Read(BatchLoader& loader, const std::string& column, const TensorSpec& spec,
                          int64_t step) {
  std::vector<int32_t> values(static_cast<size_t>(spec.num_elements()));
  absl::Status s = loader.Load(column, spec, step, values.data());
  EXPECT_TRUE(s.ok()) << s;
  return values;
}

TEST(BatchLoader, BatchDependsOnStepOnlyAndRanksReadTheirPart) {
  auto dataset = Text(2000, 16);
  const TensorSpec whole = TensorSpec::Whole({DType::kI32, {4, 16}});
  TensorSpec part = whole;  // rows 2 and 3, columns 8 to 15
  part.dims = {2, 8};
  part.offset = {2, 8};
  auto make = [&](bool prefetch) {
    BatchLoaderOptions options;
    options.batch_size = 4;
    options.seed = 11;
    options.prefetch = prefetch;
    auto loader = *BatchLoader::Create(dataset, options);
    EXPECT_TRUE(loader->Prepare("tokens", whole).ok());
    EXPECT_TRUE(loader->Prepare("targets", whole).ok());
    EXPECT_TRUE(loader->Prepare("tokens", part).ok());
    return loader;
  };
  auto forward = make(true), backward = make(false);
  std::vector<std::vector<int32_t>> tokens, targets, parts;
  const int64_t steps = 70;  // more than two epochs
  ASSERT_LT(2 * forward->steps_per_epoch(), steps);
  for (int64_t step = 0; step < steps; ++step) {
    tokens.push_back(Read(*forward, "tokens", whole, step));
    targets.push_back(Read(*forward, "targets", whole, step));
    parts.push_back(Read(*forward, "tokens", part, step));
  }
  for (int64_t step = steps - 1; step >= 0; --step) {
    EXPECT_EQ(Read(*backward, "tokens", whole, step), tokens[step]);
    EXPECT_EQ(Read(*backward, "targets", whole, step), targets[step]);
    for (int r = 0; r < 2; ++r) {
      for (int c = 0; c < 8; ++c) {
        EXPECT_EQ(parts[step][r * 8 + c], tokens[step][(r + 2) * 16 + c + 8]);
      }
    }
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c + 1 < 16; ++c)
        EXPECT_EQ(targets[step][r * 16 + c], tokens[step][r * 16 + c + 1]);
    }
  }
  // Out of order with prefetching on, too.
  auto random = make(true);
  for (int64_t step : {5, 3, 4, 60, 61, 2, 8, 7, 6}) {
    EXPECT_EQ(Read(*random, "tokens", whole, step), tokens[step]);
  }
}

TEST(BatchLoader, EpochVisitsEachTrainingExampleOnce) {
  auto dataset = Text(16 * 40 + 1, 16, 0.25);
  ASSERT_EQ(dataset->training_examples(), 30);
  BatchLoaderOptions options;
  options.batch_size = 5;
  auto loader = *BatchLoader::Create(dataset, options);
  EXPECT_EQ(loader->steps_per_epoch(), 6);
  std::multiset<int64_t> seen;
  for (int64_t step = 6; step < 12; ++step) {
    for (int64_t row = 0; row < 5; ++row) seen.insert(loader->ExampleAt(step, row));
  }
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(seen.count(i), 1u);
  options.holdout = true;
  auto holdout = *BatchLoader::Create(dataset, options);
  EXPECT_EQ(holdout->steps_per_epoch(), 2);
  EXPECT_EQ(holdout->ExampleAt(1, 4), 39);
}

// Labels of ten examples, two each; the last four examples are held out.
std::shared_ptr<const Dataset> Labelled() {
  Column labels{.name = "y", .example = {DType::kI32, {2}}};
  const std::vector<int32_t> values = {1, 2,    -100, 4, 5, 6, -100, -100, 1, 1,
                                       2, -100, 3,    3, 4, 4, -100, 5,    6, 6};
  labels.data.resize(values.size() * sizeof(int32_t));
  std::memcpy(labels.data.data(), values.data(), labels.data.size());
  return *Dataset::FromColumns({labels}, 0.4);
}

std::vector<float> Weights(BatchLoader& loader, const ExampleWeightsColumn& column,
                           const TensorSpec& spec, int64_t step) {
  std::vector<float> values(static_cast<size_t>(spec.num_elements()));
  EXPECT_EQ(loader.Load(column.Name(), spec, step, values.data()), absl::OkStatus());
  return values;
}

TEST(BatchLoader, WeightsMakeTheMeanOfABatchOneOverLabelsThatCount) {
  BatchLoaderOptions options{.batch_size = 3, .shuffle = false};
  auto loader = *BatchLoader::Create(Labelled(), options);
  const ExampleWeightsColumn counted{"y", -100}, all;
  const TensorSpec whole = TensorSpec::Whole({DType::kF32, {3}});
  TensorSpec part = whole;
  part.dims = {1};
  part.offset = {2};
  for (const auto& [column, spec] :
       {std::pair(counted, whole), std::pair(counted, part), std::pair(all, whole)}) {
    ASSERT_EQ(loader->Prepare(column.Name(), spec), absl::OkStatus());
  }
  // Six labels, of which five and three count.
  EXPECT_EQ(Weights(*loader, counted, whole, 0), std::vector<float>(3, 6.0f / 5));
  EXPECT_EQ(Weights(*loader, counted, whole, 1), std::vector<float>(3, 6.0f / 3));
  EXPECT_EQ(Weights(*loader, counted, part, 1), std::vector<float>(1, 6.0f / 3));
  EXPECT_EQ(Weights(*loader, all, whole, 1), std::vector<float>(3, 1.0f));
}

TEST(BatchLoader, PaddedHoldoutWeighsEachHeldOutLabelOnce) {
  BatchLoaderOptions options{.batch_size = 3, .holdout = true, .pad_holdout = true};
  auto loader = *BatchLoader::Create(Labelled(), options);
  ASSERT_EQ(loader->steps_per_epoch(), 2);
  const ExampleWeightsColumn counted{"y", -100}, all;
  const TensorSpec whole = TensorSpec::Whole({DType::kF32, {3}});
  ASSERT_EQ(loader->Prepare(counted.Name(), whole), absl::OkStatus());
  ASSERT_EQ(loader->Prepare(all.Name(), whole), absl::OkStatus());
  // Two batches of six labels, of which seven count.
  const float w = 12.0f / 7;
  EXPECT_EQ(Weights(*loader, counted, whole, 0), (std::vector<float>{w, w, w}));
  EXPECT_EQ(Weights(*loader, counted, whole, 1), (std::vector<float>{w, 0, 0}));
  EXPECT_EQ(Weights(*loader, all, whole, 1), (std::vector<float>{6.0f / 4, 0, 0}));
  EXPECT_EQ(loader->ExampleAt(1, 0), 9);
  EXPECT_EQ(loader->ExampleAt(1, 1), 6);  // padding
  options.pad_holdout = false;
  EXPECT_EQ((*BatchLoader::Create(Labelled(), options))->steps_per_epoch(), 1);
}

// With them (1 / (B * P)) * sum(weight * class weight * value) is the mean over the class weights.
TEST(BatchLoader, LabelsCountAsTheirClassesWeigh) {
  ExampleWeightsColumn weighted{"y", -100, {9, 0.5, 2, 0, 1, 4, 0.25}};
  const auto again = ExampleWeightsColumn::Parse(weighted.Name());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->class_weights, weighted.class_weights);
  EXPECT_EQ(again->labels, "y");
  EXPECT_EQ(again->ignore_index, -100);
  const TensorSpec whole = TensorSpec::Whole({DType::kF32, {3}});
  BatchLoaderOptions options{.batch_size = 3, .shuffle = false};
  auto loader = *BatchLoader::Create(Labelled(), options);
  ASSERT_EQ(loader->Prepare(weighted.Name(), whole), absl::OkStatus());
  // 1 2 | -100 4 | 5 6, and -100 -100 | 1 1 | 2 -100.
  EXPECT_EQ(Weights(*loader, weighted, whole, 0), std::vector<float>(3, 6.0f / 7.75f));
  EXPECT_EQ(Weights(*loader, weighted, whole, 1), std::vector<float>(3, 6.0f / 3));
  options.holdout = options.pad_holdout = true;
  auto held_out = *BatchLoader::Create(Labelled(), options);
  ASSERT_EQ(held_out->Prepare(weighted.Name(), whole), absl::OkStatus());
  // Two batches of six labels: 3 3 | 4 4 | -100 5, and 6 6.
  const float w = 12.0f / 6.5f;
  EXPECT_EQ(Weights(*held_out, weighted, whole, 0), (std::vector<float>{w, w, w}));
  EXPECT_EQ(Weights(*held_out, weighted, whole, 1), (std::vector<float>{w, 0, 0}));
  // Labels that are no class are refused by the loss.
  weighted.class_weights.resize(3);
  auto few = *BatchLoader::Create(Labelled(), {.batch_size = 3, .shuffle = false});
  ASSERT_EQ(few->Prepare(weighted.Name(), whole), absl::OkStatus());
  EXPECT_EQ(Weights(*few, weighted, whole, 0), std::vector<float>(3, 6.0f / 2.5f));
}

TEST(BatchLoader, BatchWithoutLabelsThatCountWeighsNothing) {
  Column labels{.name = "y", .example = {DType::kI32, {}}, .data = std::vector<char>(16, '\xff')};
  auto loader = *BatchLoader::Create(*Dataset::FromColumns({labels}, 0), {.batch_size = 4});
  const ExampleWeightsColumn column{"y", -1};
  const TensorSpec whole = TensorSpec::Whole({DType::kF32, {4}});
  ASSERT_EQ(loader->Prepare(column.Name(), whole), absl::OkStatus());
  EXPECT_EQ(Weights(*loader, column, whole, 0), std::vector<float>(4, 0.0f));
}

TEST(BatchLoader, WithoutShufflingEveryEpochHasTheExamplesInOrder) {
  auto loader = *BatchLoader::Create(Text(16 * 10 + 1, 16), {.batch_size = 5, .shuffle = false});
  for (int64_t step = 0; step < 4; ++step) {
    for (int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(loader->ExampleAt(step, row), (step % 2) * 5 + row);
    }
  }
}

TEST(BatchLoader, GoesThroughGivenRows) {
  auto dataset = Text(2000, 16, 0.5);
  const TensorSpec whole = TensorSpec::Whole({DType::kI32, {4, 16}});
  BatchLoaderOptions options;
  options.batch_size = 4;
  options.given_rows = true;
  options.prefetch = false;
  auto loader = BatchLoader::Create(dataset, options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  ASSERT_TRUE((*loader)->Prepare("tokens", whole).ok());
  const std::vector<int64_t> rows = {120, 3, 3, 0, 7, 8, 9, 121};  // held-out ones, too
  ASSERT_TRUE((*loader)->SetRows(rows).ok());
  EXPECT_EQ((*loader)->steps_per_epoch(), 2);
  const Column& tokens = **dataset->Find("tokens");
  for (int64_t step : {1, 0}) {
    const std::vector<int32_t> batch = Read(**loader, "tokens", whole, step);
    for (int64_t row = 0; row < 4; ++row) {
      std::vector<int32_t> example(16);
      ASSERT_TRUE(dataset
                      ->Read(tokens, rows[step * 4 + row], {0}, {16}, DType::kI32,
                             reinterpret_cast<char*>(example.data()))
                      .ok());
      EXPECT_TRUE(std::equal(example.begin(), example.end(), batch.begin() + row * 16)) << row;
    }
  }
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{}, {1, 2, 3}, {0, 1, 2, dataset->examples()}, {-1, 0, 1, 2}}) {
    EXPECT_EQ((*loader)->SetRows(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(BatchLoader, PaddedRowsWeighEachExampleOnce) {
  BatchLoaderOptions options;
  options.batch_size = 4;
  options.given_rows = options.holdout = options.pad_holdout = true;
  options.prefetch = false;
  auto loader = BatchLoader::Create(Text(2000, 16), options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  const TensorSpec spec = TensorSpec::Whole({DType::kF32, {4}});
  const std::string column = ExampleWeightsColumn().Name();
  ASSERT_TRUE((*loader)->Prepare(column, spec).ok());
  ASSERT_TRUE((*loader)->SetRows({5, 6, 7, 8, 9, 10}).ok());
  double sum = 0;
  for (int64_t step : {0, 1}) {
    float weights[4];
    ASSERT_TRUE((*loader)->Load(column, spec, step, weights).ok());
    for (float weight : weights) sum += weight / 4 / 2;  // means of batches, then over them
    EXPECT_EQ(weights[2] + weights[3] == 0, step == 1);
  }
  EXPECT_NEAR(sum, 1, 1e-6);
}

TEST(BatchLoader, SaysWhatDoesNotFit) {
  auto dataset = Text(200, 16);
  BatchLoaderOptions options;
  options.batch_size = 1000;
  EXPECT_NE(
      std::string(BatchLoader::Create(dataset, options).status().message()).find("12 examples"),
      std::string::npos);
  options.batch_size = 4;
  auto loader = *BatchLoader::Create(dataset, options);
  auto expect = [&](const std::string& column, TensorType type, const std::string& what) {
    const absl::Status s = loader->Prepare(column, TensorSpec::Whole(type));
    EXPECT_NE(std::string(s.message()).find(what), std::string::npos) << s;
  };
  expect("labels", {DType::kI32, {4, 16}}, "no column 'labels'; it has 'tokens', 'targets'");
  expect("tokens", {DType::kI32, {4, 8}}, "shape [16], the model wants [8]");
  expect("tokens", {DType::kI32, {4}}, "shape [16]");
  expect("tokens", {DType::kI32, {8, 16}}, "batches of 8");
  EXPECT_FALSE(Dataset::FromText("short", 16, 0).ok());
  EXPECT_FALSE(Dataset::FromText("long enough", 2, 1.5).ok());
}

}  // namespace
}  // namespace espalier
