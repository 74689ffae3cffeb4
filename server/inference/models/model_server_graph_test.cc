// Trained graphs beside language models.
#include <gmock/gmock.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/inference/models/model_server_fixture.h"

namespace espalier {
namespace {

using model_server_fixture::ModelServerTest;
using model_server_fixture::Request;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers with its input once it is let go.
class Echo : public BatchRunner {
 public:
  explicit Echo(absl::Notification* go) : go_(*go) {
    signature_.inputs = {{"x", {DType::kU8, {}}}};
    signature_.outputs = {{"y", {DType::kU8, {}}}};
  }
  const GraphSignature& signature() const override { return signature_; }
  int64_t max_batch() const override { return 1; }
  absl::Status Run(const std::vector<BatchPart>& parts) override {
    go_.WaitForNotification();
    for (const BatchPart& part : parts) (*part.outputs)[0] = (*part.inputs)[0];
    return absl::OkStatus();
  }

 private:
  absl::Notification& go_;
  GraphSignature signature_;
};

// Knows artifacts "graph" and "graph@...".
class Graphs : public GraphLoader {
 public:
  absl::StatusOr<bool> IsGraph(const std::string& artifact) const override {
    return artifact.substr(0, artifact.find('@')) == "graph";
  }
  absl::StatusOr<Loaded> Load(const std::string& artifact, const v1::GraphBatching& batching,
                              int max_queue) const override {
    loaded.push_back(artifact);
    Loaded made;
    *made.graph.mutable_batching() = batching;
    made.graph.add_outputs()->set_name("y");
    made.parameters = 7;
    made.predictor = std::make_unique<Predictor>(
        std::make_unique<Echo>(&go), PredictorOptions{.max_queue = max_queue, .clock = &clock});
    return made;
  }

  SystemClock clock;
  mutable absl::Notification go;
  mutable std::vector<std::string> loaded;
};

class ModelServerGraphTest : public ModelServerTest {
 protected:
  ModelServerGraphTest() {
    graphs_ = &graphs;
    Restart();
  }
  ~ModelServerGraphTest() override { models_.reset(); }

  std::string ErrorOf(const v1::ServeModelRequest& request) {
    const absl::Status status = models_->Serve(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  Graphs graphs;
};

TEST_F(ModelServerGraphTest, AGraphIsServedBesideALanguageModel) {
  Serve("llm");
  const auto served = models_->Serve(Request("graph"));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->artifact_version(), "graph@1");
  EXPECT_EQ(served->parameters(), 7);
  EXPECT_EQ(served->graph().outputs(0).name(), "y");
  EXPECT_EQ(served->graph().batching().max_batch_size(), 32);
  EXPECT_EQ(State("graph"), "");
  const Caller all = Caller::Unrestricted();
  EXPECT_EQ(models_->ResolveAny("graph", all)->model->description.name(), "graph");
  // No prompt reaches it, not even one that names no model.
  const absl::Status refused = models_->Resolve("graph", all).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("/v2/models/graph/infer"));
  EXPECT_EQ(models_->ResolveOrOnly("", all)->model->description.name(), "llm");
  EXPECT_EQ(models_->ListFor(all).size(), 1u);
  EXPECT_THAT(models_->Names(all), ElementsAre("graph", "llm"));
  EXPECT_EQ(models_->CountByState().at("ready"), 2);
  metrics_.Collect();
}

TEST_F(ModelServerGraphTest, OptionsOfTheOtherKindAndOutOfRangeAreRefusedByName) {
  v1::ServeModelRequest request = Request("graph");
  request.set_tensor_parallel(2);
  EXPECT_EQ(ErrorOf(request),
            "field 'tensor_parallel' is for language models, and artifact 'graph' is a trained "
            "graph; leave it out");
  request = Request("graph");
  request.mutable_graph()->set_max_batch_size(-1);
  EXPECT_THAT(ErrorOf(request), HasSubstr("'graph.max_batch_size' is -1, expected 1 to"));
  request.mutable_graph()->set_max_batch_size(8);
  request.mutable_graph()->set_max_queue_delay_microseconds(int64_t{1} << 40);
  EXPECT_THAT(ErrorOf(request), HasSubstr("'graph.max_queue_delay_microseconds' is"));
  request = Request("llm");
  request.mutable_graph()->set_max_batch_size(8);
  EXPECT_THAT(ErrorOf(request), HasSubstr("field 'graph' is for trained graphs"));
}

TEST_F(ModelServerGraphTest, TheSameVersionIsServedAfterARestart) {
  v1::ServeModelRequest request = Request("graph");
  request.mutable_graph()->set_max_batch_size(5);
  ASSERT_TRUE(models_->Serve(request).ok());
  EXPECT_TRUE(models_->Serve(request).ok());  // the same call
  newest_ = 2;
  RestartWithModels();
  ASSERT_TRUE(AwaitRestored());
  EXPECT_THAT(graphs.loaded, ElementsAre("graph@1", "graph@1"));
  const auto model = models_->ResolveAny("graph", Caller::Unrestricted());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->model->description.graph().batching().max_batch_size(), 5);
}

TEST_F(ModelServerGraphTest, UnserveEndsItsRequests) {
  ASSERT_TRUE(models_->Serve(Request("graph")).ok());
  std::vector<std::shared_ptr<absl::Notification>> over;
  std::vector<absl::Status> statuses(2);
  for (size_t i = 0; i < 2; ++i) {
    over.push_back(std::make_shared<absl::Notification>());
    models_->Find("graph").value()->predictor->Predict(
        1, {"x"}, absl::InfiniteFuture(),
        [&statuses, i, done = over[i]](const absl::StatusOr<Predictor::Outputs>& outputs) {
          statuses[i] = outputs.status();
          done->Notify();
        });
  }
  EXPECT_EQ(models_->OpenRequests(), 2);
  models_->EndRequests(absl::UnavailableError("over"));
  over[1]->WaitForNotification();
  EXPECT_EQ(statuses[1], absl::UnavailableError("over"));
  graphs.go.Notify();
  ASSERT_TRUE(models_->Unserve("graph").ok());
  over[0]->WaitForNotification();
  EXPECT_EQ(statuses[0], absl::UnavailableError("over"));
  EXPECT_EQ(State("graph"), "none");
  EXPECT_TRUE(Stored().empty());
}

}  // namespace
}  // namespace espalier
