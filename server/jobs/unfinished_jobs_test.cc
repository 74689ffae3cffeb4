#include "server/jobs/unfinished_jobs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace espalier {
namespace {

v1::Job Job(const std::string& id, const std::string& owner, const std::string& dataset,
            const std::string& output = "") {
  v1::Job job;
  job.set_id(id);
  job.set_owner(owner);
  job.mutable_spec()->mutable_dataset()->set_uri(dataset);
  job.mutable_spec()->set_output_model(output);
  return job;
}

std::set<std::string> Used(const UnfinishedJobs& jobs) {
  std::set<std::string> names;
  for (const ArtifactUse& use : jobs.Inputs()) names.insert(use.artifact);
  return names;
}

TEST(UnfinishedJobs, AnArtifactIsUsedUntilItsLastReaderIsOver) {
  UnfinishedJobs jobs;
  jobs.Add(1, Job("job-1", "ann", "artifact:digits"));
  jobs.Add(2, Job("job-2", "ann", "artifact:digits"));
  jobs.Add(3, Job("job-3", "ann", "/data/text"));
  EXPECT_EQ(Used(jobs), std::set<std::string>{"digits"});
  EXPECT_NE(jobs.Inputs()[0].remedy.find("job-1"), std::string::npos);
  jobs.Remove(1);
  EXPECT_EQ(Used(jobs), std::set<std::string>{"digits"});
  EXPECT_NE(jobs.Inputs()[0].remedy.find("job-2"), std::string::npos);
  jobs.Remove(2);
  jobs.Remove(2);
  EXPECT_TRUE(Used(jobs).empty());
}

TEST(UnfinishedJobs, TheNameOfAModelIsItsJobsFromTheStart) {
  UnfinishedJobs jobs;
  jobs.Add(1, Job("job-1", "ann", "", "net"));
  jobs.Add(2, Job("job-2", "bob", ""));
  EXPECT_EQ(jobs.OwnerOfOutput("net"), "ann");
  EXPECT_EQ(jobs.OwnerOfOutput("job-2"), "bob");
  EXPECT_EQ(jobs.OwnerOfOutput("job-1"), std::nullopt);
  jobs.Remove(1);
  EXPECT_EQ(jobs.OwnerOfOutput("net"), std::nullopt);
}

}  // namespace
}  // namespace espalier
