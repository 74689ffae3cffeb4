#include "server/jobs/example_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "base/testing/faulty_file_system.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class ExampleStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = absl::StrCat(testing::TempDir(), "/example_stream_", test, "/job/stream");
    std::filesystem::remove_all(folder_);
  }

  ExampleStreamOptions Options(int64_t backlog = 100) {
    ExampleStreamOptions options;
    options.files = &files_;
    options.clock = &clock_;
    options.folder = folder_;
    options.backlog = backlog;
    options.max_steps = 1000;
    return options;
  }

  // What a step's examples are does not matter here.
  static PushedBatches Batches(int64_t first, int64_t steps, bool end = false) {
    return {first, steps, absl::StrCat("examples ", first, " ", steps), end};
  }

  static void Take(ExampleStream& stream, const PushedBatches& batches) {
    const absl::StatusOr<bool> taken = stream.Push(batches, absl::ZeroDuration());
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_TRUE(*taken);
  }

  std::string folder_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  FakeClock clock_;
};

TEST_F(ExampleStreamTest, KeepsWhatWasPushedByStepAcrossARestart) {
  {
    ExampleStream stream(Options());
    Take(stream, Batches(0, 3));
    Take(stream, Batches(3, 1));
    Take(stream, Batches(4, 5, true));
    EXPECT_EQ(stream.steps_pushed(), 9);
  }
  const ExampleStream again(Options());
  ASSERT_TRUE(again.status().ok()) << again.status();
  EXPECT_EQ(again.steps_pushed(), 9);
  EXPECT_TRUE(again.ended());
  const std::vector<ExampleStream::Part> parts = again.PartsFrom(3);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].first, 3);
  EXPECT_EQ(parts[0].end, 4);
  EXPECT_EQ(*ReadWholeFile(files_, parts[1].path, 100), "examples 4 5");
  EXPECT_EQ(again.PartsFrom(8).size(), 1u) << "in the middle of a part";
  EXPECT_TRUE(again.PartsFrom(9).empty());
}

TEST_F(ExampleStreamTest, ACallThatIsRepeatedChangesNothing) {
  ExampleStream stream(Options());
  Take(stream, Batches(0, 3));
  Take(stream, Batches(3, 2));
  Take(stream, Batches(3, 2));
  Take(stream, Batches(0, 3));
  Take(stream, Batches(3, 2, true));  // of which only the end is new
  Take(stream, Batches(3, 2, true));
  Take(stream, Batches(5, 0, true));
  EXPECT_EQ(stream.steps_pushed(), 5);
  EXPECT_EQ(stream.PartsFrom(0).size(), 2u);
  EXPECT_TRUE(stream.ended());
}

TEST_F(ExampleStreamTest, OtherExamplesOfAStepThatWasPushedAreRefused) {
  ExampleStream stream(Options());
  Take(stream, Batches(0, 3));
  PushedBatches other = Batches(0, 3);
  other.npz += "!";
  for (const PushedBatches& batches : {other, Batches(0, 2), Batches(0, 4), Batches(1, 2)}) {
    const absl::Status status = stream.Push(batches, absl::ZeroDuration()).status();
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the next to push are those of step 3"));
  }
  const absl::Status gap = stream.Push(Batches(4, 1), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsOutOfRange(gap)) << gap;
  EXPECT_THAT(std::string(gap.message()), HasSubstr("those of step 3"));
  EXPECT_EQ(stream.steps_pushed(), 3);
}

TEST_F(ExampleStreamTest, AFullBacklogTakesNothingUntilStepsAreDone) {
  ExampleStream stream(Options(/*backlog=*/4));
  Take(stream, Batches(0, 4));
  EXPECT_FALSE(*stream.Push(Batches(4, 2), absl::ZeroDuration()));
  stream.SetStepsDone(1);
  EXPECT_FALSE(*stream.Push(Batches(4, 2), absl::Milliseconds(10))) << "3 wait, 2 more are 5";
  EXPECT_EQ(stream.steps_pushed(), 4);
  std::thread trainer([&] {
    absl::SleepFor(absl::Milliseconds(50));
    stream.SetStepsDone(2);
  });
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(*stream.Push(Batches(4, 2), absl::Seconds(60)));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30)) << "it did not wait to the end";
  trainer.join();
  EXPECT_EQ(stream.steps_pushed(), 6);
  const absl::Status large = stream.Push(Batches(6, 5), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large)) << "it would never fit: " << large;
}

TEST_F(ExampleStreamTest, NothingFollowsTheEndOrTheLastStep) {
  ExampleStreamOptions options = Options();
  options.max_steps = 5;
  ExampleStream stream(options);
  Take(stream, Batches(0, 3));
  const absl::Status beyond = stream.Push(Batches(3, 3), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("a call can bring 2, not 3"));
  Take(stream, Batches(3, 0, true));
  const absl::Status after = stream.Push(Batches(3, 1), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(after)) << after;
}

TEST_F(ExampleStreamTest, AFullDiskLosesNothing) {
  ExampleStream stream(Options());
  Take(stream, Batches(0, 3));
  files_.set_free_bytes(10);
  const absl::Status full = stream.Push(Batches(3, 2), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(stream.steps_pushed(), 3);
  files_.set_free_bytes(1 << 20);
  Take(stream, Batches(3, 4));  // not the same ones
  const ExampleStream again(Options());
  ASSERT_TRUE(again.status().ok()) << again.status();
  EXPECT_EQ(again.steps_pushed(), 7);
}

TEST_F(ExampleStreamTest, MissingExamplesAreFound) {
  {
    ExampleStream stream(Options());
    for (int64_t step = 0; step < 6; step += 2) Take(stream, Batches(step, 2));
    std::filesystem::remove(stream.PartsFrom(2)[0].path);
  }
  std::ofstream(folder_ + "/000000000006-000000000008.npz.tmp") << "of a crash";
  ExampleStream again(Options());
  EXPECT_TRUE(absl::IsDataLoss(again.status())) << again.status();
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("steps 2 to 3"));
  EXPECT_EQ(again.Push(Batches(2, 2), absl::ZeroDuration()).status(), again.status());
}

TEST_F(ExampleStreamTest, TellsHowLongNobodyPushed) {
  ExampleStream stream(Options());
  const absl::Time begin = clock_.Now();
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(stream.SilentSince(begin), absl::Seconds(5));
  Take(stream, Batches(0, 1));
  clock_.Advance(absl::Seconds(7));
  EXPECT_EQ(stream.SilentSince(begin), absl::Seconds(7));
  EXPECT_EQ(stream.SilentSince(clock_.Now()), absl::ZeroDuration());
}

TEST_F(ExampleStreamTest, AfterRemovalNothingIsLeftAndNothingIsTaken) {
  ExampleStream stream(Options());
  Take(stream, Batches(0, 2));
  stream.Remove();
  EXPECT_FALSE(std::filesystem::exists(folder_));
  const absl::Status late = stream.Push(Batches(2, 2), absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace espalier
