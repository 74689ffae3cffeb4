// With API keys there is no call that answers without one.
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>

#include "gtest/gtest.h"
#include "proto/inference.pb.h"
#include "server/boosting/boost_runner.h"
#include "server/boosting/boosting_service.h"
#include "server/coordinator.h"
#include "server/inference/inference_service.h"
#include "server/inference/model_server.h"
#include "worker/every_method.h"

namespace espalier {
namespace {

constexpr char kKey[] = "Bearer the-key-of-this-test";

class ApiKeyTest : public ::testing::Test {
 protected:
  ApiKeyTest() {
    CoordinatorOptions options;
    options.data_dir = ::testing::TempDir() + "/api_key_test";
    std::filesystem::remove_all(options.data_dir);
    options.authorize = [](const std::string&, const std::string& authorization) {
      return authorization == kKey ? absl::OkStatus() : absl::UnauthenticatedError("a key");
    };
    auto opened = Coordinator::Open(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    inference_ = NewInferenceService(&models_, &coordinator_->guard(), nullptr);
    coordinator_->AddService(inference_.get());
    boosting_ = NewBoostingService(&coordinator_->guard(), &boosts_);
    coordinator_->AddService(boosting_.get());
    EXPECT_TRUE(coordinator_->Start().ok());
  }
  ~ApiKeyTest() override { coordinator_->Stop(); }

  ModelServer models_{{}};
  BoostRunner boosts_{{}};
  std::unique_ptr<grpc::Service> inference_, boosting_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(ApiKeyTest, NoRpcAnswersWithoutAKey) {
  int methods = 0;
  for (const char* service :
       {"Training", "Planner", "Models", "Cluster", "Inference", "Boosting"}) {
    const std::string name = std::string("espalier.proto.") + service;
    for (const auto& [method, status] : CallEveryMethod(coordinator_->grpc_address(), name, "")) {
      // A call that nobody answers is no way in.
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) continue;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << service << "/" << method << ": " << status.error_message();
      ++methods;
    }
  }
  EXPECT_GT(methods, 35);
  for (const auto& [method, status] :
       CallEveryMethod(coordinator_->grpc_address(), "espalier.proto.Models", kKey)) {
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
}

TEST_F(ApiKeyTest, NorDoesReflectionTellWhatThereIs) {
  const auto statuses =
      CallEveryMethod(coordinator_->grpc_address(), "grpc.reflection.v1alpha.ServerReflection", "");
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses.begin()->second.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace espalier
