// Mistakes in planning requests, through the code that answers the Planner service: each gives an
// error with place, numbers and remedy, and the next request succeeds.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "gtest/gtest.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "planner/machine/presets.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/planner_request_handler.h"
#include "server/membership/worker_registry.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 16;

class PlanRequestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    const std::string folder = ::testing::TempDir() + "/bad_input";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    files_ = NewPosixFileSystem();
    auto store = SqliteStore::Open(folder + "/jobs.db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto artifacts =
        ArtifactStore::Open(folder + "/artifacts", files_.get(), store_.get(), &clock_);
    ASSERT_TRUE(artifacts.ok()) << artifacts.status();
    artifacts_ = *std::move(artifacts);
    workers_ = std::make_unique<WorkerRegistry>(&clock_, absl::Seconds(10),
                                                [] { return absl::StatusOr<uint64_t>(1); });
    planner_ = std::make_unique<CalibratedPlanner>(&registry_, store_.get(), 0);
    calls_ = std::make_unique<PlannerRequestHandler>(
        &registry_, planner_.get(), artifacts_.get(), workers_.get(), store_.get(),
        [](const Member&) { return std::unique_ptr<WorkerClient>(); });
  }

  // A valid request, an MLP on four devices of 64 MiB, whose first two operators fuse into one,
  // 'act'.
  v1::PlanRequest Good() {
    GraphBuilder b(registry_, "mlp");
    const ValueId x = b.Input("x", DType::kF32, {-1, 12});
    const Initializer init{Initializer::kNormal, 0.1};
    ValueId h =
        b.Op("linear", {x, b.Parameter("fc1.weight", DType::kF32, {16, 12}, init)}, {}, "fc1");
    h = b.Op("relu", {h}, {}, "act");
    h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, 16}, init)}, {}, "fc2");
    const ValueId labels = b.Input("labels", DType::kI32, {-1});
    b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
    absl::StatusOr<Graph> graph = b.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    v1::PlanRequest request;
    *request.mutable_graph() = ToProto(*graph);
    request.set_batch_size(kBatch);
    for (int i = 0; i < 4; ++i) {
      v1::Device* device = request.add_devices();
      device->set_model("test");
      device->set_memory_bytes(int64_t{64} << 20);
      device->set_matmul_flops(1e11);
      device->set_memory_bandwidth(1e10);
    }
    request.mutable_search()->set_budget(200);
    return request;
  }

  absl::Status Ask(const v1::PlanRequest& request, v1::Plan* plan = nullptr) {
    v1::PlanReply reply;
    absl::Status status = calls_->Make(request, {}, &reply);
    if (plan != nullptr) *plan = reply.plan();
    return status;
  }

  // Returns the error for a machine file with `from` replaced by `to`.
  v1::PlanRequest OnMachine(const std::string& from, const std::string& to) {
    absl::StatusOr<std::string> text = PresetText("a100-cluster", 16);
    EXPECT_TRUE(text.ok()) << text.status();
    const std::string changed = absl::StrReplaceAll(*text, {{from, to}});
    EXPECT_NE(changed, *text) << from << " is not in " << *text;
    v1::PlanRequest request = Good();
    request.clear_devices();
    request.set_machine_file(changed);
    return request;
  }

  // Applies `change` to a plan made for Good().
  v1::PlanRequest WithPlan(const std::function<void(v1::Plan*)>& change) {
    v1::PlanRequest request = Good();
    v1::Plan plan;
    EXPECT_EQ(Ask(request, &plan), absl::OkStatus());
    change(&plan);
    request.mutable_search()->set_strategy(v1::SearchOptions::IMPORTED);
    *request.mutable_search()->mutable_imported() = std::move(plan);
    return request;
  }

  v1::PlanRequest Changed(const std::function<void(v1::PlanRequest*)>& change) {
    v1::PlanRequest request = Good();
    change(&request);
    return request;
  }

  OpRegistry registry_;
  SystemClock clock_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
  std::unique_ptr<WorkerRegistry> workers_;
  std::unique_ptr<CalibratedPlanner> planner_;
  std::unique_ptr<PlannerRequestHandler> calls_;
};

