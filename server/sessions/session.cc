#include "server/sessions/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

constexpr int64_t kBytesPerReply = 16 << 20;
// Replies kept for a client that comes again. Of older ones it then learns that they are gone.
constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;

void SetError(const absl::Status& status, v1::SessionReply* reply) {
  reply->set_code(static_cast<int32_t>(status.code()));
  reply->set_error(std::string(status.message()));
}

// Puts the replies to the commands of one message into as few messages as they fit in.
class GroupedReplies {
 public:
  explicit GroupedReplies(const Session::Emit& emit) : emit_(emit) {}

  bool Add(const v1::SessionReply& reply) {
    const size_t bytes = reply.ByteSizeLong();
    if (bytes_ + bytes > kMaxBytes && !Flush()) return false;
    if (bytes > kMaxBytes) return emit_(reply);
    *(bytes_ == 0 ? &group_ : group_.add_following()) = reply;
    bytes_ += bytes;
    return true;
  }

  bool Flush() {
    if (bytes_ == 0) return true;
    bytes_ = 0;
    const bool emitted = emit_(group_);
    group_.Clear();
    return emitted;
  }

 private:
  static constexpr size_t kMaxBytes = 1 << 20;  // larger ones are not copied

  const Session::Emit& emit_;
  v1::SessionReply group_;
  size_t bytes_ = 0;
};

int64_t BytesOf(const std::vector<v1::SessionReply>& replies) {
  size_t bytes = 0;
  for (const v1::SessionReply& reply : replies) bytes += reply.ByteSizeLong();
  return static_cast<int64_t>(bytes);
}

}  // namespace

Session::Session(SessionFacts facts, const SessionTools& tools, PreparedSession prepared,
                 std::unique_ptr<SessionRanks> ranks, SessionTensors tensors,
                 std::string graph_fingerprint, std::string folder)
    : facts_(std::move(facts)),
      tools_(tools),
      prepared_(std::move(prepared)),
      ranks_(std::move(ranks)),
      tensors_(std::move(tensors)),
      graph_fingerprint_(std::move(graph_fingerprint)),
      folder_(std::move(folder)),
      state_(prepared_.job.optimizer.has_loss_scale(), prepared_.begin),
      detached_since_(absl::Now()) {
  progress_ = prepared_.begin;
}

v1::SessionInfo Session::Info() const {
  v1::SessionInfo info;
  info.set_session_id(facts_.id);
  info.set_owner(facts_.owner);
  info.set_name(prepared_.spec.name());
  for (const Member& member : ranks_->members()) {
    info.add_workers(member.name.empty() ? member.lease.worker_id() : member.name);
  }
  info.set_error(ranks_->broken());
  info.set_opened_unix_ms(facts_.opened_unix_ms);
  absl::MutexLock lock(&mutex_);
  info.set_attached(attached_);
  *info.mutable_progress() = progress_;
  return info;
}

absl::Status Session::Attach(std::function<void()> cancel) {
  absl::MutexLock lock(&mutex_);
  while (attached_ && !closed_) {
    if (cancel_) cancel_();
    detached_.WaitWithTimeout(&mutex_, absl::Seconds(1));
  }
  if (closed_) {
    return absl::NotFoundError(absl::StrCat("session '", facts_.id, "' has ended"));
  }
  attached_ = true;
  cancel_ = std::move(cancel);
  return absl::OkStatus();
}

void Session::Detach() {
  absl::MutexLock lock(&mutex_);
  attached_ = false;
  cancel_ = nullptr;
  detached_since_ = absl::Now();
  detached_.SignalAll();
}

void Session::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    if (cancel_) cancel_();
    detached_.SignalAll();
  }
  ranks_->Stop();
  tools_.checkpoints->Delete(folder_).IgnoreError();
}

bool Session::Abandoned(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return !attached_ && now - detached_since_ >= facts_.grace;
}

void Session::Begin(uint64_t answered, const Emit& emit) {
  // A command of which the last stream brought only some messages begins anew.
  assembly_ = absl::OkStatus();
  assembler_ = TensorAssembler();
  Forget(answered);
  v1::SessionReply hello;
  {
    absl::MutexLock lock(&mutex_);
    *hello.mutable_progress() = progress_;
  }
  hello.set_error(ranks_->broken());
  hello.set_ended(!hello.error().empty());
  if (!emit(hello)) return;
  for (const auto& [number, replies] : kept_) {
    for (const v1::SessionReply& reply : replies) {
      if (!emit(reply)) return;
    }
  }
}

void Session::Forget(uint64_t answered) {
  while (!kept_.empty() && kept_.front().first <= answered) {
    kept_bytes_ -= BytesOf(kept_.front().second);
    kept_.pop_front();
  }
}

const std::vector<v1::SessionReply>& Session::Keep(uint64_t number, Answer answer) {
  std::vector<v1::SessionReply> replies(1);
  int64_t bytes = 0;
  SplitIntoParts(std::move(answer.tensors), [&](v1::TensorPart part) {
    bytes += static_cast<int64_t>(part.data().size());
    if (bytes > kBytesPerReply && replies.back().tensors_size() > 0) {
      replies.emplace_back();
      bytes = static_cast<int64_t>(part.data().size());
    }
    *replies.back().add_tensors() = std::move(part);
    return absl::OkStatus();
  }).IgnoreError();
  answer.reply.mutable_tensors()->Swap(replies.back().mutable_tensors());
  replies.back() = std::move(answer.reply);
  for (v1::SessionReply& reply : replies) {
    reply.set_number(number);
    reply.set_more(&reply != &replies.back());
  }
  kept_bytes_ += BytesOf(replies);
  kept_.emplace_back(number, std::move(replies));
  for (auto kept = kept_.begin(); kept_bytes_ > kMaxKeptBytes && kept + 1 != kept_.end(); ++kept) {
    kept_bytes_ -= BytesOf(kept->second);
    v1::SessionReply gone;
    gone.set_number(kept->first);
    SetError(absl::DataLossError("the answer was carried out, but was too large to be kept until "
                                 "the client came again; ask for it once more"),
             &gone);
    kept->second = {std::move(gone)};
    kept_bytes_ += BytesOf(kept->second);
  }
  return kept_.back().second;
}

