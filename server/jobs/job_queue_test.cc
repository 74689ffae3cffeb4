#include "server/jobs/job_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

WaitingJob Job(int64_t number, const std::string& owner = "ann", int32_t priority = 0,
               int32_t among_owners = 0) {
  WaitingJob job;
  job.id = absl::StrCat("job-", number);
  job.owner = owner;
  job.number = number;
  job.priority = priority;
  job.priority_among_owners = among_owners;
  return job;
}

class JobQueueTest : public ::testing::Test {
 protected:
  JobQueue::Usage Usage() {
    return [this](const std::string& owner) { return usage_[owner]; };
  }
  // Takes the jobs out in the order in which they start; each adds `cost` to its owner's usage.
  std::vector<int64_t> Order(double cost = 0) {
    std::vector<int64_t> numbers;
    while (const WaitingJob* job = queue_.First(Usage())) {
      numbers.push_back(job->number);
      usage_[job->owner] += cost;
      queue_.Remove(std::string(job->id));
    }
    return numbers;
  }

  std::map<std::string, double> usage_;
  JobQueue queue_;
};

using Numbers = std::vector<int64_t>;

TEST_F(JobQueueTest, AnOwnersJobsStartByPriorityThenAge) {
  queue_.Put(Job(3));
  queue_.Put(Job(1));
  queue_.Put(Job(2, "ann", 5));
  queue_.Put(Job(4, "ann", 5));
  queue_.Put(Job(5, "ann", -1));
  EXPECT_EQ(Order(), (Numbers{2, 4, 1, 3, 5}));
}

TEST_F(JobQueueTest, TheOwnerWhoHasUsedLeastGoesFirst) {
  usage_ = {{"ann", 100}, {"bob", 50}};
  queue_.Put(Job(1, "ann"));
  queue_.Put(Job(2, "bob"));
  queue_.Put(Job(3, "eve"));
  EXPECT_EQ(Order(), (Numbers{3, 2, 1}));
}

TEST_F(JobQueueTest, OwnersTakeTurnsHoweverManyJobsOneHas) {
  for (int64_t i = 1; i <= 6; ++i) queue_.Put(Job(i, "ann"));
  for (int64_t i = 7; i <= 9; ++i) queue_.Put(Job(i, "bob"));
  EXPECT_EQ(Order(1), (Numbers{1, 7, 2, 8, 3, 9, 4, 5, 6}));
}

TEST_F(JobQueueTest, PriorityAmongOwnersComesBeforeUsage) {
  usage_ = {{"ann", 1000}, {"bob", 0}};
  queue_.Put(Job(1, "bob", 900, 0));  // only among bob's
  queue_.Put(Job(2, "ann", 10, 10));
  queue_.Put(Job(3, "bob", -1, -1));
  EXPECT_EQ(Order(), (Numbers{2, 1, 3}));
}

TEST_F(JobQueueTest, InterruptedJobsGoFirst) {
  queue_.Put(Job(1, "ann", 100, 100));
  for (const int64_t number : {5, 4}) {
    WaitingJob job = Job(number, "bob", -10, -10);
    job.interrupted = true;
    queue_.Put(job);
  }
  EXPECT_EQ(queue_.Before("job-1", Usage()), 2);
  EXPECT_EQ(Order(), (Numbers{4, 5, 1}));
}

TEST_F(JobQueueTest, AChangedJobHasItsNewPlaceOnly) {
  queue_.Put(Job(1));
  queue_.Put(Job(2));
  queue_.Put(Job(2, "ann", 7, 7));
  EXPECT_EQ(queue_.size(), 2);
  EXPECT_EQ(Order(), (Numbers{2, 1}));
}

TEST_F(JobQueueTest, ParkedJobsReturnToTheirPlaceOnceThereAreEnoughWorkers) {
  for (int64_t i = 1; i <= 3; ++i) queue_.Put(Job(i));
  queue_.Park("job-1", 8);
  EXPECT_EQ(queue_.First(Usage())->number, 2);
  queue_.SetWorkers(7);
  EXPECT_EQ(queue_.First(Usage())->number, 2);
  EXPECT_FALSE(queue_.empty());
  queue_.SetWorkers(8);
  EXPECT_EQ(queue_.First(Usage())->number, 1);
  queue_.Park("job-1", 9);
  queue_.Remove("job-1");
  queue_.SetWorkers(9);
  EXPECT_EQ(Order(), (Numbers{2, 3}));
}

TEST_F(JobQueueTest, SkippedJobsLetOthersGo) {
  for (int64_t i = 1; i <= 3; ++i) queue_.Put(Job(i));
  EXPECT_EQ(queue_.First(Usage(), {"job-1"})->number, 2);
  EXPECT_EQ(queue_.First(Usage(), {"job-1", "job-2", "job-3"}), nullptr);
}

// The place that is told is the one in which the job starts while nothing changes.
TEST_F(JobQueueTest, PlacesAreThoseOfTheOrder) {
  std::mt19937 random(7);
  const std::vector<std::string> owners = {"ann", "bob", "eve"};
  for (int round = 0; round < 50; ++round) {
    usage_.clear();
    for (const std::string& owner : owners) usage_[owner] = static_cast<double>(random() % 100);
    for (int64_t number = 1; number <= 20; ++number) {
      const auto level = static_cast<int32_t>(random() % 3);
      WaitingJob job =
          Job(number, owners[random() % 3], level + static_cast<int32_t>(random() % 2), level);
      job.interrupted = random() % 8 == 0;
      queue_.Put(job);
    }
    std::map<int64_t, int64_t> told;
    for (int64_t number = 1; number <= 20; ++number) {
      told[number] = *queue_.Before(absl::StrCat("job-", number), Usage());
    }
    const Numbers order = Order();
    ASSERT_EQ(order.size(), 20u);
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(told[order[i]], static_cast<int64_t>(i)) << "job " << order[i];
    }
  }
}

TEST_F(JobQueueTest, ALookDoesNotCostMoreWithMoreJobs) {
  const auto cost_with = [this](int64_t jobs) {
    for (int64_t i = queue_.size() + 1; i <= jobs; ++i) {
      queue_.Put(Job(i, absl::StrCat("owner-", i % 5), static_cast<int32_t>(i % 7)));
    }
    const int64_t before = queue_.visited();
    queue_.SetWorkers(100);
    EXPECT_NE(queue_.First(Usage()), nullptr);
    return queue_.visited() - before;
  };
  const int64_t few = cost_with(10);
  EXPECT_EQ(cost_with(10'000), few);
  // Nor with those for which there are too few workers.
  for (int64_t i = 1; i <= 9000; ++i) queue_.Park(absl::StrCat("job-", i), 2000);
  EXPECT_LE(cost_with(10'000), few);
}

}  // namespace
}  // namespace espalier
