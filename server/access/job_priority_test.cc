#include "server/access/job_priority.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

Caller Key(Roles roles, int32_t max_priority) {
  Caller caller;
  caller.roles = roles;
  caller.owner = "alice";
  caller.max_priority = max_priority;
  return caller;
}

TEST(JobPriority, OnlyAdminsAndKeysThatSaySoComeBeforeOthers) {
  EXPECT_EQ(PriorityAmongOwners(Key(Role::kTrain, 0), 500), 0);
  EXPECT_EQ(PriorityAmongOwners(Key(Role::kTrain, 100), 500), 100);
  EXPECT_EQ(PriorityAmongOwners(Key(Role::kTrain, 100), 50), 50);
  EXPECT_EQ(PriorityAmongOwners(Key(Role::kAdmin, 0), 500), 500);
}

TEST(JobPriority, EverybodyMayLetOthersGoFirst) {
  EXPECT_EQ(PriorityAmongOwners(Key(Role::kTrain, 0), -5), -5);
}

TEST(JobPriority, TheCallerIsToldWhatDoesNotCount) {
  EXPECT_EQ(PriorityNote(Key(Role::kTrain, 0), 0), "");
  EXPECT_EQ(PriorityNote(Key(Role::kTrain, 100), 100), "");
  EXPECT_NE(PriorityNote(Key(Role::kTrain, 100), 101), "");
}

TEST(JobPriority, ThereAreBounds) {
  EXPECT_TRUE(CheckPriority("spec.priority", 1000).ok());
  EXPECT_TRUE(CheckPriority("spec.priority", -1000).ok());
  EXPECT_EQ(CheckPriority("spec.priority", 1001).message(),
            "spec.priority is 1001; -1000 to 1000 are accepted");
}

}  // namespace
}  // namespace espalier
