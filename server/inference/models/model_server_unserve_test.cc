// Models that are unserved, and served again under their name.
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/models/model_server_fixture.h"

namespace espalier::model_server_fixture {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ModelServerTest, UnserveDuringRestoreIsFinal) {
  Serve("a");
  loader_.Hold("a");
  RestartWithModels();
  ASSERT_TRUE(loader_.AwaitLoads(2));
  EXPECT_TRUE(models_->Unserve("a").ok());
  EXPECT_THAT(Stored(), IsEmpty());
  loader_.Hold("");
  ASSERT_TRUE(loader_.AwaitGoing(2));
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  EXPECT_THAT(models_->Names(Caller::Unrestricted()), IsEmpty());
}

TEST_F(ModelServerTest, UnserveDuringLoadIsFinal) {
  loader_.Hold("a");
  absl::Status served;
  std::thread serving([&] { served = models_->Serve(Request("a")).status(); });
  ASSERT_TRUE(loader_.AwaitLoads(1));
  EXPECT_TRUE(models_->Unserve("a").ok());
  loader_.Hold("");
  serving.join();
  EXPECT_TRUE(absl::IsAborted(served)) << served;
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  EXPECT_THAT(Stored(), IsEmpty());
}

// Regression: a client that lost the first answer got NotFound.
TEST_F(ModelServerTest, RepeatedUnserveIsIdempotent) {
  Serve("a");
  Serve("b");
  EXPECT_EQ(models_->Unserve("").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(models_->Unserve("a", "once").ok());
  EXPECT_TRUE(models_->Unserve("a", "once").ok());
  Serve("a");
  EXPECT_TRUE(models_->Unserve("a", "once").ok());
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk) << "it was served since";
  const absl::Status changed = models_->Unserve("b", "once");
  EXPECT_TRUE(absl::IsInvalidArgument(changed)) << changed;
  EXPECT_THAT(changed.message(), HasSubstr("another request"));
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
  EXPECT_TRUE(absl::IsNotFound(models_->Unserve("c", "another")));
}

TEST_F(ModelServerTest, ARepeatedServeIsOneModelAndAChangedOneIsRefused) {
  v1::ServeModelRequest request = Request("a");
  request.set_idempotency_key("once");
  ASSERT_TRUE(models_->Serve(request).ok());
  const auto again = models_->Serve(request);
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(loader_.loads(), 1);
  request.set_max_queue(7);
  const absl::Status changed = models_->Serve(request).status();
  EXPECT_TRUE(absl::IsAlreadyExists(changed)) << changed;
}

// Clients see the name that they gave; the version behind it stays until the model is unserved.
TEST_F(ModelServerTest, ModelsKeepTheirVersionUnderTheNameThatWasAskedFor) {
  using Versions = std::map<std::string, std::string>;
  v1::ServeModelRequest request = Request("m");
  request.add_ssm_artifacts("s@1");
  auto served = models_->Serve(request);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->name(), "m");
  EXPECT_EQ(served->artifact(), "m");
  EXPECT_EQ(served->artifact_version(), "m@1");
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@1"}, {"s@1", "s@1"}}));
  newest_ = 2;
  RestartWithModels();
  ASSERT_TRUE(Eventually([&] { return Found("m") == absl::StatusCode::kOk; }));
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@1"}, {"s@1", "s@1"}}));
  std::vector<std::string> used;
  for (const ArtifactUse& use : models_->ArtifactsInUse()) used.push_back(use.artifact);
  EXPECT_EQ(used, (std::vector<std::string>{"m@1", "s@1"}));

  ASSERT_TRUE(models_->Unserve("m").ok());
  served = models_->Serve(Request("m"));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->artifact(), "m");
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@2"}}));
  ASSERT_TRUE(models_->Unserve("m").ok());
  served = models_->Serve(Request("m@1"));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->name(), "m");
  EXPECT_EQ(served->artifact(), "m@1");
}

TEST_F(ModelServerTest, UnserveDoesNotWaitForALoad) {
  Serve("a");
  loader_.Hold("b");
  std::thread serving([&] { EXPECT_TRUE(models_->Serve(Request("b")).ok()); });
  EXPECT_TRUE(loader_.AwaitLoads(2));
  absl::Notification unserved;
  std::thread unserving([&] {
    EXPECT_TRUE(models_->Unserve("a").ok());
    unserved.Notify();
  });
  EXPECT_TRUE(unserved.WaitForNotificationWithTimeout(kSoon));
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  loader_.Hold("");
  serving.join();
  unserving.join();
  EXPECT_THAT(Stored(), ElementsAre("b"));
}

TEST_F(ModelServerTest, ReserveWaitsForTheOldModelsDestruction) {
  Serve("a");
  loader_.HoldGoing(true);
  std::thread unserving([&] { EXPECT_TRUE(models_->Unserve("a").ok()); });
  EXPECT_TRUE(loader_.AwaitGoing(1));
  std::thread serving([&] { EXPECT_TRUE(models_->Serve(Request("a")).ok()); });
  Serve("b");  // blocks no other model
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(loader_.loads(), 2);
  loader_.HoldGoing(false);
  unserving.join();
  serving.join();
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
}

// A request that is still being read holds its model.
TEST_F(ModelServerTest, ReserveWaitsForRequestsOnTheOldModel) {
  release_timeout_ = absl::Milliseconds(10);
  Restart();
  Serve("a");
  auto held = models_->Find("a");
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(models_->Unserve("a").ok()) << "which does not wait for ever";
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  const absl::Status taken = models_->Serve(Request("a")).status();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << "nor does Serve: " << taken;
  EXPECT_THAT(taken.message(), HasSubstr("requests that are still being read"));
  Serve("b");  // blocks no other model
  held = absl::NotFoundError("");
  Serve("a");
  EXPECT_EQ(loader_.loads(), 3);
  EXPECT_EQ(loader_.gone_before(), 1) << "its session would end that of the new one";
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
}

TEST_F(ModelServerTest, UnserveReturnsOnceResourcesAreFree) {
  Serve("a");
  absl::Notification holds;
  std::thread request([&] {
    const auto held = models_->Find("a");
    holds.Notify();
    EXPECT_TRUE(Eventually([&] { return Found("a") == absl::StatusCode::kNotFound; }));
    absl::SleepFor(absl::Milliseconds(50));  // time for Unserve to return if it did not wait
  });
  holds.WaitForNotification();
  EXPECT_TRUE(models_->Unserve("a").ok());
  Serve("b");
  EXPECT_EQ(loader_.gone_before(), 1);
  request.join();
}

}  // namespace
}  // namespace espalier::model_server_fixture
