#include "server/sessions/session_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/jobs/attempt_end.h"

namespace espalier {
namespace {

constexpr absl::Duration kLoadTimeout = absl::Minutes(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(3);
// After one rank has failed, the others have this long to say why.
constexpr absl::Duration kRootCauseWait = absl::Milliseconds(500);
// A worker that ends its part of a session by itself is about to leave the cluster, or has lost its
// lease: so long it may take until the registry says so.
constexpr absl::Duration kLeaveWait = absl::Seconds(5);
constexpr absl::Duration kLeavePoll = absl::Milliseconds(20);
constexpr double kPeerTimeoutSeconds = 600;

template <typename Work>
void OnEachRank(size_t ranks, Work&& work) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks; ++r) threads.emplace_back([&work, r] { work(r); });
  for (std::thread& thread : threads) thread.join();
}

// Whether an error of a rank names this other one: "rank 1 is gone".
bool NamesRank(absl::string_view error, size_t rank) {
  const std::string name = absl::StrCat("rank ", rank);
  for (size_t at = error.find(name); at != absl::string_view::npos; at = error.find(name, at + 1)) {
    const absl::string_view rest = error.substr(at + name.size());
    if (rest.empty() || !absl::ascii_isdigit(rest[0])) return true;
  }
  return false;
}

// Whether the worker itself ended the rank's stream. Nobody here has cancelled it: then the session
// would be broken already.
bool EndedByItself(const absl::Status& end) { return end.ok() || absl::IsCancelled(end); }

bool TellsOfPeers(const absl::Status& end) {
  return absl::IsUnavailable(end) || absl::IsDeadlineExceeded(end);
}

}  // namespace

SessionRanks::SessionRanks(const SessionCluster& cluster, std::string session_id,
                           std::vector<Member> members)
    : cluster_(cluster), session_id_(std::move(session_id)), members_(std::move(members)) {
  for (const Member& member : members_) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->client = cluster_.dial(member);
  }
}

SessionRanks::~SessionRanks() { Stop(); }

absl::StatusOr<std::unique_ptr<SessionRanks>> SessionRanks::Create(const SessionCluster& cluster,
                                                                   std::string session_id,
                                                                   std::vector<Member> members) {
  absl::Status taken = cluster.workers->Assign(members, session_id);
  if (!taken.ok()) return taken;
  return std::unique_ptr<SessionRanks>(
      new SessionRanks(cluster, std::move(session_id), std::move(members)));
}

std::string SessionRanks::Describe(size_t rank) const {
  const Member& member = members_[rank];
  return absl::StrCat("worker ", member.lease.worker_id(),
                      member.name.empty() ? "" : absl::StrCat(" (", member.name, ")"));
}

v1::Attempt SessionRanks::AttemptOf(size_t rank) const {
  v1::Attempt attempt;
  attempt.set_job_id(session_id_);
  attempt.set_attempt(1);
  attempt.set_worker_epoch(members_[rank].lease.epoch());
  return attempt;
}

absl::StatusOr<v1::LoadProgramReply> SessionRanks::LoadRank(size_t r,
                                                            v1::LoadProgramRequest request) {
  *request.mutable_attempt() = AttemptOf(r);
  request.set_peer_timeout_seconds(kPeerTimeoutSeconds);
  return ranks_[r]->client->LoadProgram(request, kLoadTimeout);
}

