#include "server/sessions/session_state.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

void ExpectOutOfOrder(const absl::Status& status, const char* what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
}

TEST(SessionState, BackwardNeedsTheLastForwardUntouched) {
  SessionState state(/*scales_loss=*/false);
  ExpectOutOfOrder(state.CheckBackward(), "there was no Forward");
  const std::pair<void (*)(SessionState&), const char*> ends[] = {
      {[](SessionState& s) { s.DidBackward(); }, "Backward has used"},
      {[](SessionState& s) { s.DidUpdate(); }, "Update has dropped"},
      {[](SessionState& s) { s.DidSteps(2, true); }, "Step has used"},
      {[](SessionState& s) { s.DidEvaluate("Predict"); }, "Predict has dropped"},
      {[](SessionState& s) { s.DidSetParameters(); }, "SetTensors has dropped"}};
  for (const auto& [end, what] : ends) {
    state.DidForward(/*own_order=*/false);
    EXPECT_TRUE(state.CheckBackward().ok());
    state.DidSetGradients();  // does not matter
    EXPECT_TRUE(state.CheckBackward().ok());
    end(state);
    ExpectOutOfOrder(state.CheckBackward(), what);
  }
}

TEST(SessionState, UpdateNeedsGradients) {
  SessionState state(/*scales_loss=*/false);
  ExpectOutOfOrder(state.CheckUpdate(), "no gradients");
  state.DidForward(true);
  ExpectOutOfOrder(state.CheckUpdate(), "no gradients");
  state.DidBackward();
  EXPECT_TRUE(state.CheckUpdate().ok());
  state.DidUpdate();
  EXPECT_TRUE(state.CheckUpdate().ok());  // they stay
  state.DidZeroGradients();
  ExpectOutOfOrder(state.CheckUpdate(), "ZeroGradients");
  state.DidSetGradients();
  EXPECT_TRUE(state.CheckUpdate().ok());
}

TEST(SessionState, ScaledGradientsServeOneUpdate) {
  SessionState state(/*scales_loss=*/true);
  EXPECT_EQ(state.CheckGradientsShown().code(), absl::StatusCode::kUnimplemented);
  for (int i = 0; i < 2; ++i) {
    state.DidForward(true);
    EXPECT_TRUE(state.CheckBackward().ok());
    state.DidBackward();
  }
  EXPECT_TRUE(state.CheckUpdate().ok());
  state.DidUpdate();
  ExpectOutOfOrder(state.CheckUpdate(), "loss scaling");
  state.DidForward(true);
  ExpectOutOfOrder(state.CheckBackward(), "loss scale");
  state.DidZeroGradients();
  EXPECT_TRUE(state.CheckBackward().ok());
}

TEST(SessionState, CountsPassesAndBatches) {
  SessionState state(/*scales_loss=*/false);
  EXPECT_EQ(state.outputs(), SessionState::Outputs::kNone);
  state.DidForward(/*own_order=*/true);
  state.DidForward(/*own_order=*/false);
  state.DidBackward();
  state.DidUpdate();
  state.DidSteps(3, /*own_order=*/true);
  EXPECT_EQ(state.forwards(), 5);
  EXPECT_EQ(state.updates(), 4);
  EXPECT_EQ(state.next_batch(), 4);
  EXPECT_EQ(state.outputs(), SessionState::Outputs::kTraining);
  state.DidEvaluate("Evaluate");
  EXPECT_EQ(state.outputs(), SessionState::Outputs::kEvaluation);
  EXPECT_EQ(state.forwards(), 5);
}

TEST(SessionState, GoesOnFromTheNumbersOfAnotherSession) {
  v1::SessionProgress begin;
  begin.set_forwards(7);
  begin.set_updates(6);
  begin.set_next_batch(5);
  SessionState state(/*scales_loss=*/false, begin);
  ExpectOutOfOrder(state.CheckBackward(), "there was no Forward");
  state.DidSteps(2, /*own_order=*/true);
  EXPECT_EQ(state.forwards(), 9);
  EXPECT_EQ(state.updates(), 8);
  EXPECT_EQ(state.next_batch(), 7);
}

}  // namespace
}  // namespace espalier
