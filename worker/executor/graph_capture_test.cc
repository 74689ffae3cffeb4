#include "worker/executor/graph_capture.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace espalier {
namespace {

// A fake device whose work is lines of text, run or captured.
class FakeGraphCapturer : public GraphCapturer {
 public:
  absl::Status BeginCapture() override {
    EXPECT_FALSE(capturing_);
    capturing_ = true;
    captured_.clear();
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> EndCapture() override {
    EXPECT_TRUE(capturing_);
    capturing_ = false;
    if (!fails.ok()) return fails;
    kept[++last_] = captured_;
    return last_;
  }
  absl::Status Launch(uint64_t graph) override {
    ran += kept.at(graph);
    return absl::OkStatus();
  }
  void Destroy(uint64_t graph) override { EXPECT_EQ(kept.erase(graph), 1u); }

  void Enqueue(const std::string& line) { (capturing_ ? captured_ : ran) += line; }

  std::string ran;
  std::map<uint64_t, std::string> kept;
  absl::Status fails;

 private:
  bool capturing_ = false;
  std::string captured_;
  uint64_t last_ = 0;
};

class StepGraphCacheTest : public ::testing::Test {
 protected:
  // Returns what a step of these sizes ran; notes whether it was enqueued again.
  std::string Step(int64_t rows, int64_t output_rows = 1) {
    device_.ran.clear();
    enqueued_ = false;
    status_ = steps_.Run({rows, output_rows}, [&] {
      enqueued_ = true;
      device_.Enqueue(std::to_string(rows) + "/" + std::to_string(output_rows));
      return refuses_;
    });
    return device_.ran;
  }

  FakeGraphCapturer device_;
  StepGraphCache steps_{&device_};
  bool enqueued_ = false;
  absl::Status status_, refuses_;
};

TEST_F(StepGraphCacheTest, StepIsCapturedOnSecondRunAndLaunchedAfterwards) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Step(3), "3/1");
    EXPECT_EQ(enqueued_, i < 2);
    EXPECT_EQ(Step(3, 2), "3/2") << "the sizes of its outputs are part of a step's sizes";
    EXPECT_EQ(enqueued_, i < 2);
  }
  EXPECT_EQ(device_.kept.size(), 2u);
}

TEST_F(StepGraphCacheTest, LongStepsAreNotCaptured) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Step(StepGraphCache::kMaxRows + 1),
              std::to_string(StepGraphCache::kMaxRows + 1) + "/1");
    EXPECT_TRUE(enqueued_);
  }
  EXPECT_TRUE(device_.kept.empty());
}

TEST_F(StepGraphCacheTest, EvictsLeastRecentlyUsedGraph) {
  for (int i = 0; i < 3; ++i) Step(1);
  const int64_t many = StepGraphCache::kMaxGraphs;
  for (int64_t outputs = 2; outputs <= many + 1; ++outputs) {
    for (int i = 0; i < 2; ++i) Step(2, outputs);
    Step(1);
    EXPECT_FALSE(enqueued_);
  }
  EXPECT_EQ(device_.kept.size(), StepGraphCache::kMaxGraphs);
  EXPECT_EQ(Step(2, many + 1), "2/" + std::to_string(many + 1));
  EXPECT_FALSE(enqueued_);
  EXPECT_EQ(Step(2, 2), "2/2");
  EXPECT_TRUE(enqueued_) << "was dropped";
}

TEST_F(StepGraphCacheTest, ErrorEndsTheStepAndDropsItsGraph) {
  Step(1);
  refuses_ = absl::InvalidArgumentError("an id is out of range");
  EXPECT_EQ(Step(1), "");
  EXPECT_EQ(status_, refuses_);
  EXPECT_TRUE(device_.kept.empty());
  refuses_ = absl::OkStatus();
  EXPECT_EQ(Step(1), "1/1");
  device_.fails = absl::InternalError("capture failed");
  Step(1);
  EXPECT_EQ(status_, device_.fails);
  device_.fails = absl::OkStatus();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step(1), "1/1");
  EXPECT_FALSE(enqueued_);
}

TEST(StepGraphCache, DestroysItsGraphs) {
  FakeGraphCapturer device;
  {
    StepGraphCache steps(&device);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(steps
                      .Run({1, 1},
                           [&] {
                             device.Enqueue("x");
                             return absl::OkStatus();
                           })
                      .ok());
    }
    EXPECT_EQ(device.kept.size(), 1u);
  }
  EXPECT_TRUE(device.kept.empty());
}

}  // namespace
}  // namespace espalier
