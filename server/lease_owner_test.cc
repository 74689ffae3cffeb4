// A worker's lease is of use to that worker only.
#include <filesystem>
#include <map>
#include <string>

#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/storage.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "server/membership/worker_registry.h"
#include "worker/rpc_test_util.h"

namespace espalier {
namespace {

constexpr char kOwn[] = "the worker's own", kOther[] = "another worker's";

TEST(LeaseOwner, NoCallOfAnotherWorkerUsesIt) {
  CoordinatorOptions options;
  options.data_dir = ::testing::TempDir() + "/lease_owner_test";
  std::filesystem::remove_all(options.data_dir);
  options.identify = [](const std::string& authorization) -> absl::StatusOr<Caller> {
    return Caller{Role::kWorker, authorization};
  };
  const absl::StatusOr<std::unique_ptr<Coordinator>> opened = Coordinator::Open(std::move(options));
  ASSERT_TRUE(opened.ok()) << opened.status();
  Coordinator& coordinator = **opened;
  ASSERT_TRUE(coordinator.Start().ok());
  v1::JoinRequest join;
  join.set_protocol_version(kProtocolVersion);
  join.set_address("10.0.0.1:1");
  join.set_call_key(std::string(32, 'k'));
  join.mutable_device()->set_kind(v1::Device::CPU);
  join.mutable_device()->set_memory_bytes(1 << 20);
  join.mutable_device()->set_matmul_flops(1);
  join.mutable_device()->set_memory_bandwidth(1);
  const absl::StatusOr<v1::Lease> lease = coordinator.workers().Join(join, kOwn);
  ASSERT_TRUE(lease.ok()) << lease.status();
  v1::HeartbeatRequest beat;
  *beat.mutable_lease() = *lease;
  v1::StoreSetRequest set;
  *set.mutable_lease() = *lease;
  v1::ReadObjectRequest read;
  *read.mutable_caller()->mutable_lease() = *lease;
  v1::PutObjectRequest put;
  *put.mutable_begin()->mutable_caller()->mutable_lease() = *lease;
  v1::LeaveRequest leave;
  *leave.mutable_lease() = *lease;
  // Requests of the same fields are the same bytes.
  const std::map<std::string, std::string> calls = {
      {"Cluster/Heartbeat", beat.SerializeAsString()},
      {"Cluster/Drain", leave.SerializeAsString()},
      {"Cluster/StoreSet", set.SerializeAsString()},
      {"Cluster/StoreGet", set.SerializeAsString()},
      {"Storage/PutObject", put.SerializeAsString()},
      {"Storage/ReadObject", read.SerializeAsString()},
      {"Storage/ListObjects", read.SerializeAsString()},
      {"Cluster/Leave", leave.SerializeAsString()}};
  const auto call = [&](const std::string& method, const char* shown) {
    return CallMethod(coordinator.grpc_address(), "espalier.v1." + method, shown, calls.at(method))
        .status;
  };
  for (const auto& [method, request] : calls) {
    const grpc::Status refused = call(method, kOther);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << method;
    EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("joined with another certificate"))
        << method;
    EXPECT_THAT(
        call(method == "Cluster/Leave" ? "Cluster/Heartbeat" : method, kOwn).error_message(),
        ::testing::Not(::testing::HasSubstr("another certificate")))
        << method;
  }
  EXPECT_TRUE(coordinator.workers().Check(*lease).ok());
  EXPECT_TRUE(call("Cluster/Heartbeat", kOwn).ok());
  EXPECT_TRUE(call("Cluster/Leave", kOwn).ok());
  EXPECT_FALSE(coordinator.workers().Check(*lease).ok());
}

}  // namespace
}  // namespace espalier
