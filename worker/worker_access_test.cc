// Whose calls a worker takes, and which files they may name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "base/net/authenticated_channel.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "storage/data_dir_id.h"
#include "worker/fake_coordinator.h"
#include "worker/local_worker.h"
#include "worker/rpc_test_util.h"

namespace espalier {
namespace {

using grpc::StatusCode;

class WorkerAccessTest : public testing::Test {
 protected:
  WorkerAccessTest() {
    for (const std::string& folder : {data_, sets_, outside_}) {
      std::filesystem::create_directories(folder);
      std::ofstream(folder + "/text") << std::string(3000, 'x');
    }
    options_.coordinator = coordinator_.address();
    options_.name = "a";
    options_.threads = 1;
    options_.memory_limit = 1 << 28;
    options_.calibrate = false;
    options_.cache_dir = top_ + "/cache";
    // The coordinator's data folder is never read as a dataset, not even so.
    options_.dataset_roots = {sets_, data_};
  }

  void Start() {
    auto worker = StartWorker(options_);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    stub_ = v1::Worker::NewStub(
        KeyedChannel(worker_->address(), {},
                     [key = coordinator_.CallKeyOf(worker_->worker_id())] { return key; }));
  }

  template <typename Request>
  Request For() {
    Request request;
    request.mutable_attempt()->set_job_id("job");
    request.mutable_attempt()->set_attempt(1);
    request.mutable_attempt()->set_worker_epoch(coordinator_.EpochOf("a"));
    return request;
  }
  grpc::Status Call(const v1::LoadProgramRequest& request) {
    grpc::ClientContext context;
    v1::LoadProgramReply reply;
    return stub_->LoadProgram(&context, request, &reply);
  }
  grpc::Status Call(const v1::StartServingRequest& request) {
    grpc::ClientContext context;
    v1::StartServingReply reply;
    return stub_->StartServing(&context, request, &reply);
  }
  grpc::Status Call(const v1::RunRequest& request) {
    grpc::ClientContext context;
    return stub_->Run(&context, request)->Finish();
  }
  StatusCode Train(const std::string& uri) {
    auto request = For<v1::LoadProgramRequest>();
    request.mutable_dataset()->set_uri(uri);
    request.mutable_dataset()->set_format(v1::Dataset::TEXT);
    request.mutable_dataset()->set_sequence_length(16);
    return Call(request).error_code();
  }

  const std::string top_ = JoinPath(testing::TempDir(), "worker_access");
  const std::string data_ = top_ + "/data", sets_ = top_ + "/sets", outside_ = top_ + "/outside";
  FakeCoordinator coordinator_{data_};
  WorkerOptions options_;
  std::unique_ptr<LocalWorker> worker_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

// A client that may train on a file may read it, so only files that an operator named are open.
TEST_F(WorkerAccessTest, DatasetsBeneathItsRootsAreOpenedAndNoOthers) {
  Start();
  for (const std::string& path : {outside_ + "/text", std::string("/etc/passwd"),
                                  sets_ + "/../outside/text", data_ + "/text"}) {
    EXPECT_EQ(Train(path), StatusCode::PERMISSION_DENIED) << path;
  }
  // It is read; the request has no program.
  EXPECT_EQ(Train(sets_ + "/text"), StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkerAccessTest, NamesOfCallsStayWithinTheStores) {
  Start();
  using Call = std::function<grpc::Status(const std::string& folder)>;
  const std::pair<const char*, Call> fields[] = {
      {"checkpoint_root",
       [&](const std::string& folder) {
         auto request = For<v1::RunRequest>();
         request.set_checkpoint_root(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"restore_checkpoint",
       [&](const std::string& folder) {
         auto request = For<v1::RunRequest>();
         request.set_restore_checkpoint(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"stream.path",
       [&](const std::string& path) {
         auto request = For<v1::RunRequest>();
         request.add_stream()->set_path(path);
         return WorkerAccessTest::Call(request);
       }},
      {"checkpoint_dir",
       [&](const std::string& folder) {
         auto request = For<v1::LoadProgramRequest>();
         request.set_checkpoint_dir(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"init_folder",
       [&](const std::string& folder) {
         auto request = For<v1::LoadProgramRequest>();
         request.set_init_folder(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"values_folder",
       [&](const std::string& folder) {
         auto request = For<v1::LoadProgramRequest>();
         request.set_values_folder(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"folder",
       [&](const std::string& folder) {
         auto request = For<v1::StartServingRequest>();
         request.set_folder(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"adapter_folders", [&](const std::string& folder) {
         auto request = For<v1::StartServingRequest>();
         request.set_folder("model");
         request.add_adapter_folders("adapter");
         request.add_adapter_folders(folder);
         return WorkerAccessTest::Call(request);
       }}};
  for (const auto& [field, call] : fields) {
    const auto refuses = [&, field = std::string(field)](const std::string& folder) {
      const grpc::Status status = call(folder);
      return status.error_code() == StatusCode::INVALID_ARGUMENT &&
             status.error_message().rfind(field + ": ", 0) == 0;
    };
    for (const std::string& folder :
         {std::string("/etc"), data_, std::string("../outside"), std::string("a/../../outside"),
          std::string("a//b"), std::string("a/"), std::string(".")}) {
      EXPECT_TRUE(refuses(folder)) << field << " " << folder;
    }
    EXPECT_FALSE(refuses("job/step-1")) << field;
  }
}

// A host may have the coordinator's data folder at another place.
TEST_F(WorkerAccessTest, CommandLineNamesTheDataFolderBeforeTheCoordinator) {
  std::ofstream(sets_ + "/" + kDataDirIdFile) << "the id";
  options_.data_dir = sets_;
  Start();
  const auto sees = [this](const std::string& id) {
    v1::ProbeRequest request;
    request.set_data_dir(data_);
    request.set_data_dir_id(id);
    v1::ProbeReply reply;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Probe(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.sees_data_dir() && reply.may_write();
  };
  EXPECT_TRUE(sees("the id"));
  EXPECT_FALSE(sees("another"));
  options_.data_dir = "/";
  EXPECT_EQ(StartWorker(options_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WorkerAccessTest, SendsItsApiKeyAndTakesCallsOfTheCoordinatorOnly) {
  coordinator_.WantAuthorization("Bearer the-key-of-all-workers");
  auto stranger = StartWorker(options_);
  EXPECT_EQ(stranger.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(std::string(stranger.status().message()).find("--api-key-file"), std::string::npos);

  options_.api_key_file = top_ + "/keys";
  std::ofstream(options_.api_key_file) << "the-key-of-all-workers\n";
  std::filesystem::permissions(options_.api_key_file, std::filesystem::perms(0600));
  Start();
  // An API key, which clients have, too, is none of the coordinator's.
  for (const char* shown : {"", "Bearer the-key-of-all-workers", "Bearer "}) {
    const auto refused = CallEveryMethod(worker_->address(), "espalier.v1.Worker", shown);
    EXPECT_GE(refused.size(), 4u);
    for (const auto& [method, status] : refused) {
      EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << method;
    }
  }
  grpc::ClientContext context;
  v1::StopRequest stop;
  stop.mutable_attempt()->set_job_id("none");
  v1::StopReply reply;
  const grpc::Status status = stub_->Stop(&context, stop, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace espalier
