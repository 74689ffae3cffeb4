#include "client/lib/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "client/lib/fake_coordinator.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto client = Client::Connect(fake_.address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    folder_ = ::testing::TempDir() + "/client_test_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }

  FakeCoordinator fake_;
  std::unique_ptr<Client> client_;
  std::string folder_;
};

TEST(ConnectTest, UnreachableAddressIsNamedWithRemedy) {
  std::string dead;
  {
    FakeCoordinator gone;
    dead = gone.address();
  }
  auto client = Client::Connect(dead);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(dead));
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("espalier up"));
}

TEST(ConnectTest, AddressWithoutAPortIsRefused) {
  for (const char* address : {"localhost", ":1", "host:", "host:0", "host:99999", "host:x"}) {
    EXPECT_EQ(Client::Connect(address).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST_F(ClientTest, GraphTooLargeForAMessageIsRefusedWithRemedy) {
  v1::TrainingSpec spec;
  spec.mutable_graph()->add_values()->set_data(std::string(65 << 20, '\1'));
  for (const absl::Status& refused :
       {client_->Submit(spec).status(), client_->DryRun(spec).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("ONNX file"));
  }
}

TEST_F(ClientTest, UnavailableFromCoordinatorIsNotUnreachable) {
  ClientOptions options;
  options.retry_for = absl::ZeroDuration();
  auto client = Client::Connect(fake_.address(), options);
  ASSERT_TRUE(client.ok());
  fake_.state()->unavailable = 2;
  const absl::Status absent = (*client)->GetJob("job-1").status();
  EXPECT_TRUE(IsUnreachable(absent)) << absent;
  EXPECT_THAT(std::string(absent.message()), HasSubstr("espalier up"));
  fake_.state()->unavailable_details = "\x08\x0e";
  const absl::Status said = (*client)->GetJob("job-1").status();
  EXPECT_TRUE(absl::IsUnavailable(said));
  EXPECT_FALSE(IsUnreachable(said));
  EXPECT_EQ(said.message(), "not now");
}

TEST_F(ClientTest, HistoriesAreAskedForAgainUntilTheFirstRow) {
  v1::HistoryRow row;
  for (int step = 0; step < 4; ++step) {
    row.set_step(step);
    fake_.state()->history.push_back(row);
  }
  fake_.state()->unavailable = 2;
  std::vector<int64_t> steps;
  const auto take = [&](const v1::HistoryRow& next) {
    steps.push_back(next.step());
    return next.step() < 2 ? absl::OkStatus() : absl::ResourceExhaustedError("enough");
  };
  EXPECT_EQ(client_->QueryHistory({}, take).message(), "enough");
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(fake_.state()->queries.size(), 3u);
  // Rows are not given twice.
  fake_.state()->history.resize(1);
  fake_.state()->history_status = absl::UnavailableError("stopped");
  EXPECT_TRUE(absl::IsUnavailable(client_->QueryHistory({}, take)));
  EXPECT_EQ(fake_.state()->queries.size(), 4u);
}

TEST_F(ClientTest, SubmitCarriesAKeyAndTheToken) {
  fake_.state()->job.set_id("job-1");
  ClientOptions options;
  options.token = "secret";
  auto client = Client::Connect(fake_.address(), options);
  ASSERT_TRUE(client.ok());
  auto job = (*client)->Submit({});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), "job-1");
  ASSERT_TRUE((*client)->Submit({}, "mine").ok());
  ASSERT_EQ(fake_.state()->submits.size(), 2u);
  EXPECT_EQ(fake_.state()->submits[0].idempotency_key().size(), 32u);
  EXPECT_EQ(fake_.state()->submits[1].idempotency_key(), "mine");
  EXPECT_EQ(fake_.state()->authorizations[0], "Bearer secret");
}

TEST_F(ClientTest, OnlyUnavailableCallsAreRetried) {
  fake_.state()->job.set_id("job-1");
  fake_.state()->unavailable = 2;
  EXPECT_TRUE(client_->GetJob("job-1").ok());
  EXPECT_EQ(fake_.state()->unavailable, 0);
  auto missing = client_->GetJob("job-2");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.status().message(), "no job job-2");
}