TEST_F(PlanRequestTest, ErrorsNamePlaceNumbersAndRemedy) {
  struct Case {
    const char* what;
    v1::PlanRequest request;
    absl::StatusCode code;
    std::vector<std::string> words;  // of the message: place, numbers, remedy
  };
  using Code = absl::StatusCode;
  const auto first = [](v1::Plan* plan) { return plan->mutable_operators(0); };
  const std::vector<Case> cases = {
      {"a bandwidth below zero",
       OnMachine("255 GB/s", "-255 GB/s"),
       Code::kInvalidArgument,
       {"machine_file", "devices[0]", "bandwidth", "-2.55e+11"}},
      {"a device below a node that is not there",
       OnMachine("\"parent\": \"host\"", "\"parent\": \"nowhere\""),
       Code::kInvalidArgument,
       {"machine_file", "\"gpu\"", "nowhere", "the name of a node"}},
      {"a circle of links",
       OnMachine("\"parent\": \"network\"", "\"parent\": \"host\""),
       Code::kInvalidArgument,
       {"machine_file", "a cycle", "\"host\""}},
      {"a machine that is no JSON", OnMachine("{", "["), Code::kInvalidArgument, {"machine_file"}},
      {"a preset that there is not",
       Changed([](v1::PlanRequest* r) {
         r->clear_devices();
         r->set_machine_preset("h2000");
       }),
       Code::kNotFound,
       {"machine_preset", "h2000", "h200-cluster"}},
      {"a device without memory",
       Changed([](v1::PlanRequest* r) { r->mutable_devices(2)->set_memory_bytes(0); }),
       Code::kInvalidArgument,
       {"devices[2].memory_bytes is 0", "greater than zero"}},

      {"a plan for another graph",
       WithPlan([](v1::Plan* plan) {
         plan->mutable_operators(1)->set_node("other");
         plan->set_graph_fingerprint("0123");
       }),
       Code::kInvalidArgument,
       {"another graph", "'0123'", "'other'"}},
      {"a plan of another batch",
       [&] {
         v1::PlanRequest request = WithPlan([](v1::Plan*) {});
         request.set_batch_size(2 * kBatch);
         return request;
       }(),
       Code::kInvalidArgument,
       {"another graph", "batch size 16", "shapes, attributes or the batch size differ"}},
      {"a plan of another version",
       WithPlan([](v1::Plan* plan) { plan->set_format_version(2); }),
       Code::kInvalidArgument,
       {"format_version is 2", "expected 1"}},
      {"a degree that does not divide",
       WithPlan([&](v1::Plan* plan) { (*first(plan)->mutable_degrees())["sample"] = 3; }),
       Code::kInvalidArgument,
       {"operator 'act'", "sample", "3", "16"}},
      {"a degree of zero",
       WithPlan([&](v1::Plan* plan) { (*first(plan)->mutable_degrees())["sample"] = 0; }),
       Code::kInvalidArgument,
       {"operator 'act'", "sample", "0"}},
      {"an axis that there is not",
       WithPlan([&](v1::Plan* plan) { (*first(plan)->mutable_degrees())["depth"] = 2; }),
       Code::kInvalidArgument,
       {"operator 'act'", "'depth'", "it has: "}},
      {"a device that there is not",
       WithPlan([&](v1::Plan* plan) {
         first(plan)->clear_degrees();
         first(plan)->clear_devices();
         first(plan)->add_devices(4);
       }),
       Code::kInvalidArgument,
       {"operator 'act'", "4"}},
      {"more parts than devices",
       WithPlan([&](v1::Plan* plan) {
         (*first(plan)->mutable_degrees())["sample"] = 2;
         first(plan)->clear_devices();
         first(plan)->add_devices(0);
       }),
       Code::kInvalidArgument,
       {"operator 'act'", "2", "1"}},
      {"an operator that is missing",
       WithPlan([](v1::Plan* plan) { plan->mutable_operators()->RemoveLast(); }),
       Code::kInvalidArgument,
       {"of the graph is missing"}},
      {"a plan for more devices",
       [&] {
         v1::PlanRequest request = WithPlan([](v1::Plan*) {});
         request.mutable_devices()->RemoveLast();
         return request;
       }(),
       Code::kInvalidArgument,
       {"for 4 devices", "there are 3"}},
      {"batch tiles that are no power of two",
       WithPlan([](v1::Plan* plan) { plan->set_batch_tiles(6); }),
       Code::kInvalidArgument,
       {"'batch_tiles' is 6", "a power of two"}},

      {"a budget of zero",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_budget(0); }),
       Code::kInvalidArgument,
       {"search.budget is 0", "1 to 100000000", "DATA_PARALLEL"}},
      {"a budget below zero",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_budget(-5); }),
       Code::kInvalidArgument,
       {"search.budget is -5", "1 to 100000000"}},
      {"alpha that is no number",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_alpha(0.0 / 0.0); }),
       Code::kInvalidArgument,
       {"search.alpha is", "0 (annealing) or more"}},
      {"more stages than operators",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_pipeline_stages(100); }),
       Code::kInvalidArgument,
       {"search.pipeline_stages is 100", "4 devices"}},
      {"more stages than are sought",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_pipeline_stages(129); }),
       Code::kInvalidArgument,
       {"search.pipeline_stages is 129", "0 (none) to 128"}},
      {"more parts than a step can have",
       Changed([](v1::PlanRequest* r) {
         r->set_batch_size(int64_t{1} << 30);
         r->mutable_search()->set_micro_batches(1 << 30);
       }),
       Code::kInvalidArgument,
       {"micro_batches is 1073741824", "1 to 4096"}},
      {"a plan of more parts than a step can have",
       [&] {
         v1::PlanRequest request = WithPlan([](v1::Plan* plan) { plan->set_micro_batches(5000); });
         return request;
       }(),
       Code::kInvalidArgument,
       {"micro_batches is 5000", "1 to 4096"}},
      {"gigabytes a second without their unit",
       Changed([](v1::PlanRequest* r) { r->mutable_devices(1)->set_memory_bandwidth(900); }),
       Code::kInvalidArgument,
       {"devices[1].memory_bandwidth is 900", "at least 1e+06"}},
      {"an overhead that is no number",
       Changed(
           [](v1::PlanRequest* r) { r->mutable_devices(1)->set_op_overhead_seconds(0.0 / 0.0); }),
       Code::kInvalidArgument,
       {"devices[1].op_overhead_seconds", "0 to 10 seconds"}},
      {"a link that takes forever",
       Changed([](v1::PlanRequest* r) { r->mutable_link()->set_latency_seconds(1e300); }),
       Code::kInvalidArgument,
       {"link.latency_seconds is 1e+300", "0 to 10 seconds"}},
      {"parts that do not divide the batch",
       Changed([](v1::PlanRequest* r) { r->mutable_search()->set_micro_batches(3); }),
       Code::kInvalidArgument,
       {"micro", "3", "16"}},

      {"a graph with no operator",
       Changed([](v1::PlanRequest* r) { r->clear_graph(); }),
       Code::kInvalidArgument,
       {"graph: it has no operators", "onnx_artifact"}},
      {"a graph without a sink that training minimises",
       Changed([](v1::PlanRequest* r) { r->mutable_graph()->clear_outputs(); }),
       Code::kInvalidArgument,
       {"'mlp'", "loss"}},
      {"an operator that there is not",
       Changed([](v1::PlanRequest* r) { r->mutable_graph()->mutable_nodes(1)->set_op("rely"); }),
       Code::kInvalidArgument,
       {"'act'", "rely"}},
      {"a batch of none",
       Changed([](v1::PlanRequest* r) { r->set_batch_size(0); }),
       Code::kInvalidArgument,
       {"batch_size", "greater than zero"}},
      {"a type that precision is not",
       Changed([](v1::PlanRequest* r) { r->set_precision(v1::I64); }),
       Code::kInvalidArgument,
       {"precision", "BF16"}},

      {"a model that fits no device however it is cut",
       Changed([](v1::PlanRequest* r) {
         for (v1::Device& device : *r->mutable_devices()) device.set_memory_bytes(700);
       }),
       Code::kResourceExhausted,
       {"device 0 needs", "bytes but has 700", "parameters, optimizer states",
        "ZeRO, up to stage 3", "more memory"}},
  };
  for (const Case& c : cases) {
    const absl::Status status = Ask(c.request);
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    for (const std::string& word : c.words) {
      EXPECT_TRUE(absl::StrContains(status.message(), word))
          << c.what << ": '" << word << "' is not in: " << status.message();
    }
  }
  EXPECT_EQ(Ask(Good()), absl::OkStatus());
}

