// What a session's client may do next: the state that commands change. No command that would leave
// something wrong behind gets to the workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "espalier/v1/session.pb.h"

namespace espalier {

class SessionState {
 public:
  // Which program computed the outputs last.
  enum class Outputs { kNone, kTraining, kEvaluation };

  // `begin`: the numbers of an earlier session, all 0 or more.
  explicit SessionState(bool scales_loss, const v1::SessionProgress& begin = v1::SessionProgress())
      : scales_loss_(scales_loss),
        forwards_(begin.forwards()),
        updates_(begin.updates()),
        next_batch_(begin.next_batch()) {}

  // Each returns FailedPrecondition, saying what to do, if the command is out of order; otherwise
  // the state after it follows from the second function, to be called once it was carried out.
  absl::Status CheckBackward() const;
  absl::Status CheckUpdate() const;
  // Gradients are scaled with the loss: reading and writing them would not be what it seems.
  absl::Status CheckGradientsShown() const;

  void DidForward(bool own_order);
  void DidZeroGradients();
  void DidBackward();
  void DidUpdate();
  void DidSteps(int64_t steps, bool own_order);
  void DidEvaluate(const char* command);
  void DidSetParameters();
  void DidSetGradients() { has_gradients_ = true; }

  bool scales_loss() const { return scales_loss_; }
  int64_t forwards() const { return forwards_; }
  int64_t updates() const { return updates_; }
  int64_t next_batch() const { return next_batch_; }
  Outputs outputs() const { return outputs_; }
  std::optional<double> learning_rate;  // instead of the schedule's

 private:
  const bool scales_loss_;
  int64_t forwards_, updates_, next_batch_;
  bool pending_ = false;               // a forward pass waits for its backward pass
  std::string why_not_pending_;        // empty: there was none
  bool has_gradients_ = false;         // since ZeroGradients
  bool scaled_before_update_ = false;  // gradients that an Update has already used
  Outputs outputs_ = Outputs::kNone;
};

}  // namespace espalier