absl::StatusOr<std::vector<v1::LoadProgramReply>> SessionRanks::Load(
    std::vector<v1::LoadProgramRequest> requests) {
  cluster_.rendezvous->Begin(session_id_, 1);
  std::vector<v1::LoadProgramReply> replies(size());
  absl::Mutex mutex;
  absl::Status first;
  const auto failed = [&](size_t r, const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    if (!first.ok()) return;
    const absl::Status lease = cluster_.workers->Check(members_[r].lease);
    first = lease.ok()
                ? absl::Status(status.code(), absl::StrCat(Describe(r), ": ", status.message()))
                : absl::UnavailableError(
                      absl::StrCat(Describe(r), " is lost: ", lease.message(), "; try again"));
    Break(std::string(first.message()));
  };
  OnEachRank(size(), [&](size_t r) {
    absl::StatusOr<v1::LoadProgramReply> reply = LoadRank(r, std::move(requests[r]));
    if (!reply.ok()) return failed(r, reply.status());
    replies[r] = *std::move(reply);
  });
  if (!first.ok()) return first;
  // Ranks connect to each other when their streams begin.
  OnEachRank(size(), [&](size_t r) {
    Rank& rank = *ranks_[r];
    rank.stream = rank.client->RunSession();
    v1::RankCommand hello;
    *hello.mutable_attempt() = AttemptOf(r);
    v1::RankResult ready;
    if (rank.stream->Write(hello) && rank.stream->Read(&ready)) return;
    const absl::Status status = rank.stream->Finish();
    rank.stream.reset();
    failed(r, status.ok() ? absl::UnavailableError("it ended the session") : status);
  });
  if (first.ok()) first = Broken();
  if (!first.ok()) return first;
  for (size_t r = 0; r < size(); ++r) {
    ranks_[r]->reader = std::thread([this, r] { ReadResults(r); });
  }
  return replies;
}

void SessionRanks::ReadResults(size_t r) {
  Rank& rank = *ranks_[r];
  v1::RankResult result;
  while (rank.stream->Read(&result)) {
    absl::MutexLock lock(&mutex_);
    rank.results.push_back(std::move(result));
    result.Clear();
    changed_.SignalAll();
  }
  const absl::Status status = rank.stream->Finish();
  absl::MutexLock lock(&mutex_);
  rank.over = true;
  rank.status = status;
  changed_.SignalAll();
  if (broken_.empty()) Diagnose();
}

void SessionRanks::Diagnose() {
  const absl::Time deadline = absl::Now() + kRootCauseWait;
  const auto all_over = [this] {
    mutex_.AssertHeld();
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->over; });
  };
  while (!all_over() && broken_.empty() && absl::Now() < deadline) {
    changed_.WaitWithDeadline(&mutex_, deadline);
  }
  const auto has_ended = [this] {
    mutex_.AssertHeld();
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->over && EndedByItself(rank->status); });
  };
  const absl::Time left = absl::Now() + kLeaveWait;
  while (broken_.empty() && has_ended() && LostLeases().empty() && absl::Now() < left) {
    changed_.WaitWithTimeout(&mutex_, kLeavePoll);
  }
  if (!broken_.empty()) return;
  // An error of the session itself counts most, and what a rank says of a lost peer least. The end
  // of a peer may fail a rank with any other code.
  std::vector<std::string> of_session, own, ended, of_peers;
  for (size_t r = 0; r < size(); ++r) {
    const Rank& rank = *ranks_[r];
    if (!rank.over) continue;
    if (EndedByItself(rank.status)) {
      ended.push_back(absl::StrCat(Describe(r), ": it ended the session"));
      continue;
    }
    std::string said = absl::StrCat(Describe(r), ": ", rank.status.message());
    if (!TellsOfPeers(rank.status)) {
      (IsJobError(rank.status.code()) ? of_session : own).push_back(std::move(said));
      continue;
    }
    for (size_t peer = 0; peer < size(); ++peer) {
      if (peer == r || !NamesRank(rank.status.message(), peer)) continue;
      absl::StrAppend(&said, " (rank ", peer, " is ", Describe(peer), ")");
    }
    of_peers.push_back(std::move(said));
  }
  for (const std::string& cause :
       {absl::StrJoin(of_session, "; "), LostLeases(), absl::StrJoin(own, "; "),
        absl::StrJoin(ended, "; "), absl::StrJoin(of_peers, "; ")}) {
    if (broken_.empty()) broken_ = cause;
  }
  changed_.SignalAll();
  for (const auto& rank : ranks_) rank->client->Cancel();
}

std::string SessionRanks::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

absl::Status SessionRanks::Broken() const {
  const std::string reason = broken();
  return reason.empty() ? absl::OkStatus() : absl::UnavailableError(reason);
}