// 1 Mbit/s, as over the internet.
TEST_F(PlanRequestTest, PlansWithASlowLink) {
  EXPECT_EQ(Ask(Changed([](v1::PlanRequest* r) {
              r->mutable_link()->set_bandwidth(125'000);
              r->mutable_link()->set_latency_seconds(0.05);
            })),
            absl::OkStatus());
}

// Another coordinator may check the plan: it must be told what the plan was made for.
TEST_F(PlanRequestTest, ImportedPlanIsCheckedWithItsOptions) {
  v1::PlanRequest request = Good();
  request.set_precision(v1::BF16);
  request.mutable_optimizer()->set_name("sgd");
  v1::Plan plan;
  ASSERT_EQ(Ask(request, &plan), absl::OkStatus());
  absl::StatusOr<std::string> json = ExportPlan(plan);
  ASSERT_TRUE(json.ok()) << json.status();
  v1::ImportRequest import;
  import.set_json(*json);
  *import.mutable_graph() = request.graph();
  v1::ImportReply reply;
  EXPECT_EQ(calls_->Import(import, {}, &reply).code(), absl::StatusCode::kInvalidArgument);
  import.set_precision(v1::BF16);
  *import.mutable_optimizer() = request.optimizer();
  ASSERT_EQ(calls_->Import(import, {}, &reply), absl::OkStatus());
  EXPECT_EQ(reply.plan().prediction().peak_bytes(0), plan.prediction().peak_bytes(0));
}

// FlexFlow aborts here: branches without outputs are dropped, and several named outputs are
// metrics.
TEST_F(PlanRequestTest, PlansGraphWithSeveralSinks) {
  GraphBuilder b(registry_, "several");
  const ValueId x = b.Input("x", DType::kF32, {-1, 12});
  const Initializer init{Initializer::kNormal, 0.1};
  const ValueId h = b.Op("linear", {x, b.Parameter("w", DType::kF32, {4, 12}, init)}, {}, "scores");
  b.Op("relu", {h}, {}, "nowhere");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  b.Output("probabilities", b.Op("softmax", {h}, {}, "probabilities"));
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  v1::PlanRequest request = Good();
  *request.mutable_graph() = ToProto(*graph);
  v1::Plan plan;
  ASSERT_EQ(Ask(request, &plan), absl::OkStatus());
  std::vector<std::string> nodes;
  for (const v1::OperatorPlan& op : plan.operators()) nodes.push_back(op.node());
  EXPECT_EQ(nodes, (std::vector<std::string>{"scores", "accuracy", "loss"}));
}

}  // namespace
}  // namespace espalier