TEST_F(ClientTest, WatchResumesAfterLostConnection) {
  for (int i = 0; i < 6; ++i) {
    v1::JobEvent event;
    event.mutable_step()->set_step(i);
    fake_.state()->events.push_back(event);
  }
  fake_.state()->drop_watch_after = 4;
  std::vector<int64_t> steps;
  int warnings = 0;
  absl::Status status = client_->Watch("job-1", 0, [&](const v1::JobEvent& event) {
    if (event.has_step()) steps.push_back(event.step().step());
    warnings += event.message().level() == v1::JobMessage::WARNING;
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(fake_.state()->watches[1].from_step(), 4);
}

// Validations come between the steps, and a new connection may repeat the last one.
TEST_F(ClientTest, WatchPassesEachValidationOnce) {
  const auto add = [&](int64_t step, bool validation) {
    v1::JobEvent event;
    (validation ? event.mutable_validation() : event.mutable_step())->set_step(step);
    fake_.state()->events.push_back(event);
  };
  // Dropped before and behind the validation after step 1; later a worker is lost.
  for (const auto& [drop, expected] : {std::pair{2, 1}, std::pair{3, 1}}) {
    *fake_.state() = FakeState();
    fake_.state()->drop_watch_after = drop;
    for (const auto& [step, validation] : {std::pair{0, false},
                                           {1, false},
                                           {1, true},
                                           {2, false},
                                           {3, false},
                                           {3, true},
                                           {2, false},
                                           {3, false},
                                           {3, true},
                                           {4, false}}) {
      add(step, validation);
    }
    std::vector<std::string> seen;
    const absl::Status status = client_->Watch("job-1", 0, [&](const v1::JobEvent& event) {
      if (event.has_step()) seen.push_back(absl::StrCat(event.step().step()));
      if (event.has_validation()) seen.push_back(absl::StrCat("v", event.validation().step()));
      return true;
    });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), "v1"), expected);
    EXPECT_THAT(seen, ::testing::ElementsAre("0", "1", "v1", "2", "3", "v3", "2", "3", "v3", "4"));
  }
}

TEST_F(ClientTest, FileIsUploadedOnceAndRoundTrips) {
  std::string content;
  for (int i = 0; i < 2'500'000; ++i) content += static_cast<char>(i * 31 >> 3);
  const std::string path = Write("king james.txt", content);
  bool uploaded = false;
  int64_t last = 0;
  auto name = client_->EnsureUploaded(
      path, v1::Artifact::DATASET, [&](int64_t done, int64_t total) { last = done * 10 / total; },
      &uploaded);
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_TRUE(uploaded);
  EXPECT_EQ(last, 10);
  Sha256 sum;
  sum.Add(content);
  EXPECT_EQ(*name, "king-james-" + sum.Hex().substr(0, 16));
  auto again = client_->EnsureUploaded(path, v1::Artifact::DATASET, nullptr, &uploaded);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *name);
  EXPECT_FALSE(uploaded);
  EXPECT_EQ(fake_.state()->uploads, 1);

  auto artifact = client_->Download(*name, folder_ + "/back");
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(Slurp(folder_ + "/back/king james.txt"), content);
}

TEST_F(ClientTest, FoldersAreUploadedOnceByTheirContent) {
  const std::vector<LocalFile> files = {{"config.json", Write("c", "{}")},
                                        {"sub/weights", Write("w", "abc")}};
  bool uploaded = false;
  const auto upload = [&](const std::vector<LocalFile>& what) {
    auto name = client_->EnsureUploaded(what, "tiny", v1::Artifact::MODEL, nullptr, &uploaded);
    EXPECT_TRUE(name.ok()) << name.status();
    return name.value_or("");
  };
  const std::string name = upload(files);
  EXPECT_TRUE(uploaded);
  EXPECT_EQ(name, "tiny-" + fake_.state()->artifacts.at(name).sha256().substr(0, 16));
  EXPECT_EQ(upload(files), name);
  EXPECT_FALSE(uploaded);
  // Of one file the sum is the file's.
  const std::string single = upload({files[1]});
  EXPECT_TRUE(uploaded);
  EXPECT_NE(single, name);
  EXPECT_EQ(upload({files[1]}), single);
  EXPECT_FALSE(uploaded);
  // Somebody gave it a name.
  v1::Artifact named = fake_.state()->artifacts.at(name);
  fake_.state()->artifacts.erase(name);
  named.set_name("mine");
  fake_.state()->artifacts["mine"] = named;
  EXPECT_EQ(upload(files), "mine");
  EXPECT_EQ(fake_.state()->uploads, 2);
}

