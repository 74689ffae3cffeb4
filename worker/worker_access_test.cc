// Whose calls a worker takes, and which folders they may name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "base/net/authenticated_channel.h"
#include "espalier/v1/worker.grpc.pb.h"
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
  StatusCode Call(const v1::LoadProgramRequest& request) {
    grpc::ClientContext context;
    v1::LoadProgramReply reply;
    return stub_->LoadProgram(&context, request, &reply).error_code();
  }
  StatusCode Call(const v1::StartServingRequest& request) {
    grpc::ClientContext context;
    v1::StartServingReply reply;
    return stub_->StartServing(&context, request, &reply).error_code();
  }
  StatusCode Call(const v1::RunRequest& request) {
    grpc::ClientContext context;
    return stub_->Run(&context, request)->Finish().error_code();
  }
  StatusCode Train(const std::string& uri) {
    auto request = For<v1::LoadProgramRequest>();
    request.mutable_dataset()->set_uri(uri);
    request.mutable_dataset()->set_format(v1::Dataset::TEXT);
    request.mutable_dataset()->set_sequence_length(16);
    return Call(request);
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

TEST_F(WorkerAccessTest, FoldersOfCallsAreInTheDataFolder) {
  Start();
  using Call = std::function<StatusCode(const std::string& folder)>;
  const std::pair<const char*, Call> fields[] = {
      {"checkpoint_root",
       [&](const std::string& folder) {
         auto request = For<v1::RunRequest>();
         request.set_checkpoint_root(folder);
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
      {"folder",
       [&](const std::string& folder) {
         auto request = For<v1::StartServingRequest>();
         request.set_folder(folder);
         return WorkerAccessTest::Call(request);
       }},
      {"adapter_folders", [&](const std::string& folder) {
         auto request = For<v1::StartServingRequest>();
         request.set_folder(data_ + "/model");
         request.add_adapter_folders(data_ + "/adapter");
         request.add_adapter_folders(folder);
         return WorkerAccessTest::Call(request);
       }}};
  std::filesystem::remove(data_ + "/link");
  std::filesystem::create_directory_symlink("/etc", data_ + "/link");
  for (const auto& [field, call] : fields) {
    for (const std::string& folder : {std::string("/etc"), outside_, data_ + "/../outside", data_,
                                      data_ + "/link", data_ + "-of-others", std::string("data")}) {
      EXPECT_EQ(call(folder), StatusCode::PERMISSION_DENIED) << field << " " << folder;
    }
    EXPECT_NE(call(data_ + "/checkpoints/job"), StatusCode::PERMISSION_DENIED) << field;
  }
}

TEST_F(WorkerAccessTest, CommandLineNamesTheDataFolderBeforeTheCoordinator) {
  options_.data_dir = sets_;
  Start();
  auto request = For<v1::RunRequest>();
  request.set_checkpoint_root(data_ + "/checkpoints");
  EXPECT_EQ(Call(request), StatusCode::PERMISSION_DENIED);
  request.set_checkpoint_root(sets_ + "/checkpoints");
  EXPECT_NE(Call(request), StatusCode::PERMISSION_DENIED);
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
