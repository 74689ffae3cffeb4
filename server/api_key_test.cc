// With API keys, no call is answered without one.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/inference.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/access_rules.h"
#include "server/coordinator.h"
#include "server/distillation/distillation_runner.h"
#include "server/distillation/distillation_service.h"
#include "server/inference/models/model_server.h"
#include "server/inference/services/inference_service.h"
#include "server/inference/services/open_inference_service.h"
#include "worker/rpc_test_util.h"

namespace espalier {
namespace {

using ::testing::Contains;

constexpr char kKey[] = "Bearer the-key-of-this-test";
constexpr char kWrongKey[] = "Bearer the-key-of-that-test";
constexpr char kHealth[] = "grpc.health.v1.Health/Check";
constexpr char kOpenInference[] = "inference.GRPCInferenceService";
constexpr char kReflection[] = "grpc.reflection.v1alpha.ServerReflection";

// A coordinator with all of espalierd's services.
class Daemon {
 public:
  Daemon(bool keys, bool open_probes) {
    CoordinatorOptions options;
    options.data_dir = ::testing::TempDir() + "/api_key_test";
    std::filesystem::remove_all(options.data_dir);
    options.open_probes = open_probes;
    if (keys) {
      options.identify = [this](const std::string& authorization) -> absl::StatusOr<Caller> {
        absl::MutexLock lock(&mutex_);
        if (authorization == kKey) return caller_;
        return absl::UnauthenticatedError("a key");
      };
    }
    auto opened = Coordinator::Open(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    inference_ = NewInferenceService(&models_, &coordinator_->interceptor(), nullptr);
    coordinator_->AddService(inference_.get());
    open_inference_ =
        NewOpenInferenceService(&models_, &coordinator_->interceptor(), nullptr, "a version");
    coordinator_->AddService(open_inference_.get());
    distillation_ = NewDistillationService(&coordinator_->interceptor(), &distillations_);
    coordinator_->AddService(distillation_.get());
    EXPECT_TRUE(coordinator_->Start().ok());
  }
  ~Daemon() { coordinator_->Stop(); }

  std::string address() const { return coordinator_->grpc_address(); }
  // Whom the right key belongs to; an admin at first.
  void SetCaller(const Caller& caller) {
    absl::MutexLock lock(&mutex_);
    caller_ = caller;
  }
  grpc::StatusCode Call(const std::string& method, const std::string& authorization) const {
    return CallMethod(address(), method, authorization).status.error_code();
  }

 private:
  absl::Mutex mutex_;
  Caller caller_ ABSL_GUARDED_BY(mutex_) = Caller::Unrestricted();
  ModelServer models_{{}};
  OpRegistry operators_;
  DistillationRunner distillations_{{.operators = &operators_}};
  std::unique_ptr<grpc::Service> inference_, open_inference_, distillation_;
  std::unique_ptr<Coordinator> coordinator_;
};

// Asks a server without keys by reflection; question and answer are JSON.
nlohmann::json Reflect(const std::string& address, const std::string& question) {
  using google::protobuf::DescriptorPool;
  using google::protobuf::Message;
  using google::protobuf::MessageFactory;
  const auto make = [](const std::string& name) {
    const auto* type = DescriptorPool::generated_pool()->FindMessageTypeByName(name);
    return std::unique_ptr<Message>(MessageFactory::generated_factory()->GetPrototype(type)->New());
  };
  const auto request = make("grpc.reflection.v1alpha.ServerReflectionRequest");
  const auto reply = make("grpc.reflection.v1alpha.ServerReflectionResponse");
  using google::protobuf::util::JsonStringToMessage;
  EXPECT_TRUE(JsonStringToMessage(question, request.get()).ok());
  const RpcResult answer = CallMethod(address, absl::StrCat(kReflection, "/ServerReflectionInfo"),
                                      "", request->SerializeAsString());
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(reply->ParseFromString(answer.reply));
  std::string text;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(*reply, &text).ok());
  return nlohmann::json::parse(text);
}

// Returns the service names listed by a server without keys.
std::vector<std::string> ServicesOf(const std::string& address) {
  std::vector<std::string> names;
  const auto json = Reflect(address, R"({"listServices": "*"})");
  for (const auto& service : json.at("listServicesResponse").at("service")) {
    names.push_back(service.at("name"));
  }
  return names;
}

// grpcurl and others describe a service before they call it.
TEST(Reflection, ResolvesEveryServiceThatItLists) {
  const Daemon daemon(/*keys=*/false, /*open_probes=*/false);
  const std::vector<std::string> services = ServicesOf(daemon.address());
  EXPECT_THAT(services, Contains("grpc.health.v1.Health"));
  for (const std::string& service : services) {
    const auto answer =
        Reflect(daemon.address(), absl::StrCat(R"({"fileContainingSymbol": ")", service, "\"}"));
    ASSERT_TRUE(answer.contains("fileDescriptorResponse")) << service << ": " << answer;
    EXPECT_FALSE(answer["fileDescriptorResponse"]["fileDescriptorProto"].empty()) << service;
  }
}

// As the interceptor calls the methods of a service.
std::string RuleNameOf(const std::string& service, const std::string& method) {
  const std::string name =
      service == kOpenInference ? "OpenInference" : service.substr(service.rfind('.') + 1);
  return absl::StrCat(name, "/", method);
}

TEST(ApiKey, NoRpcAnswersWithoutOne) {
  std::vector<std::string> services;
  {
    const Daemon daemon(/*keys=*/false, /*open_probes=*/false);
    services = ServicesOf(daemon.address());
    EXPECT_EQ(daemon.Call(kHealth, ""), grpc::StatusCode::OK);
  }
  EXPECT_THAT(services, Contains("espalier.v1.Inference"));
  EXPECT_THAT(services, Contains(kOpenInference));
  const Daemon daemon(/*keys=*/true, /*open_probes=*/true);
  int methods = 0;
  for (const std::string& service : services) {
    if (service == kReflection || service == "grpc.health.v1.Health") continue;
    const auto without = CallEveryMethod(daemon.address(), service, "");
    const auto with_wrong = CallEveryMethod(daemon.address(), service, kWrongKey);
    const auto with_right = CallEveryMethod(daemon.address(), service, kKey);
    EXPECT_FALSE(without.empty()) << service << ": no descriptor is linked in";
    for (const auto& [method, status] : without) {
      SCOPED_TRACE(service + "/" + method);
      if (service == kOpenInference && (method == "ServerLive" || method == "ServerReady")) {
        EXPECT_TRUE(status.ok()) << status.error_message();  // a probe
        continue;
      }
      // An unimplemented call gives no access.
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) continue;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
      EXPECT_EQ(with_wrong.at(method).error_code(), grpc::StatusCode::UNAUTHENTICATED);
      // A key is no substitute for the token that a request lacks.
      const AccessRule* rule = FindAccessRule(RuleNameOf(service, method));
      ASSERT_NE(rule, nullptr);
      EXPECT_EQ(with_right.at(method).error_code() == grpc::StatusCode::UNAUTHENTICATED,
                rule->has_token);
      ++methods;
    }
  }
  EXPECT_GT(methods, 35);
}

