#include "server/election/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class FakeClock : public MonotonicClock {
 public:
  absl::Duration Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Duration now_ = absl::Seconds(100);
};

// Leases that end by the clock, and candidacies in the order in which they were made.
class FakeStore : public ElectionStore {
 public:
  explicit FakeStore(const FakeClock* clock) : clock_(*clock) {}

  bool reachable = true;
  // Whether the next answer is lost, although the call was done.
  bool loses_answer = false;

  absl::StatusOr<Lease> Grant(absl::Duration ttl) override {
    if (!reachable) return Lost();
    leases_[++last_] = clock_.Now() + ttl;
    ttls_[last_] = ttl;
    return Answer(Lease{last_, ttl});
  }
  absl::StatusOr<absl::Duration> Renew(int64_t lease) override {
    if (!reachable) return Lost();
    Expire();
    if (leases_.count(lease) == 0) return absl::ZeroDuration();
    leases_[lease] = clock_.Now() + ttls_[lease];
    return Answer(ttls_[lease]);
  }
  absl::Status Revoke(int64_t lease) override {
    if (!reachable) return Lost();
    leases_.erase(lease);
    candidates_.erase(lease);
    return absl::OkStatus();
  }
  absl::Status Enter(int64_t lease, const std::string& candidate) override {
    if (!reachable) return Lost();
    Expire();
    if (leases_.count(lease) == 0) return absl::NotFoundError("no lease");
    candidates_.try_emplace(lease, Leader{lease, ++revision_, absl::StrCat(lease), candidate});
    return Answer(true).status();
  }
  absl::StatusOr<std::optional<Leader>> Oldest() override {
    if (!reachable) return Lost();
    Expire();
    std::optional<Leader> oldest;
    for (const auto& [lease, candidate] : candidates_) {
      if (!oldest.has_value() || candidate.epoch < oldest->epoch) oldest = candidate;
    }
    return Answer(oldest);
  }
  // Whose lease has not ended, as the store sees it.
  bool IsAlive(int64_t lease) {
    Expire();
    return leases_.count(lease) > 0;
  }

 private:
  static absl::Status Lost() { return absl::UnavailableError("no route"); }
  template <typename T>
  absl::StatusOr<T> Answer(T value) {
    if (std::exchange(loses_answer, false)) return Lost();
    return value;
  }
  void Expire() {
    for (auto lease = leases_.begin(); lease != leases_.end();) {
      if (lease->second > clock_.Now()) {
        ++lease;
        continue;
      }
      candidates_.erase(lease->first);
      lease = leases_.erase(lease);
    }
  }

  const FakeClock& clock_;
  int64_t last_ = 0, revision_ = 0;
  std::map<int64_t, absl::Duration> leases_, ttls_;
  std::map<int64_t, Leader> candidates_;
};

class ElectionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Election> Candidate(const std::string& name) {
    return std::make_unique<Election>(&store_, &clock_,
                                      ElectionOptions{.ttl = absl::Seconds(10), .candidate = name});
  }
  static bool Leads(const Election& election) { return election.Left() > absl::ZeroDuration(); }
  // Lets time pass, in which the candidates that are not stopped do what is due.
  void Pass(absl::Duration time, const std::vector<Election*>& candidates) {
    constexpr absl::Duration kTick = absl::Milliseconds(50);
    for (absl::Duration passed; passed < time; passed += kTick) {
      clock_.Advance(kTick);
      for (Election* candidate : candidates) {
        if (clock_.Now() < due_[candidate]) continue;
        candidate->Step();
        due_[candidate] = clock_.Now() + candidate->Pause();
      }
    }
  }

  FakeClock clock_;
  FakeStore store_{&clock_};
  std::map<Election*, absl::Duration> due_;
};

TEST_F(ElectionTest, OneLeadsAndTheOtherSaysWhere) {
  const auto a = Candidate("a:7070"), b = Candidate("b:7070");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(60), {a.get(), b.get()});
  EXPECT_TRUE(Leads(*a));
  EXPECT_FALSE(Leads(*b));
  EXPECT_EQ(b->Describe(), "standby; the leader is a:7070");
}

TEST_F(ElectionTest, AStandbyLeadsWithinTheLeaseOfALeaderThatDied) {
  const auto a = Candidate("a"), b = Candidate("b");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(60), {a.get(), b.get()});
  Pass(absl::Seconds(10.5), {b.get()});
  EXPECT_TRUE(Leads(*b));
  EXPECT_GT(b->won()->epoch, a->won()->epoch);
}

