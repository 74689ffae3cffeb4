// A checkpoint that somebody asks for while the ranks run. They write their shards of the same step
// without talking to each other: the attempt names one that none of them has reached.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "server/jobs/attempt.h"
#include "server/jobs/checkpoint_lead.h"

namespace espalier {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(3);
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
  std::vector<absl::StatusOr<v1::CheckpointAtReply>> replies(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
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

void Attempt::AskForCheckpoint(int64_t least) {
  // No rank writes a checkpoint of step 0: these only ask.
  absl::StatusOr<int64_t> before = AskRanks(0);
  absl::SleepFor(kCount);
  absl::StatusOr<int64_t> done = before.ok() ? AskRanks(0) : before;
  int64_t ahead = 1;
  if (done.ok()) ahead = CheckpointLead(*before, *done, least, kCount, kUnderway);
  while (done.ok() && !stopping()) {
    const int64_t at = std::max(*done, least) + ahead;
    done = AskRanks(at);
    if (done.ok() && *done < at) return;
    // Some rank was faster. What the others write of that step stays incomplete, and is no
    // checkpoint.
    ahead *= 2;
  }
  if (done.ok()) return;
  // A worker that is lost ends the attempt; this is not the place to decide that.
  spdlog::warn("job id={}: a worker cannot be asked for a checkpoint: {}", task_.record.job.id(),
               absl::CHexEscape(done.status().message()));
}

}  // namespace espalier