// Regression: a name that was taken told that another owner has the same file, and an admin's jobs
// used users' artifacts, which they may delete.
TEST_F(ClientTest, UploadsOfOwnersAreApart) {
  const std::string path = Write("book.txt", "the same text");
  const auto upload = [&](const std::string& owner, const std::string& salt) {
    fake_.state()->owner = owner;
    fake_.state()->upload_salt = salt;
    auto name = client_->EnsureUploaded(path, v1::Artifact::DATASET);
    EXPECT_TRUE(name.ok()) << name.status();
    return name.value_or("");
  };
  const std::string alices = upload("alice", "1234"), bobs = upload("bob", "5678");
  const std::string admins = upload("", "");
  EXPECT_EQ(fake_.state()->uploads, 3);
  const std::string digest = Sha256Hex("the same text").substr(0, 16);
  EXPECT_EQ(admins, "book-" + digest);
  for (const std::string& name : {alices, bobs}) {
    EXPECT_EQ(name.size(), admins.size());
    EXPECT_THAT(name, ::testing::Not(HasSubstr(digest)));
  }
  EXPECT_NE(alices, bobs);
  // Everyone's is used, but one's own comes again, too.
  EXPECT_EQ(upload("", ""), admins);
  fake_.state()->artifacts.erase(admins);
  EXPECT_EQ(upload("alice", "another run"), alices);
  EXPECT_EQ(upload("bob", "5678"), bobs);
  EXPECT_EQ(fake_.state()->uploads, 3);
  // Not what its uploader is about to delete.
  (*fake_.state()->artifacts.at(bobs).mutable_metadata())["temporary"] = "true";
  EXPECT_NE(upload("bob", "another run"), bobs);
}

TEST_F(ClientTest, StemsAreNamesOfArtifacts) {
  std::filesystem::create_directories(folder_ + "/Llama-3.2-1B");
  for (const auto& [path, stem] :
       {std::pair<std::string, std::string>{"king james.txt", "king-james"},
        {"/m/tiny-q8_0.gguf", "tiny-q8_0"},
        {"größe.txt", "gr----e"},
        {folder_ + "/Llama-3.2-1B", "Llama-3.2-1B"},
        {folder_ + "/Llama-3.2-1B/", "Llama-3.2-1B"},
        {folder_ + "/Llama-3.2-1B/.", "Llama-3.2-1B"}}) {
    EXPECT_EQ(ArtifactStem(path), stem) << path;
  }
}

TEST_F(ClientTest, FoldersRoundTripAndDamageIsDetected) {
  v1::UploadHeader header;
  header.set_name("model");
  header.set_kind(v1::Artifact::MODEL);
  ASSERT_TRUE(client_
                  ->Upload(header, {{"config.json", Write("c", "{}")},
                                    {"sub/weights", Write("w", "abc")},
                                    {"empty", Write("e", "")}})
                  .ok());
  auto artifact = client_->Download("model", folder_ + "/m");
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(Slurp(folder_ + "/m/sub/weights"), "abc");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/m/empty"));

  fake_.state()->corrupt_downloads = true;
  auto bad = client_->Download("model", folder_ + "/bad");
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kDataLoss) << bad.status();
}

TEST_F(ClientTest, FileNameOutsideFolderIsRefused) {
  v1::Artifact& artifact = fake_.state()->artifacts["evil"];
  artifact.set_name("evil");
  for (const char* name : {"../out", "/tmp/out", "a/../../out", ""}) {
    fake_.state()->files["evil"] = {{name, "x"}};
    EXPECT_EQ(client_->Download("evil", folder_ + "/d").status().code(),
              absl::StatusCode::kDataLoss)
        << name;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/out"));
  }
}

TEST_F(ClientTest, GenerateCanBeStopped) {
  for (int i = 0; i < 5; ++i) {
    fake_.state()->replies.emplace_back();
    fake_.state()->replies.back().set_text("x");
  }
  int seen = 0;
  EXPECT_TRUE(client_->Generate({}, [&](const v1::GenerateReply&) { return ++seen < 3; }).ok());
  EXPECT_EQ(seen, 3);
}

}  // namespace
}  // namespace espalier
