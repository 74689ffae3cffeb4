#include "server/standby/standby_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/testing/raw_client.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class StandbyServerTest : public ::testing::Test {
 protected:
  void Start(bool with_keys, bool open_probes = false) {
    StandbyServerOptions options;
    options.listen = options.http_listen = "127.0.0.1:0";
    options.describe = [] { return "standby; the leader is 10.0.0.1:7070"; };
    if (with_keys) {
      options.knows = [](const std::string& authorization) {
        return authorization == "Bearer key";
      };
      options.only_leader_knows = [](const std::string& authorization) {
        return authorization == "Bearer token";
      };
    }
    options.open_probes = open_probes;
    auto started = StandbyServer::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  // Any call, of any service.
  grpc::Status Call(const std::string& authorization) {
    grpc::GenericStub stub(
        grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    grpc::CompletionQueue queue;
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    const auto call =
        stub.PrepareUnaryCall(&context, "/espalier.v1.Training/List", request, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }
  std::string Get(const std::string& path, const std::string& authorization) {
    int port = 0;
    const std::string address = server_->http_address();
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    RawClient client(static_cast<uint16_t>(port));
    client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                             authorization.empty() ? "" : "Authorization: ", authorization,
                             authorization.empty() ? "" : "\r\n", "\r\n"));
    return client.ReadAll();
  }

  std::unique_ptr<StandbyServer> server_;
};

TEST_F(StandbyServerTest, SaysWhoLeads) {
  Start(/*with_keys=*/false);
  const grpc::Status status = Call("");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "standby; the leader is 10.0.0.1:7070");
  EXPECT_FALSE(status.error_details().empty()) << "by which clients know that it answered";
  EXPECT_THAT(Get("/health", ""), StartsWith("HTTP/1.1 200"));
  for (const char* path : {"/ready", "/v1/models", "/v2/health/ready", "/nothing"}) {
    EXPECT_THAT(Get(path, ""),
                AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("the leader is 10.0.0.1:7070")));
  }
}

TEST_F(StandbyServerTest, TellsOnlyThoseWithAKeyWhoLeads) {
  Start(/*with_keys=*/true);
  EXPECT_EQ(Call("Bearer key").error_message(), "standby; the leader is 10.0.0.1:7070");
  for (const char* wrong : {"", "Bearer other"}) {
    const grpc::Status status = Call(wrong);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "standby");
    for (const char* path : {"/health", "/ready", "/v1/models"}) {
      EXPECT_THAT(Get(path, wrong), AllOf(StartsWith("HTTP/1.1 401"), Not(HasSubstr("10.0.0.1"))));
    }
  }
  EXPECT_THAT(Get("/ready", "Bearer key"), HasSubstr("10.0.0.1:7070"));
}

TEST_F(StandbyServerTest, WhatOnlyTheLeaderCanCheckIsNotRefused) {
  Start(/*with_keys=*/true);
  for (const char* path : {"/ready", "/v1/models"}) {
    EXPECT_THAT(Get(path, "Bearer token"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("standby"),
                                                 Not(HasSubstr("10.0.0.1"))));
  }
  EXPECT_THAT(Get("/health", "Bearer token"), StartsWith("HTTP/1.1 200"));
}

TEST_F(StandbyServerTest, OpenProbesAreAnsweredWithoutAKey) {
  Start(/*with_keys=*/true, /*open_probes=*/true);
  EXPECT_THAT(Get("/health", ""), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/ready", ""), AllOf(StartsWith("HTTP/1.1 503"), Not(HasSubstr("10.0.0.1"))));
  EXPECT_THAT(Get("/v1/models", ""), StartsWith("HTTP/1.1 401"));
}

TEST_F(StandbyServerTest, LeavesItsPortsAtOnce) {
  Start(/*with_keys=*/false);
  Call("");
  StandbyServerOptions again;
  again.listen = server_->grpc_address();
  again.http_listen = server_->http_address();
  again.describe = [] { return ""; };
  EXPECT_FALSE(StandbyServer::Start(again).ok());
  server_.reset();
  const auto started = StandbyServer::Start(again);
  EXPECT_TRUE(started.ok()) << started.status();
}

}  // namespace
}  // namespace espalier
