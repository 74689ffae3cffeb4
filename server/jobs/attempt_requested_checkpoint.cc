// A checkpoint that somebody asks for while the ranks run. They write their shards of the same step
// without talking to each other: the attempt names one that none of them has reached.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "server/jobs/attempt.h"
#include "server/jobs/checkpoint_lead.h"

namespace espalier {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(3);
constexpr absl::Duration kAskRanksAgain = absl::Seconds(1);
// How long the ranks' steps are counted to learn how fast they go.
constexpr absl::Duration kCount = absl::Milliseconds(50);
// The request arrives everywhere within this time.
constexpr absl::Duration kUnderway = absl::Milliseconds(100);

}  // namespace

void Attempt::RequestCheckpoint() {
  absl::MutexLock lock(&mutex_);
  checkpoint_requested_ = true;
  changed_.SignalAll();
}

bool Attempt::TakeCheckpointRequest() {
  absl::MutexLock lock(&mutex_);
  const bool requested = checkpoint_requested_;
  checkpoint_requested_ = false;
  return requested;
}

absl::StatusOr<int64_t> Attempt::AskRanks(int64_t steps_done) {
  std::vector<absl::StatusOr<v1::CheckpointAtReply>> replies(ranks_.size(),
                                                             v1::CheckpointAtReply());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].saves) continue;
    threads.emplace_back([this, r, steps_done, &replies] {
      v1::CheckpointAtRequest request;
      *request.mutable_attempt() = AttemptMessage(r);
      request.set_steps_done(steps_done);
      replies[r] = ranks_[r].client->CheckpointAt(request, kAskTimeout);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t most = 0;
  for (const absl::StatusOr<v1::CheckpointAtReply>& reply : replies) {
    if (!reply.ok()) return reply.status();
    most = std::max(most, reply->steps_done());
  }
  return most;
}

absl::Status Attempt::AskForCheckpoint(int64_t least) {
  // No rank writes a checkpoint of step 0: these only ask.
  absl::StatusOr<int64_t> before = AskRanks(0);
  const absl::Time begin = absl::Now();
  absl::SleepFor(kCount);
  absl::StatusOr<int64_t> done = before.ok() ? AskRanks(0) : before;
  int64_t ahead = 1;
  // A busy rank may take long to answer.
  const absl::Duration between = std::max(kCount, absl::Now() - begin);
  if (done.ok()) ahead = CheckpointLead(*before, *done, least, between, kUnderway);
  if (!done.ok() || stopping()) return done.status();
  return NameCheckpoint(std::max(*done, least) + ahead, ahead).status();
}

absl::StatusOr<int64_t> Attempt::NameCheckpoint(int64_t at, int64_t ahead) {
  while (true) {
    const absl::StatusOr<int64_t> done = AskRanks(at);
    if (!done.ok()) return done.status();
    if (*done < at || stopping()) {
      named_.insert(at);
      return at;
    }
    // Some rank was faster. What the others write of that step stays incomplete, and is no
    // checkpoint.
    ahead *= 2;
    at = *done + ahead;
  }
}

void Attempt::HandleDueCheckpoint() {
  const int64_t at = std::exchange(due_at_, 0);
  mutex_.Unlock();
  const absl::StatusOr<int64_t> named = NameCheckpoint(at, 1);
  {
    absl::MutexLock report_lock(&report_mutex_);
    if (named.ok()) schedule_->Asked(*named);
    // A worker that is lost ends the attempt; one that was too busy may be asked for a later one.
    if (!named.ok()) schedule_->NotAsked();
  }
  mutex_.Lock();
}

void Attempt::HandleCheckpointRequest(int64_t least, absl::Time* again) {
  checkpoint_requested_ = false;
  mutex_.Unlock();
  const absl::Status asked = AskForCheckpoint(least);
  mutex_.Lock();
  *again = absl::InfinitePast();
  if (asked.ok()) return;
  // A worker that is lost ends the attempt; this is not the place to decide that. One that was too
  // busy to answer is asked again, since somebody may wait for the checkpoint.
  checkpoint_requested_ = true;
  *again = absl::Now() + kAskRanksAgain;
  spdlog::warn("job id={}: a worker cannot be asked for a checkpoint, and is asked again: {}",
               task_.record.job.id(), absl::CHexEscape(asked.message()));
}

}  // namespace espalier
