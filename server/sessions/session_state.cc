#include "server/sessions/session_state.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status SessionState::CheckBackward() const {
  if (!pending_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Backward: ", why_not_pending_.empty() ? "there was no Forward" : why_not_pending_,
        "; send Forward first"));
  }
  if (scaled_before_update_) {
    return absl::FailedPreconditionError(
        "Backward: the gradients of before the last Update have another loss scale; send "
        "ZeroGradients first");
  }
  return absl::OkStatus();
}

absl::Status SessionState::CheckUpdate() const {
  if (!has_gradients_) {
    return absl::FailedPreconditionError(
        "Update: there are no gradients since ZeroGradients; send Forward and Backward, or "
        "SetTensors of gradients, first");
  }
  if (scaled_before_update_) {
    return absl::FailedPreconditionError(
        "Update: with loss scaling gradients serve one Update; send ZeroGradients, Forward and "
        "Backward first");
  }
  return absl::OkStatus();
}

absl::Status SessionState::CheckGradientsShown() const {
  if (!scales_loss_) return absl::OkStatus();
  return absl::UnimplementedError(
      "gradients are multiplied by the loss scale, which changes from step to step, so that they "
      "cannot be read or set; open the session with precision BF16 or F32, without "
      "optimizer.loss_scale");
}

void SessionState::DidForward(bool own_order) {
  ++forwards_;
  if (own_order) ++next_batch_;
  pending_ = true;
  outputs_ = Outputs::kTraining;
}

void SessionState::DidZeroGradients() {
  has_gradients_ = false;
  scaled_before_update_ = false;
}

void SessionState::DidBackward() {
  pending_ = false;
  why_not_pending_ = "Backward has used the last Forward, whose activations are gone";
  has_gradients_ = true;
}

void SessionState::DidUpdate() {
  if (pending_) why_not_pending_ = "Update has dropped the last Forward, as parameters changed";
  pending_ = false;
  scaled_before_update_ = scales_loss_;
  ++updates_;
}

void SessionState::DidSteps(int64_t steps, bool own_order) {
  forwards_ += steps;
  updates_ += steps;
  if (own_order) next_batch_ += steps;
  pending_ = false;
  why_not_pending_ = "Step has used the last forward pass";
  has_gradients_ = true;
  scaled_before_update_ = scales_loss_;
  outputs_ = Outputs::kTraining;
}

void SessionState::DidEvaluate(const char* command) {
  if (pending_) why_not_pending_ = absl::StrCat(command, " has dropped the last Forward");
  pending_ = false;
  outputs_ = Outputs::kEvaluation;
}

void SessionState::DidSetParameters() {
  if (pending_) why_not_pending_ = "SetTensors has dropped the last Forward, as parameters changed";
  pending_ = false;
}

}  // namespace espalier