TEST_F(ElectionTest, AStandbyLeadsAtOnceAfterAResignation) {
  const auto a = Candidate("a"), b = Candidate("b");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(20), {a.get(), b.get()});
  a->Resign();
  EXPECT_FALSE(Leads(*a));
  Pass(absl::Seconds(0.5), {b.get()});
  EXPECT_TRUE(Leads(*b));
}

TEST_F(ElectionTest, ALeaderThatWasStoppedDoesNotLeadWhenItGoesOn) {
  const auto a = Candidate("a"), b = Candidate("b");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(20), {a.get(), b.get()});
  clock_.Advance(absl::Seconds(30));  // the machine of both
  EXPECT_FALSE(Leads(*a)) << "before any answer of the store";
  Pass(absl::Seconds(5), {a.get(), b.get()});
  EXPECT_FALSE(Leads(*a)) << "for good: its process has to end";
  EXPECT_TRUE(Leads(*b));
}

// A lease may live on although its leader gave up.
TEST_F(ElectionTest, ALeaderGivesUpBeforeItsLeaseEndsAndDoesNotComeBack) {
  const auto a = Candidate("a");
  Pass(absl::Seconds(20), {a.get()});
  store_.reachable = false;
  const int64_t lease = a->won()->lease;
  while (Leads(*a)) Pass(absl::Milliseconds(50), {a.get()});
  EXPECT_TRUE(store_.IsAlive(lease)) << "the margin";
  store_.reachable = true;
  Pass(absl::Seconds(3), {a.get()});
  EXPECT_FALSE(Leads(*a));
}

TEST_F(ElectionTest, ALeaderStaysThroughAShortBreak) {
  const auto a = Candidate("a"), b = Candidate("b");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(20), {a.get(), b.get()});
  store_.reachable = false;
  Pass(absl::Seconds(5), {a.get(), b.get()});
  EXPECT_TRUE(Leads(*a));
  EXPECT_THAT(b->Describe(), HasSubstr("; job store: no route"));
  store_.reachable = true;
  Pass(absl::Seconds(60), {a.get(), b.get()});
  EXPECT_TRUE(Leads(*a));
}

TEST_F(ElectionTest, AStandbyWhoseLeaseEndedStandsAgain) {
  const auto a = Candidate("a"), b = Candidate("b");
  Pass(absl::Seconds(1), {a.get()});
  Pass(absl::Seconds(5), {a.get(), b.get()});
  Pass(absl::Seconds(30), {a.get()});  // b is stopped
  Pass(absl::Seconds(5), {a.get(), b.get()});
  Pass(absl::Seconds(10.5), {b.get()});
  EXPECT_TRUE(Leads(*b));
}

// At no moment do two lead, nor one whose lease has ended, whatever is lost or stopped when.
TEST_F(ElectionTest, NeverTwoLeaders) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 chance(seed);
    std::vector<std::unique_ptr<Election>> candidates;
    std::vector<int> stopped;  // for so many ticks
    int64_t epoch = 0;
    int changes = 0;
    for (int tick = 0; tick < 6000; ++tick) {
      clock_.Advance(absl::Milliseconds(50));
      while (candidates.size() < 3) {
        candidates.push_back(Candidate(absl::StrCat("c", tick)));
        stopped.push_back(0);
      }
      if (chance() % 200 == 0) store_.reachable = !store_.reachable;
      if (chance() % 20 == 0) store_.loses_answer = true;
      int leaders = 0;
      for (size_t i = 0; i < candidates.size(); ++i) {
        Election& one = *candidates[i];
        if (chance() % 400 == 0) stopped[i] = static_cast<int>(chance() % 500);
        if (stopped[i] > 0) {
          --stopped[i];
        } else if (clock_.Now() >= due_[&one]) {
          one.Step();
          due_[&one] = clock_.Now() + one.Pause();
        }
        if (Leads(one)) {
          ++leaders;
          EXPECT_TRUE(store_.IsAlive(one.won()->lease));
          EXPECT_GE(one.won()->epoch, epoch) << "a later leader has a greater epoch";
          changes += one.won()->epoch > epoch;
          epoch = one.won()->epoch;
        } else if (one.won().has_value()) {  // its process ends, and another starts
          due_.erase(&one);
          candidates[i] = Candidate(absl::StrCat("c", tick, "+"));
        }
      }
      ASSERT_LE(leaders, 1);
    }
    EXPECT_GT(changes, 1) << "the schedule is too quiet to show anything";
    store_.reachable = true;
    candidates.clear();
    due_.clear();
  }
}

}  // namespace
}  // namespace espalier
