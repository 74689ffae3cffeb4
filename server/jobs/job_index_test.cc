#include "server/jobs/job_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Ids = std::vector<std::string>;

class JobIndexTest : public ::testing::Test {
 protected:
  // Odd jobs are ann's, even ones bob's.
  void Add(int64_t number, v1::JobState state = v1::QUEUED) {
    v1::Job job;
    job.set_id(absl::StrCat("job-", number));
    job.set_owner(number % 2 == 1 ? "ann" : "bob");
    job.mutable_spec()->set_name(absl::StrCat("net-", number % 3));
    job.mutable_spec()->set_init_artifact(number % 3 == 0 ? "llama@2" : "");
    job.set_created_unix_ms(1000 * number);
    job.set_state(state);
    index_.Put(SummaryOf(number, job));
  }
  Ids List(const v1::ListJobsRequest& request) {
    const auto page = index_.List(request, may_see_);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->ids : Ids();
  }
  // All pages.
  Ids Pages(v1::ListJobsRequest request) {
    Ids all;
    while (true) {
      const auto page = index_.List(request, may_see_);
      EXPECT_TRUE(page.ok()) << page.status();
      all.insert(all.end(), page->ids.begin(), page->ids.end());
      if (page->next_page_token.empty()) return all;
      request.set_page_token(page->next_page_token);
      if (between_) between_();
    }
  }

  JobIndex::MaySee may_see_ = [](const std::string&) { return true; };
  std::function<void()> between_;
  JobIndex index_;
};

TEST_F(JobIndexTest, FiltersAreAllMet) {
  for (int64_t i = 1; i <= 6; ++i) Add(i, i <= 2 ? v1::SUCCEEDED : v1::QUEUED);
  v1::ListJobsRequest request;
  EXPECT_EQ(List(request).size(), 6u);
  request.add_states(v1::QUEUED);
  EXPECT_EQ(List(request), (Ids{"job-3", "job-4", "job-5", "job-6"}));
  request.set_owner("ann");
  EXPECT_EQ(List(request), (Ids{"job-3", "job-5"}));
  request.set_model("llama*");
  EXPECT_EQ(List(request), (Ids{"job-3"}));
  request.Clear();
  request.set_name("net-2");
  EXPECT_EQ(List(request), (Ids{"job-2", "job-5"}));
  request.set_name("job-5");
  EXPECT_EQ(List(request), (Ids{"job-5"}));
  request.Clear();
  request.set_submitted_from_unix_ms(3000);
  request.set_submitted_before_unix_ms(5000);
  EXPECT_EQ(List(request), (Ids{"job-3", "job-4"}));
  request.add_states(v1::FAILED);
  EXPECT_EQ(List(request), Ids());
}

TEST_F(JobIndexTest, OnlyWhatTheCallerMaySeeIsListedAndCounted) {
  for (int64_t i = 1; i <= 5; ++i) Add(i);
  may_see_ = [](const std::string& owner) { return owner == "bob"; };
  v1::ListJobsRequest request;
  EXPECT_EQ(List(request), (Ids{"job-2", "job-4"}));
  EXPECT_EQ(index_.List(request, may_see_)->matching, 2);
  request.set_owner("ann");
  EXPECT_EQ(List(request), Ids());
  EXPECT_EQ(index_.Count(may_see_), (std::map<v1::JobState, int>{{v1::QUEUED, 2}}));
}

TEST_F(JobIndexTest, PagesHoldEveryJobOnceInEitherOrder) {
  Ids all;
  for (int64_t i = 1; i <= 25; ++i) {
    Add(i);
    all.push_back(absl::StrCat("job-", i));
  }
  v1::ListJobsRequest request;
  for (const int size : {1, 7, 24, 25, 26}) {
    request.set_page_size(size);
    request.set_newest_first(false);
    EXPECT_EQ(Pages(request), all) << size;
    request.set_newest_first(true);
    EXPECT_EQ(Pages(request), Ids(all.rbegin(), all.rend())) << size;
  }
  EXPECT_EQ(index_.List(request, may_see_)->matching, 25);
}

TEST_F(JobIndexTest, PagesOfSomeStatesHoldEveryJobOnceInEitherOrder) {
  Ids some;
  for (int64_t i = 1; i <= 25; ++i) {
    Add(i, i % 3 == 0 ? v1::RUNNING : i % 3 == 1 ? v1::FAILED : v1::QUEUED);
    if (i % 3 != 2) some.push_back(absl::StrCat("job-", i));
  }
  Add(25, v1::QUEUED);  // it was queued again
  some.pop_back();
  v1::ListJobsRequest request;
  for (const v1::JobState state : {v1::FAILED, v1::RUNNING, v1::FAILED}) request.add_states(state);
  for (const int size : {1, 3, 16, 17}) {
    request.set_page_size(size);
    request.set_newest_first(false);
    EXPECT_EQ(Pages(request), some) << size;
    request.set_newest_first(true);
    EXPECT_EQ(Pages(request), Ids(some.rbegin(), some.rend())) << size;
  }
  EXPECT_EQ(index_.List(request, may_see_)->matching, 16);
}

TEST_F(JobIndexTest, JobsThatComeAndGoBetweenPagesMoveNoOther) {
  for (int64_t i = 1; i <= 10; ++i) Add(i);
  int64_t next = 11;
  int64_t gone = 1;
  between_ = [&] {
    Add(next++);
    index_.Remove(gone++);
  };
  v1::ListJobsRequest request;
  request.set_page_size(4);
  request.set_newest_first(true);
  EXPECT_EQ(Pages(request),
            (Ids{"job-10", "job-9", "job-8", "job-7", "job-6", "job-5", "job-4", "job-3"}));
}

TEST_F(JobIndexTest, ChangedJobsAreCountedOnce) {
  Add(1);
  Add(1, v1::RUNNING);
  Add(2);
  index_.Remove(2);
  index_.Remove(2);
  EXPECT_EQ(index_.Count(may_see_), (std::map<v1::JobState, int>{{v1::RUNNING, 1}}));
}

TEST_F(JobIndexTest, BadRequestsAreRefused) {
  Add(1);
  const auto error = [&](const v1::ListJobsRequest& request) {
    return std::string(index_.List(request, may_see_).status().message());
  };
  v1::ListJobsRequest request;
  request.set_page_size(-1);
  EXPECT_NE(error(request).find("page_size is -1"), std::string::npos);
  request.set_page_size(1001);
  EXPECT_NE(error(request).find("page_size is 1001"), std::string::npos);
  request.Clear();
  for (const char* token : {"x", "n", "n-1", "n0", "mjob", "n1x", "1"}) {
    request.set_page_token(token);
    EXPECT_NE(error(request).find("page_token"), std::string::npos) << token;
  }
  request.Clear();
  request.mutable_states()->Add(42);
  EXPECT_NE(error(request).find("states"), std::string::npos);
}

}  // namespace
}  // namespace espalier
