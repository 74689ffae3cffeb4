// Properties of the coordinator with a thousand workers and thousands of jobs.
#include "tests/simulation/coordinator_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/access/job_priority.h"
#include "server/jobs/fair_share.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;

Caller OwnerCaller(const std::string& owner, int32_t max_priority = 0) {
  Caller caller;
  caller.roles = Role::kTrain;
  caller.owner = owner;
  caller.max_priority = max_priority;
  return caller;
}

class CoordinatorSimulationTest : public ::testing::Test {
 protected:
  CoordinatorSimulationTest()
      : simulation_({.folder = ::testing::TempDir() + "/simulation_" +
                               ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                     .seed = 49}) {}

  v1::Job QueuedJob(const std::string& owner, int32_t priority = 0) const {
    v1::Job job;
    *job.mutable_spec() = simulation_.Spec();
    job.set_state(v1::QUEUED);
    job.set_owner(owner);
    job.set_priority(priority);
    job.set_priority_among_owners(std::min(priority, 0));
    job.set_total_steps(10);
    return job;
  }
  std::map<std::string, int> States() {
    return simulation_.jobs().CountByState(Caller::Unrestricted());
  }

  CoordinatorSimulation simulation_;
};

// Restored and new jobs, losses of workers, and a restart of the coordinator in the middle.
TEST_F(CoordinatorSimulationTest, EveryJobRunsToItsEndOnceWhateverIsLost) {
  constexpr int kWorkers = 1000, kRestored = 3000, kSubmitters = 4, kSubmitted = 250;
  std::vector<v1::Job> restored;
  for (int i = 0; i < kRestored; ++i) restored.push_back(QueuedJob(absl::StrCat("owner-", i % 7)));
  simulation_.Restore(restored);
  simulation_.Join(kWorkers);
  std::vector<std::thread> submitters;
  for (int s = 0; s < kSubmitters; ++s) {
    submitters.emplace_back([this, s] {
      const Caller caller = OwnerCaller(absl::StrCat("owner-", s));
      for (int i = 0; i < kSubmitted; ++i) simulation_.Submit(simulation_.Spec(), caller);
    });
  }
  const int all = kRestored + kSubmitters * kSubmitted;
  int lost = 0;
  bool submitted = false, restarted = false;
  const absl::Time deadline = absl::Now() + absl::Minutes(4);
  while (absl::Now() < deadline) {
    simulation_.Advance(absl::Seconds(1));
    // Half of what runs finishes, a few workers are lost, and others come.
    std::vector<CoordinatorSimulation::Run> running = simulation_.Running();
    for (size_t i = 0; i < running.size(); i += 2) simulation_.Finish(running[i]);
    if (lost < 150) {
      for (int i = 0; i < 3; ++i) simulation_.KillAny();
      simulation_.Join(3);
      lost += 3;
    }
    const std::map<std::string, int> states = States();
    const auto done = states.find("succeeded");
    if (!submitted && simulation_.started().size() > kRestored / 2) {
      for (std::thread& thread : submitters) thread.join();
      submitted = true;
    }
    if (submitted && !restarted) {
      simulation_.Restart();
      restarted = true;
    }
    if (restarted && done != states.end() && done->second == all) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(restarted);
  EXPECT_EQ(States(), (std::map<std::string, int>{{"succeeded", all}}));
  EXPECT_THAT(simulation_.violations(), IsEmpty());
  const std::vector<std::string> started = simulation_.started();
  EXPECT_EQ(std::set<std::string>(started.begin(), started.end()).size(), all);
  EXPECT_GT(started.size(), all);  // some were interrupted, and have begun again
  EXPECT_THAT(simulation_.Running(), IsEmpty());
}

// Each job that starts is the one that the rules name, computed by looking at all of them.
TEST_F(CoordinatorSimulationTest, TheNextJobIsTheOneThatTheRulesName) {
  constexpr int kJobs = 10'000, kLooks = 100;
  constexpr absl::Duration kLasts = absl::Seconds(1000);
  std::mt19937 random(11);
  std::map<std::string, v1::Job> waiting;
  std::map<std::string, int> number;
  std::vector<v1::Job> jobs;
  for (int i = 1; i <= kJobs; ++i) {
    v1::Job job =
        QueuedJob(absl::StrCat("owner-", random() % 4), static_cast<int32_t>(random() % 9) - 2);
    if (random() % 100 == 0) job.set_priority_among_owners(std::max(0, job.priority()));
    jobs.push_back(job);
    waiting[absl::StrCat("job-", i)] = job;
    number[absl::StrCat("job-", i)] = i;
  }
  simulation_.Restore(jobs);
  FairShare share;
  const auto first = [&] {
    // Of an owner, the job that comes first among those of the highest level.
    int32_t level = waiting.begin()->second.priority_among_owners();
    for (const auto& [id, job] : waiting) level = std::max(level, job.priority_among_owners());
    std::map<std::string, std::string> of_owner;
    for (const auto& [id, job] : waiting) {
      if (job.priority_among_owners() != level) continue;
      std::string& best = of_owner[job.owner()];
      if (best.empty() || std::make_pair(-job.priority(), number[id]) <
                              std::make_pair(-waiting[best].priority(), number[best])) {
        best = id;
      }
    }
    std::string next;
    double least = 0;
    for (const auto& [owner, id] : of_owner) {
      const double used = share.Usage(owner, simulation_.clock().Now());
      if (next.empty() || used < least || (used == least && number[id] < number[next])) {
        next = id;
        least = used;
      }
    }
    return next;
  };
  simulation_.Join(1);
  for (int i = 0; i < kLooks; ++i) {
    ASSERT_TRUE(simulation_.AwaitRunning(1));
    const CoordinatorSimulation::Run run = simulation_.Running()[0];
    const std::string wanted = first();
    ASSERT_EQ(run.job, wanted) << "start " << i;
    simulation_.Advance(kLasts);
    share.Charge(waiting[wanted].owner(), absl::ToDoubleSeconds(kLasts), simulation_.clock().Now());
    waiting.erase(wanted);
    ASSERT_TRUE(simulation_.Finish(run));
    while (simulation_.started().size() == static_cast<size_t>(i + 1)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  EXPECT_THAT(simulation_.violations(), IsEmpty());
}

TEST_F(CoordinatorSimulationTest, OwnersShareTheWorkersOfOneMoment) {
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 300; ++i) jobs.push_back(QueuedJob("many"));
  for (int i = 0; i < 60; ++i) jobs.push_back(QueuedJob("few"));
  simulation_.Restore(jobs);
  simulation_.Join(100);
  simulation_.Advance(absl::Seconds(1));
  simulation_.jobs().WorkersChanged();
  ASSERT_TRUE(simulation_.AwaitRunning(100));
  int few = 0;
  for (const CoordinatorSimulation::Run& run : simulation_.Running()) {
    few += std::stoi(run.job.substr(4)) > 300 ? 1 : 0;
  }
  EXPECT_EQ(few, 50);
}

TEST_F(CoordinatorSimulationTest, WhatOwnersHaveUsedOutlivesTheCoordinator) {
  simulation_.Join(1);
  simulation_.Submit(simulation_.Spec(), OwnerCaller("ann"));
  ASSERT_TRUE(simulation_.AwaitRunning(1));
  simulation_.Advance(absl::Seconds(1000));
  ASSERT_TRUE(simulation_.Finish(simulation_.Running()[0]));
  ASSERT_TRUE(simulation_.AwaitRunning(0));
  simulation_.Kill(0);
  simulation_.Advance(absl::Minutes(1));
  simulation_.Restart();
  const std::string anns = simulation_.Submit(simulation_.Spec(), OwnerCaller("ann"));
  const std::string bobs = simulation_.Submit(simulation_.Spec(), OwnerCaller("bob"));
  EXPECT_LT(anns, bobs);
  simulation_.Join(1);
  ASSERT_TRUE(simulation_.AwaitRunning(1));
  EXPECT_EQ(simulation_.Running()[0].job, bobs);
}

// Small jobs that keep coming do not starve one that needs all workers.
TEST_F(CoordinatorSimulationTest, ALargeJobIsNotStarved) {
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(QueuedJob("ann"));
  v1::Job large = QueuedJob("ann");
  large.mutable_spec()->mutable_search()->set_strategy(v1::SearchOptions::DATA_PARALLEL);
  large.mutable_spec()->set_min_devices(4);
  jobs.push_back(large);
  for (int i = 0; i < 200; ++i) jobs.push_back(QueuedJob("ann"));
  simulation_.Restore(jobs);
  simulation_.Join(4);
  ASSERT_TRUE(simulation_.AwaitRunning(4));
  while (true) {
    const std::vector<CoordinatorSimulation::Run> running = simulation_.Running();
    if (running.empty()) break;
    simulation_.Finish(running[0]);
    ASSERT_TRUE(simulation_.AwaitRunning(running.size() - 1));
  }
  for (int i = 0; i < 1000 && simulation_.started().size() < 5; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_EQ(simulation_.started().size(), 5u);
  EXPECT_EQ(simulation_.started()[4], "job-5");
}

// What jobs wait for that never comes keeps nobody from starting.
TEST_F(CoordinatorSimulationTest, AJobThatNeedsMoreWorkersThanThereAreLetsOthersGo) {
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 1000; ++i) {
    jobs.push_back(QueuedJob("ann"));
    jobs.back().mutable_spec()->mutable_search()->set_strategy(v1::SearchOptions::DATA_PARALLEL);
    jobs.back().mutable_spec()->set_min_devices(5);
  }
  jobs.push_back(QueuedJob("ann"));
  simulation_.Restore(jobs);
  simulation_.Join(4);
  ASSERT_TRUE(simulation_.AwaitRunning(1));
  EXPECT_EQ(simulation_.Running()[0].job, "job-1001");
  EXPECT_TRUE(simulation_.Finish(simulation_.Running()[0]));
  simulation_.Join(1);
  for (int i = 0; i < 1000 && simulation_.started().size() < 2; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(simulation_.started().back(), "job-1");
}

TEST_F(CoordinatorSimulationTest, ListsAreWholeWhileJobsAreDeletedAndSubmitted) {
  constexpr int kKept = 300, kDeleted = 200, kNew = 50;
  v1::Job over = QueuedJob("ann");
  over.set_state(v1::SUCCEEDED);
  simulation_.Restore(std::vector<v1::Job>(kKept + kDeleted, over));
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1 + t; i <= kDeleted; i += 2) {
        v1::DeleteJobRequest request;
        request.set_job_id(absl::StrCat("job-", i));
        v1::DeleteJobReply reply;
        const absl::Status status = simulation_.jobs().Delete(request, &reply);
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < kNew; ++i) simulation_.Submit(simulation_.Spec(), OwnerCaller("bob"));
  });
  std::thread lister([&] {
    while (!done) {
      std::set<std::string> seen;
      v1::ListJobsRequest request;
      request.set_page_size(64);
      do {
        v1::ListJobsReply reply;
        const absl::Status status =
            simulation_.jobs().List(request, Caller::Unrestricted(), &reply);
        ASSERT_TRUE(status.ok()) << status;
        for (const v1::Job& job : reply.jobs()) EXPECT_TRUE(seen.insert(job.id()).second);
        request.set_page_token(reply.next_page_token());
      } while (!request.page_token().empty());
      for (int i = kDeleted + 1; i <= kDeleted + kKept; ++i) {
        EXPECT_TRUE(seen.contains(absl::StrCat("job-", i)));
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  lister.join();
  EXPECT_EQ(States(), (std::map<std::string, int>{{"succeeded", kKept}, {"queued", kNew}}));
  simulation_.Restart();
  EXPECT_EQ(States(), (std::map<std::string, int>{{"succeeded", kKept}, {"queued", kNew}}));
}

TEST_F(CoordinatorSimulationTest, ADecisionDoesNotCostMoreWithMoreJobs) {
  constexpr int kEvents = 20;
  simulation_.Restore(std::vector<v1::Job>(5000, QueuedJob("ann")));
  simulation_.Join(1);
  ASSERT_TRUE(simulation_.AwaitRunning(1));
  const int64_t before = simulation_.jobs().visited_waiting_jobs();
  for (int i = 0; i < kEvents; ++i) {
    const size_t started = simulation_.started().size();
    ASSERT_TRUE(simulation_.Finish(simulation_.Running()[0]));
    for (int w = 0; w < 10'000 && simulation_.started().size() == started; ++w) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_TRUE(simulation_.AwaitRunning(1));
  }
  const int64_t visited = simulation_.jobs().visited_waiting_jobs() - before;
  EXPECT_GE(visited, kEvents);
  // An event wakes the coordinator some times, and it looks ten times a second without any; each
  // time at the first job only.
  EXPECT_LE(visited, 50 * kEvents);
}

}  // namespace
}  // namespace espalier
