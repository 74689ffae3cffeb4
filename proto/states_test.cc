#include "proto/states.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

// Every state that there is, a new one too, has a name; those that nothing but a resume leaves are
// over.
template <typename State>
void ExpectNamesAndEnds(const google::protobuf::EnumDescriptor& states) {
  const std::set<std::string> ends = {"succeeded", "failed", "cancelled"};
  for (int i = 0; i < states.value_count(); ++i) {
    const auto state = static_cast<State>(states.value(i)->number());
    const std::string name =
        absl::AsciiStrToLower(absl::StripPrefix(states.value(i)->name(), "DISTILLATION_"));
    EXPECT_EQ(StateName(state), state == 0 ? "unknown" : name);
    EXPECT_EQ(IsOver(state), ends.count(name) > 0) << name;
  }
  const auto newer = static_cast<State>(states.value_count() + 10);
  EXPECT_EQ(StateName(newer), "unknown");
  EXPECT_FALSE(IsOver(newer));
}

TEST(StatesTest, EveryStateOfAJobHasANameAndThreeAreOver) {
  ExpectNamesAndEnds<v1::JobState>(*v1::JobState_descriptor());
}

TEST(StatesTest, EveryDistillationStateHasANameAndThreeAreOver) {
  ExpectNamesAndEnds<v1::DistillationState>(*v1::DistillationState_descriptor());
}

TEST(StatesTest, WorkersThatAreDeadOrHaveLeftAreGone) {
  std::set<std::string> gone;
  const google::protobuf::EnumDescriptor& states = *v1::WorkerInfo::State_descriptor();
  for (int i = 0; i < states.value_count(); ++i) {
    if (IsGone(static_cast<v1::WorkerInfo::State>(states.value(i)->number()))) {
      gone.insert(states.value(i)->name());
    }
  }
  EXPECT_EQ(gone, (std::set<std::string>{"DEAD", "LEFT"}));
}

}  // namespace
}  // namespace espalier