absl::Status Session::Take(v1::SessionCommand message, const MaySave& may_save, const Emit& emit) {
  google::protobuf::RepeatedPtrField<v1::SessionCommand> following;
  following.Swap(message.mutable_following());
  if (following.empty()) return TakeOne(std::move(message), may_save, emit);
  if (message.more()) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", message.number(), ": `more` and `following` in one message"));
  }
  GroupedReplies replies(emit);
  const auto add = [&](const v1::SessionReply& reply) { return replies.Add(reply); };
  absl::Status status = TakeOne(std::move(message), may_save, add);
  for (v1::SessionCommand& command : following) {
    if (!status.ok()) break;
    if (command.more() || command.following_size() > 0) {
      status = absl::InvalidArgumentError(
          absl::StrCat("command ", command.number(), ": one of `following` must be whole"));
      break;
    }
    status = TakeOne(std::move(command), may_save, add);
  }
  replies.Flush();
  return status;
}

absl::Status Session::TakeOne(v1::SessionCommand message, const MaySave& may_save,
                              const Emit& emit) {
  Forget(message.answered());
  uint64_t done = 0;
  {
    absl::MutexLock lock(&mutex_);
    done = progress_.commands();
  }
  const uint64_t number = message.number();
  if (number <= done && number > 0) {
    if (message.more()) return absl::OkStatus();
    for (const auto& [kept, replies] : kept_) {
      if (kept != number) continue;
      for (const v1::SessionReply& reply : replies) emit(reply);
    }
    return absl::OkStatus();
  }
  if (number != done + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", number, " came where command ", done + 1, " was expected"));
  }
  for (v1::TensorPart& part : *message.mutable_tensors()) {
    if (assembly_.ok()) assembly_ = assembler_.Add(std::move(part));
  }
  if (message.more()) return absl::OkStatus();
  Answer answer;
  absl::StatusOr<std::vector<WholeTensor>> tensors = assembler_.Take();
  absl::Status status = std::exchange(assembly_, absl::OkStatus());
  if (status.ok()) status = tensors.status();
  if (status.ok()) status = CarryOut(message, *std::move(tensors), may_save, &answer);
  if (!status.ok()) {
    answer = Answer();
    const std::string broken = ranks_->broken();
    answer.reply.set_ended(!broken.empty());
    SetError(broken.empty() ? status
                            : absl::UnavailableError(absl::StrCat(
                                  "the session has ended, and its workers are free: ", broken,
                                  "; open another one")),
             &answer.reply);
    if (!broken.empty()) ranks_->Stop();
  }
  {
    absl::MutexLock lock(&mutex_);
    progress_.set_commands(number);
    progress_.set_forwards(state_.forwards());
    progress_.set_updates(state_.updates());
    progress_.set_next_batch(state_.next_batch());
    *answer.reply.mutable_progress() = progress_;
  }
  for (const v1::SessionReply& reply : Keep(number, std::move(answer))) {
    if (!emit(reply)) break;
  }
  return absl::OkStatus();
}

absl::Status Session::CarryOut(const v1::SessionCommand& command, std::vector<WholeTensor> tensors,
                               const MaySave& may_save, Answer* answer) {
  if (const std::string broken = ranks_->broken(); !broken.empty()) {
    return absl::UnavailableError(broken);
  }
  const bool takes_tensors = command.has_forward() || command.has_step() ||
                             command.has_evaluate() || command.has_predict() ||
                             command.has_set_tensors();
  if (!tensors.empty() && !takes_tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensors[0].name, "' came with a command that takes none"));
  }
  switch (command.command_case()) {
    case v1::SessionCommand::kForward:
      return Forward(command.forward(), std::move(tensors), answer);
    case v1::SessionCommand::kZeroGradients:
      zero_gradients_ = true;
      state_.DidZeroGradients();
      return absl::OkStatus();
    case v1::SessionCommand::kBackward:
      return Backward(answer);
    case v1::SessionCommand::kUpdate:
      return Update(answer);
    case v1::SessionCommand::kStep:
      return Step(command.step(), std::move(tensors), answer);
    case v1::SessionCommand::kEvaluate:
      return Evaluate(command.evaluate(), std::move(tensors), answer);
    case v1::SessionCommand::kPredict:
      return Predict(command.predict(), std::move(tensors), answer);
    case v1::SessionCommand::kGetTensors:
      return GetTensors(command.get_tensors(), answer);
    case v1::SessionCommand::kSetTensors:
      return SetTensors(std::move(tensors));
    case v1::SessionCommand::kSetLearningRate:
      return SetLearningRate(command.set_learning_rate());
    case v1::SessionCommand::kSaveCheckpoint:
      return SaveCheckpoint(command.save_checkpoint().artifact(), may_save, answer);
    case v1::SessionCommand::kResetMetrics:
      FillMeans(&answer->reply);
      sums_.clear();
      batches_ = 0;
      return absl::OkStatus();
    case v1::SessionCommand::kKeepAlive:
      return absl::OkStatus();
    case v1::SessionCommand::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "the command says nothing to do, or is of a newer client than this daemon");
}

}  // namespace espalier