void SessionRanks::Break(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.empty()) return;
    broken_ = reason;
    changed_.SignalAll();
  }
  for (const auto& rank : ranks_) rank->client->Cancel();
}

std::string SessionRanks::LostLeases() const {
  std::vector<std::string> lost;
  for (size_t r = 0; r < size(); ++r) {
    const absl::Status lease = cluster_.workers->Check(members_[r].lease);
    if (!lease.ok()) lost.push_back(absl::StrCat(Describe(r), " is lost: ", lease.message()));
  }
  return absl::StrJoin(lost, "; ");
}

void SessionRanks::CheckLeases() {
  if (const std::string lost = LostLeases(); !lost.empty()) Break(lost);
}

absl::Status SessionRanks::Post(std::vector<v1::RankCommand> for_all) {
  absl::MutexLock run_lock(&run_mutex_);
  if (absl::Status s = Broken(); !s.ok()) return s;
  std::vector<std::vector<v1::RankCommand>> messages;
  messages.push_back(std::move(for_all));
  Send(std::move(messages));
  return absl::OkStatus();
}

void SessionRanks::Send(std::vector<std::vector<v1::RankCommand>> messages) {
  const uint64_t number = ++number_;
  for (std::vector<v1::RankCommand>& of_rank : messages) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      of_rank[i].set_number(number);
      of_rank[i].set_more(i + 1 < of_rank.size());
    }
  }
  for (size_t r = 0; r < size(); ++r) {
    for (const v1::RankCommand& message : messages[messages.size() == 1 ? 0 : r]) {
      // The reader finds out why a stream broke.
      if (!ranks_[r]->stream->Write(message)) break;
    }
  }
}

absl::Status SessionRanks::Run(std::vector<std::vector<v1::RankCommand>> messages,
                               const OnResult& on_result) {
  absl::MutexLock run_lock(&run_mutex_);
  if (absl::Status s = Broken(); !s.ok()) return s;
  Send(std::move(messages));
  const uint64_t number = number_, awaited = std::exchange(awaited_, number_);
  std::vector<bool> answered(size(), false);
  size_t left = size();
  absl::Status status;
  while (left > 0) {
    size_t r = 0;
    v1::RankResult result;
    {
      absl::MutexLock lock(&mutex_);
      const auto next = [&] {
        mutex_.AssertHeld();
        for (size_t i = 0; i < size(); ++i) {
          if (!answered[i] && !ranks_[i]->results.empty()) return i;
        }
        return size();
      };
      while ((r = next()) == size() && broken_.empty()) changed_.Wait(&mutex_);
      if (!broken_.empty()) return absl::UnavailableError(broken_);
      result = std::move(ranks_[r]->results.front());
      ranks_[r]->results.pop_front();
    }
    if (result.number() > awaited && result.number() < number) continue;  // of Post
    if (result.number() != number) {
      Break(
          absl::StrCat(Describe(r), " answers command ", result.number(), " instead of ", number));
      return Broken();
    }
    if (!result.more()) {
      answered[r] = true;
      --left;
    }
    if (status.ok()) status = on_result(r, std::move(result));
  }
  return status;
}

void SessionRanks::Stop() {
  Break("the session has ended");
  absl::MutexLock stop_lock(&stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  OnEachRank(size(), [this](size_t r) {
    v1::StopRequest request;
    *request.mutable_attempt() = AttemptOf(r);
    const absl::Status status = ranks_[r]->client->Stop(request, kStopTimeout);
    // It gets no work until it has joined again, which it does once it is free.
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      cluster_.workers->Suspect(members_[r].lease);
    }
  });
  absl::MutexLock run_lock(&run_mutex_);
  for (const auto& rank : ranks_) {
    if (rank->reader.joinable()) {
      rank->reader.join();
    } else if (rank->stream != nullptr) {
      rank->stream->Finish().IgnoreError();
    }
    rank->stream.reset();
  }
  cluster_.rendezvous->End(session_id_, 1);
  cluster_.workers->Release(session_id_);
}

}  // namespace espalier