TEST(ApiKey, EveryRpcHasARuleOfAccess) {
  std::vector<std::string> services;
  {
    const Daemon daemon(/*keys=*/false, /*open_probes=*/false);
    services = ServicesOf(daemon.address());
  }
  Daemon daemon(/*keys=*/true, /*open_probes=*/false);
  std::set<std::string> rules;
  for (const AccessRule& rule : AccessRules()) {
    if (rule.method.find(' ') == rule.method.npos) rules.insert(std::string(rule.method));
  }
  for (const Role role :
       {Role::kAdmin, Role::kTrain, Role::kInfer, Role::kWorker, Role::kMonitor}) {
    daemon.SetCaller({role, "an owner"});
    for (const std::string& service : services) {
      if (service == kReflection || service == "grpc.health.v1.Health") continue;
      for (const auto& [method, status] : CallEveryMethod(daemon.address(), service, kKey)) {
        const std::string name = RuleNameOf(service, method);
        SCOPED_TRACE(absl::StrCat(name, " ", Roles(role).ToString()));
        const AccessRule* rule = FindAccessRule(name);
        ASSERT_NE(rule, nullptr) << "add it to server/access/access_rules.cc";
        rules.erase(name);
        const bool may = role == Role::kAdmin || rule->roles.Intersects(role);
        EXPECT_EQ(status.error_code() == grpc::StatusCode::PERMISSION_DENIED, !may)
            << status.error_message();
      }
    }
  }
  EXPECT_THAT(rules, ::testing::IsEmpty()) << "rules of RPCs that there are not";
}

TEST(ApiKey, ProbesWantAKeyUnlessTheyAreOpen) {
  for (const bool open : {false, true}) {
    const Daemon daemon(/*keys=*/true, open);
    for (const char* probe : {"/ServerLive", "/ServerReady"}) {
      const std::string method = absl::StrCat(kOpenInference, probe);
      const auto expected = open ? grpc::StatusCode::OK : grpc::StatusCode::UNAUTHENTICATED;
      EXPECT_EQ(daemon.Call(method, ""), expected);
      EXPECT_EQ(daemon.Call(method, kWrongKey), expected);
      EXPECT_EQ(daemon.Call(method, kKey), grpc::StatusCode::OK);
    }
  }
}

TEST(ApiKey, HealthServiceIsOfferedWithOpenProbes) {
  for (const bool open : {false, true}) {
    const Daemon daemon(/*keys=*/true, open);
    const auto expected = open ? grpc::StatusCode::OK : grpc::StatusCode::UNIMPLEMENTED;
    EXPECT_EQ(daemon.Call(kHealth, ""), expected);
    EXPECT_EQ(daemon.Call(kHealth, kKey), expected);
  }
}

TEST(ApiKey, ReflectionIsDisabled) {
  const Daemon daemon(/*keys=*/true, /*open_probes=*/true);
  const auto statuses = CallEveryMethod(daemon.address(), kReflection, "");
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses.begin()->second.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace espalier
