#include "client/cli/launch/slurm_training.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace espalier {
namespace {

using Jobs = std::vector<KnownTraining>;

const std::vector<std::string> kWords = {"train", "--steps=3"};

TEST(SlurmTrainingTest, ARequeuedRunGoesOnWithItsTraining) {
  const BatchTraining known{"7", kWords, "", "job-1"};
  EXPECT_EQ(TrainingToResume(known, "7", 1, kWords, Jobs{{"job-1", false}}), "job-1");
  // It may have ended between the signal and the requeue.
  EXPECT_EQ(TrainingToResume(known, "7", 1, kWords, Jobs{{"job-1", true}}), "job-1");
  EXPECT_EQ(TrainingToResume(known, "7", 1, kWords, Jobs{}), "");
}

TEST(SlurmTrainingTest, AnotherBatchJobInTheFolderTrainsItsOwn) {
  const BatchTraining known{"7", kWords, "", "job-1"};
  EXPECT_EQ(TrainingToResume(known, "8", 0, {"train", "--steps=4"}, Jobs{{"job-1", true}}), "");
  EXPECT_EQ(TrainingToResume(known, "8", 0, {"train", "--steps=4"}, Jobs{{"job-1", false}}), "");
  // The same words again: a training that has ended is nobody's.
  EXPECT_EQ(TrainingToResume(known, "8", 0, kWords, Jobs{{"job-1", true}}), "");
  EXPECT_EQ(TrainingToResume(known, "8", 1, kWords, Jobs{{"job-1", true}}), "");
  // One that has not, because scontrol could not requeue its job, is taken up.
  EXPECT_EQ(TrainingToResume(known, "8", 0, kWords, Jobs{{"job-1", false}}), "job-1");
  // A job that was requeued before it could submit anything.
  EXPECT_EQ(TrainingToResume(std::nullopt, "8", 1, kWords, Jobs{{"job-1", true}}), "");
}

TEST(SlurmTrainingTest, ARunThatEndedWhileItSubmitted) {
  const BatchTraining first{"7", kWords, "", ""}, later{"7", kWords, "job-1", ""};
  EXPECT_EQ(TrainingToResume(first, "7", 1, kWords, Jobs{}), "");
  EXPECT_EQ(TrainingToResume(first, "7", 1, kWords, Jobs{{"job-1", false}}), "job-1");
  EXPECT_EQ(TrainingToResume(later, "7", 1, kWords, Jobs{{"job-1", true}}), "");
  EXPECT_EQ(TrainingToResume(later, "7", 1, kWords, Jobs{{"job-1", true}, {"job-2", false}}),
            "job-2");
}

TEST(SlurmTrainingTest, TheFolderRemembers) {
  const std::string home = ::testing::TempDir() + "/slurm_training";
  std::filesystem::remove_all(home);
  auto read = ReadBatchTraining(home);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->has_value());
  ASSERT_TRUE(WriteBatchTraining(home, {"7", kWords, "job-1", "job-2"}).ok());
  read = ReadBatchTraining(home);
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  EXPECT_EQ((*read)->batch_job, "7");
  EXPECT_EQ((*read)->words, kWords);
  EXPECT_EQ((*read)->before, "job-1");
  EXPECT_EQ((*read)->id, "job-2");
  std::ofstream(home + "/training.json") << "{";
  EXPECT_TRUE(absl::IsDataLoss(ReadBatchTraining(home).status()));
}

}  // namespace
}  // namespace espalier
