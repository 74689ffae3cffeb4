#include "server/recordings/run_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunNamesTest : public ::testing::Test {
 protected:
  void Add(const std::string& experiment, int64_t version, const std::string& job,
           const std::string& owner = "") {
    names_.Put({experiment, version, owner, job});
  }

  // Ids of the jobs that a caller who sees its own and nobody's jobs finds.
  absl::StatusOr<std::vector<std::string>> Find(absl::string_view run,
                                                RunVersions versions = RunVersions::kNewest,
                                                const std::string& owner = "") const {
    return FindAs({owner, [owner](const std::string& of) { return of.empty() || of == owner; }},
                  run, versions);
  }
  absl::StatusOr<std::vector<std::string>> FindAs(const RunCaller& caller, absl::string_view run,
                                                  RunVersions versions) const {
    const absl::StatusOr<std::vector<RunName>> found = names_.Find(run, versions, caller);
    if (!found.ok()) return found.status();
    std::vector<std::string> ids;
    for (const RunName& name : *found) ids.push_back(name.job_id);
    return ids;
  }
  std::string Error(absl::string_view run) const { return Find(run).status().ToString(); }

  RunNames names_;
};

TEST_F(RunNamesTest, ANameMeansTheNewestVersionOrAllOfThem) {
  Add("lm", 1, "job-1");
  Add("lm", 10, "job-3");
  Add("lm", 2, "job-2");
  EXPECT_THAT(*Find("lm"), ElementsAre("job-3"));
  EXPECT_THAT(*Find("lm", RunVersions::kAll), ElementsAre("job-1", "job-2", "job-3"));
  EXPECT_THAT(*Find("lm@2"), ElementsAre("job-2"));
  EXPECT_THAT(*Find("lm@2", RunVersions::kAll), ElementsAre("job-2"));
  EXPECT_THAT(*Find("lm@*"), ElementsAre("job-1", "job-2", "job-3"));
  EXPECT_THAT(*Find("job-1"), ElementsAre("job-1"));
}

TEST_F(RunNamesTest, APatternMeansEachExperimentThatMatches) {
  Add("lm-small", 1, "job-1");
  Add("lm-small", 2, "job-2");
  Add("lm-large", 1, "job-3");
  Add("digits", 1, "job-4");
  EXPECT_THAT(*Find("lm*"), ElementsAre("job-3", "job-2"));
  EXPECT_THAT(*Find("lm*@*"), ElementsAre("job-3", "job-1", "job-2"));
  EXPECT_THAT(*Find("lm*@2"), ElementsAre("job-2"));
  EXPECT_THAT(*Find("*", RunVersions::kAll), ElementsAre("job-4", "job-3", "job-1", "job-2"));
  EXPECT_THAT(*Find("", RunVersions::kAll), ElementsAre("job-4", "job-3", "job-1", "job-2"));
  EXPECT_TRUE(absl::IsNotFound(Find("x*").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Find("").status()));
}

TEST_F(RunNamesTest, AMissingNameComesWithASimilarOne) {
  Add("language-model", 1, "job-1");
  Add("language-model", 3, "job-2");
  EXPECT_THAT(Error("langauge-model"), HasSubstr("NOT_FOUND"));
  EXPECT_THAT(Error("langauge-model"), HasSubstr("did you mean 'language-model'?"));
  EXPECT_THAT(Error("langauge-model@1"), HasSubstr("did you mean 'language-model'?"));
  EXPECT_THAT(Error("language-model@2"), HasSubstr("has no version 2; it has 1, 3"));
  EXPECT_THAT(Error("lang*@2"), HasSubstr("no experiment that matches 'lang*' has a version 2"));
  EXPECT_THAT(Error("language-model@newest"), HasSubstr("NOT_FOUND"));
}

