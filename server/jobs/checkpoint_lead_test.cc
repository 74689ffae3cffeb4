#include "server/jobs/checkpoint_lead.h"

#include "gtest/gtest.h"

namespace espalier {
namespace {

constexpr absl::Duration kBetween = absl::Milliseconds(50), kUnderway = absl::Milliseconds(100);

int64_t Lead(int64_t before, int64_t after, int64_t first_step) {
  return CheckpointLead(before, after, first_step, kBetween, kUnderway);
}

TEST(CheckpointLeadTest, IsWhatTheRanksDoMeanwhile) {
  EXPECT_EQ(Lead(100, 150, 0), 101);
  EXPECT_EQ(Lead(100, 100, 0), 1) << "steps take longer";
  EXPECT_EQ(Lead(0, 3, 0), 7);
}

// A job that has just gone on from its checkpoint is asked, because a worker is about to leave.
TEST(CheckpointLeadTest, ARunsFirstStepIsNoneThatItRan) {
  EXPECT_EQ(Lead(0, 0, 26380), 1);
  EXPECT_EQ(Lead(0, 26390, 26380), 21);
  EXPECT_EQ(Lead(26385, 26390, 26380), 11);
}

}  // namespace
}  // namespace espalier