TEST_F(RunNamesTest, NamesMayHaveAtSignsAndStars) {
  Add("lm@home", 1, "job-1");
  Add("lm@home", 2, "job-2");
  Add("a*", 1, "job-3");
  Add("ab", 1, "job-4");
  Add("lm", 3, "job-5");
  Add("lm@3", 1, "job-6");
  EXPECT_THAT(*Find("lm@home"), ElementsAre("job-2"));
  EXPECT_THAT(*Find("lm@home@1"), ElementsAre("job-1"));
  EXPECT_THAT(*Find("a*"), ElementsAre("job-3"));
  EXPECT_THAT(*Find("lm@3"), ElementsAre("job-5"));
  EXPECT_THAT(*Find("lm@3@1"), ElementsAre("job-6"));
}

TEST_F(RunNamesTest, NobodySeesAnotherOwnersRuns) {
  Add("lm", 1, "job-1", "alice");
  Add("lm", 1, "job-2", "bob");
  Add("lm", 2, "job-3", "bob");
  EXPECT_THAT(*Find("lm", RunVersions::kNewest, "alice"), ElementsAre("job-1"));
  EXPECT_THAT(*Find("lm@*", RunVersions::kNewest, "bob"), ElementsAre("job-2", "job-3"));
  EXPECT_TRUE(absl::IsNotFound(Find("lm@2", RunVersions::kNewest, "alice").status()));
  const absl::Status hidden = Find("job-2", RunVersions::kNewest, "alice").status();
  EXPECT_TRUE(absl::IsNotFound(hidden)) << hidden;
  const absl::Status similar = Find("ln", RunVersions::kNewest, "carol").status();
  EXPECT_TRUE(absl::IsNotFound(similar));
  EXPECT_EQ(similar.message().find("did you mean"), std::string::npos) << similar;
  EXPECT_THAT(*Find("", RunVersions::kAll, "carol"), ElementsAre());
}

TEST_F(RunNamesTest, WhoSeesAllHasToSayWhose) {
  Add("lm", 1, "job-1", "alice");
  Add("lm", 4, "job-2", "bob");
  const RunCaller admin{"root", [](const std::string&) { return true; }};
  const absl::Status whose = FindAs(admin, "lm", RunVersions::kNewest).status();
  EXPECT_TRUE(absl::IsInvalidArgument(whose));
  EXPECT_THAT(std::string(whose.message()), HasSubstr("alice, bob"));
  EXPECT_THAT(*FindAs(admin, "lm", RunVersions::kAll), ElementsAre("job-1", "job-2"));
  EXPECT_THAT(*FindAs(admin, "l*", RunVersions::kNewest), ElementsAre("job-1", "job-2"));
  Add("lm", 1, "job-3", "root");
  EXPECT_THAT(*FindAs(admin, "lm", RunVersions::kNewest), ElementsAre("job-3"));
}

TEST_F(RunNamesTest, AVersionIsGivenOnce) {
  EXPECT_EQ(names_.TakeVersion("", "lm"), 1);
  Add("lm", 1, "job-1");
  EXPECT_EQ(names_.TakeVersion("", "lm"), 2);
  Add("lm", 2, "job-2");
  names_.Remove("job-2");
  EXPECT_THAT(*Find("lm"), ElementsAre("job-1"));
  EXPECT_EQ(names_.TakeVersion("", "lm"), 3);
  EXPECT_EQ(names_.TakeVersion("alice", "lm"), 1);
  names_.Reserve("", "digits", 7);
  EXPECT_EQ(names_.LastVersion("", "digits"), 7);
  EXPECT_TRUE(absl::IsNotFound(Find("digits").status()));
  EXPECT_EQ(names_.TakeVersion("", "digits"), 8);
}

TEST_F(RunNamesTest, PutReplacesTheRunOfAJob) {
  Add("lm", 1, "job-1");
  Add("other", 2, "job-1");
  EXPECT_TRUE(absl::IsNotFound(Find("lm").status()));
  EXPECT_THAT(*Find("other@2"), ElementsAre("job-1"));
}

}  // namespace
}  // namespace espalier
