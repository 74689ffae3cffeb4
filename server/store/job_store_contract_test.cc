// What every job store must do: the same properties of SQLite and of a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/store/etcd/etcd_process.h"
#include "server/store/etcd/etcd_store.h"
#include "server/store/idempotency.h"
#include "server/store/job_store_fixture.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A store that can be closed and opened again.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual absl::StatusOr<std::unique_ptr<JobStore>> Open() = 0;
};

std::string TestName() {
  std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name;
}

class SqliteBackend : public Backend {
 public:
  SqliteBackend() : path_(::testing::TempDir() + "/contract_" + TestName() + ".db") {
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
  }
  absl::StatusOr<std::unique_ptr<JobStore>> Open() override { return SqliteStore::Open(path_); }

 private:
  const std::string path_;
};

EtcdProcess& SharedEtcd() {
  static EtcdProcess etcd(::testing::TempDir() + "/contract_etcd");
  return etcd;
}

// Every opening is by another leader, as after a takeover.
class EtcdBackend : public Backend {
 public:
  EtcdBackend() : client_(SharedEtcd().Client()), prefix_("/" + TestName()) {}
  absl::StatusOr<std::unique_ptr<JobStore>> Open() override {
    return EtcdStore::Open(client_.get(), prefix_, LeadForever(client_.get(), prefix_));
  }

 private:
  const std::unique_ptr<EtcdClient> client_;
  const std::string prefix_;
};

struct Kind {
  const char* name;
  std::unique_ptr<Backend> (*make)();
};
const Kind kKinds[] = {
    {"Sqlite", []() -> std::unique_ptr<Backend> { return std::make_unique<SqliteBackend>(); }},
    {"Etcd", []() -> std::unique_ptr<Backend> { return std::make_unique<EtcdBackend>(); }}};

class JobStoreContract : public JobStoreTest, public ::testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().name == std::string("Etcd") && !EtcdProcess::IsInstalled()) {
      GTEST_SKIP() << "etcd is not installed: deploy/install.sh --tests";
    }
    backend_ = GetParam().make();
    Reopen();
  }
  void Reopen() {
    store_.reset();
    auto opened = backend_->Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  JobStore& store() override { return *store_; }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<JobStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, JobStoreContract, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(JobStoreContract, WritesSurviveReopening) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  JobWrite write;
  write.job = *store().Get("j");
  write.job->job.set_state(v1::RUNNING);
  write.job->job.mutable_plan()->set_batch_size(8);
  write.job->checkpoint_dir = "/c/1";
  write.job->attempts_without_progress = 2;
  write.job->failures = "why";
  write.with_plan = true;
  write.reports = {Report(0, 3), Report(1, 2)};
  write.messages = {Message("hello"), Message("lost", v1::JobMessage::WARNING),
                    Message("fused", v1::JobMessage::DETAIL)};
  write.reports[1].set_unix_ms(1'700'000'000'001);
  write.messages[1].set_unix_ms(1'700'000'000'002);
  ASSERT_TRUE(store().Write("j", write).ok());
  Reopen();
  auto record = store().Get("j");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->job.state(), v1::RUNNING);
  EXPECT_EQ(record->job.spec().graph().name(), "g");
  EXPECT_EQ(record->job.plan().batch_size(), 8);
  EXPECT_EQ(record->checkpoint_dir, "/c/1");
  EXPECT_EQ(record->attempts_without_progress, 2);
  EXPECT_EQ(record->failures, "why");
  EXPECT_THAT(LogOf("j"),
              testing::ElementsAre("0:3", "1:2", "hello", "WARNING: lost", "DETAIL: fused"));
  const auto log = store().Log("j", 0, 0, 10);
  EXPECT_EQ(std::get<v1::StepReport>(log->at(1).entry).unix_ms(), 1'700'000'000'001);
  EXPECT_EQ(std::get<v1::JobMessage>(log->at(3).entry).unix_ms(), 1'700'000'000'002);
}

TEST_P(JobStoreContract, RollbackDropsLaterReportsAndReplayedOnesFollow) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  JobWrite write;
  write.reports = {Report(0, 9), Report(1, 8), Report(2, 7)};
  ASSERT_TRUE(store().Write("j", write).ok());
  const int64_t seen = store().Log("j", 0, 0, 100)->back().sequence;
  JobWrite back;
  back.drop_reports_from = 1;
  back.messages = {Message("going back to step 1")};
  ASSERT_TRUE(store().Write("j", back).ok());
  JobWrite again;
  again.reports = {Report(1, 8)};
  ASSERT_TRUE(store().Write("j", again).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "going back to step 1", "1:8"));
  EXPECT_THAT(LogOf("j", seen), testing::ElementsAre("going back to step 1", "1:8"))
      << "a watcher that had seen step 2 must be told of the replayed step";
  EXPECT_THAT(LogOf("j", 0, 1), testing::ElementsAre("going back to step 1", "1:8"));
}

TEST_P(JobStoreContract, ValidationsAreLoggedAndDroppedWithTheStepsBeforeThem) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  JobWrite write;
  write.reports = {Report(0, 9), Report(1, 8), Report(2, 7), Report(3, 6)};
  write.validations = {Report(1, 80), Report(3, 60)};
  ASSERT_TRUE(store().Write("j", write).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:80", "2:7", "3:6", "val 3:60"));
  EXPECT_THAT(LogOf("j", 0, 2), testing::ElementsAre("val 1:80", "2:7", "3:6", "val 3:60"))
      << "a watcher that has seen step 1 may not have seen its validation";
  EXPECT_THAT(LogOf("j", 0, 3), testing::ElementsAre("3:6", "val 3:60"));
  ASSERT_EQ(store().Validations("j")->size(), 2u);
  EXPECT_EQ(store().Validations("j")->front().step(), 1);

  // Back to a checkpoint of two steps, behind the validation after them.
  JobWrite back;
  back.drop_reports_from = 2;
  ASSERT_TRUE(store().Write("j", back).ok());
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:80"));
  JobWrite again;
  again.validations = {Report(1, 81)};
  ASSERT_TRUE(store().Write("j", again).ok());
  Reopen();
  EXPECT_THAT(LogOf("j"), testing::ElementsAre("0:9", "1:8", "val 1:81")) << "not twice";
  back.drop_reports_from = 0;
  ASSERT_TRUE(store().Write("j", back).ok());
  EXPECT_TRUE(LogOf("j").empty());
  EXPECT_TRUE(store().Validations("j")->empty());
}

TEST_P(JobStoreContract, ListIsInOrderOfCreationAndWithoutGraphs) {
  for (const char* id : {"z", "a", "m"}) ASSERT_TRUE(store().Write(id, Create(id)).ok());
  auto records = store().List();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ((*records)[0].job.id(), "z");
  EXPECT_EQ((*records)[2].job.id(), "m");
  EXPECT_FALSE((*records)[0].job.spec().has_graph());
  EXPECT_EQ((*records)[0].job.spec().name(), "n");
}

TEST_P(JobStoreContract, CreateRequiresNewAndWriteRequiresExistingJob) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  EXPECT_EQ(store().Write("j", Create("j")).code(), absl::StatusCode::kAlreadyExists);
  JobWrite write = Create("other");
  write.create = false;
  write.messages = {Message("lost")};
  EXPECT_EQ(store().Write("other", write).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(LogOf("other").empty()) << "a failed write leaves nothing behind";
}

TEST_P(JobStoreContract, EpochsGrowAcrossReopening) {
  const uint64_t first = *store().NextEpoch();
  const uint64_t second = *store().NextEpoch();
  Reopen();
  const uint64_t third = *store().NextEpoch();
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
}

TEST_P(JobStoreContract, ServedModelsAndArtifactsSurvive) {
  v1::ServeModelRequest served;
  served.set_name("m");
  served.set_artifact("a");
  ASSERT_TRUE(store().PutServed(served, nullptr).ok());
  ArtifactRecord artifact;
  artifact.artifact.set_name("a");
  artifact.folder = "a@1";
  ASSERT_TRUE(store().PutArtifact(artifact, nullptr).ok());
  Reopen();
  ASSERT_EQ(store().Served()->size(), 1u);
  EXPECT_EQ((*store().Served())[0].artifact(), "a");
  EXPECT_EQ((*store().Artifacts())[0].folder, "a@1");
  ASSERT_TRUE(store().DeleteServed("m", nullptr).ok());
  EXPECT_TRUE(store().Served()->empty());
}

TEST_P(JobStoreContract, RepeatedCallGetsFirstAnswerChangedOneIsRefused) {
  v1::SubmitRequest request;
  request.mutable_spec()->set_name("one");
  request.set_idempotency_key("k");
  int runs = 0;
  auto call = [&](const char* method, const v1::SubmitRequest& body, v1::SubmitReply* reply) {
    Idempotency idempotency(&store());
    return idempotency.RunOnce(method, body.idempotency_key(), body, reply, [&] {
      reply->set_job_id("job-" + std::to_string(++runs));
      JobWrite write = Create(reply->job_id());
      write.idempotency_record =
          MakeIdempotencyRecord(method, body.idempotency_key(), body, *reply);
      return store().Write(reply->job_id(), write);
    });
  };
  v1::SubmitReply first, second, third;
  ASSERT_TRUE(call("Submit", request, &first).ok());
  Reopen();
  ASSERT_TRUE(call("Submit", request, &second).ok());
  EXPECT_EQ(second.job_id(), first.job_id());
  EXPECT_EQ(runs, 1);
  request.mutable_spec()->set_name("two");
  absl::Status changed = call("Submit", request, &third);
  EXPECT_EQ(changed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(changed.message()), HasSubstr("another request"));
  EXPECT_EQ(call("Cancel", request, &third).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(runs, 1);
}

// As in a job that takes thousands of steps, one or some per write, and goes back now and then.
TEST_P(JobStoreContract, LongLogsKeepTheirOrderThroughReplays) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  std::vector<std::string> expected;
  int64_t step = 0, sequence = 0;
  const auto write = [&](int reports, const std::string& message) {
    JobWrite next;
    for (int i = 0; i < reports; ++i) {
      next.reports.push_back(Report(step, static_cast<double>(step)));
      expected.push_back(absl::StrCat(step, ":", step));
      ++step;
    }
    if (!message.empty()) {
      next.messages = {Message(message)};
      expected.push_back(message);
    }
    ASSERT_TRUE(store().Write("j", next).ok());
  };
  for (int i = 0; i < 150; ++i) write(1 + i % 3, i % 40 == 7 ? absl::StrCat("message ", i) : "");
  EXPECT_EQ(LogOf("j"), expected);
  sequence = store().Log("j", 0, 0, 1000)->back().sequence;
  for (const int64_t back_to : {int64_t{290}, int64_t{150}, int64_t{20}}) {
    JobWrite back;
    back.drop_reports_from = back_to;
    back.messages = {Message(absl::StrCat("back to ", back_to))};
    ASSERT_TRUE(store().Write("j", back).ok());
    expected.erase(std::remove_if(expected.begin(), expected.end(),
                                  [&](const std::string& line) {
                                    return line.find(':') != line.npos &&
                                           std::stoll(line) >= back_to;
                                  }),
                   expected.end());
    expected.push_back(back.messages[0].text());
    step = back_to;
    Reopen();
    for (int i = 0; i < 10; ++i) write(1, "");
    EXPECT_EQ(LogOf("j"), expected);
  }
  // Who has read all before the first of them is told of everything after it, and of it alone.
  const auto after = std::find(expected.begin(), expected.end(), "back to 290");
  EXPECT_EQ(LogOf("j", sequence), std::vector<std::string>(after, expected.end()));
  // In pages.
  std::vector<int64_t> pages;
  for (int64_t seen = 0;;) {
    const auto page = store().Log("j", seen, 0, 7);
    ASSERT_TRUE(page.ok());
    if (page->empty()) break;
    for (const JobLogEntry& entry : *page) pages.push_back(entry.sequence);
    seen = page->back().sequence;
  }
  EXPECT_EQ(pages.size(), expected.size());
  EXPECT_TRUE(std::is_sorted(pages.begin(), pages.end()));
}

TEST_P(JobStoreContract, AReportReplacesAnEarlierOneOfItsStep) {
  ASSERT_TRUE(store().Write("j", Create("j")).ok());
  JobWrite write;
  write.reports = {Report(0, 3), Report(1, 2), Report(1, 4)};
  ASSERT_TRUE(store().Write("j", write).ok());
  write.reports = {Report(0, 5)};
  ASSERT_TRUE(store().Write("j", write).ok());
  EXPECT_THAT(LogOf("j"), ElementsAre("1:4", "0:5"));
}

// Graphs carry weights, and pages of plans are large.
TEST_P(JobStoreContract, LargeValuesComeBackWhole) {
  std::string weights;
  for (uint32_t i = 0; i < 3'000'000; ++i) weights += static_cast<char>('A' + (i * 7919 >> 8) % 26);
  JobWrite create = Create("j");
  create.job->job.mutable_spec()->mutable_graph()->set_name(weights.substr(0, 2'500'000));
  create.job->job.mutable_plan()->set_substitutions(weights.substr(1, 2'000'000));
  ASSERT_TRUE(store().Write("j", create).ok());
  ASSERT_TRUE(store().PutBlob("b", weights).ok());
  ASSERT_TRUE(store().PutBlob("b.c", weights).ok());
  ASSERT_TRUE(store().PutBlob("b", weights.substr(5)).ok());
  JobWrite message;
  message.messages = {Message(weights.substr(0, 100'000))};
  ASSERT_TRUE(store().Write("j", message).ok());
  Reopen();
  const auto record = store().Get("j");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_TRUE(record->job.spec().graph().name() == weights.substr(0, 2'500'000));
  EXPECT_TRUE(record->job.plan().substitutions() == weights.substr(1, 2'000'000));
  EXPECT_TRUE(*store().GetBlob("b") == weights.substr(5));
  EXPECT_TRUE(*store().GetBlob("b.c") == weights);
  ASSERT_TRUE(store().PutBlob("b", "small").ok());
  EXPECT_EQ(*store().GetBlob("b"), "small");
  EXPECT_TRUE(*store().GetBlob("b.c") == weights) << "a value of its own";
  EXPECT_EQ(LogOf("j").at(0).size(), 100'000u);
}

TEST_P(JobStoreContract, OldRepliesAreForgotten) {
  v1::ServeModelRequest served;
  served.set_name("m");
  const IdempotencyRecord first{"Serve", "first", "hash", "reply"};
  ASSERT_TRUE(store().PutServed(served, &first).ok());
  ASSERT_TRUE(store().ForgetRepliesBefore(absl::Now() - kRepliesKept).ok());
  EXPECT_TRUE(store().FindReply("Serve", "first", "hash")->has_value()) << "it is not old";
  ASSERT_TRUE(store().ForgetRepliesBefore(absl::Now() + absl::Seconds(2)).ok());
  EXPECT_FALSE(store().FindReply("Serve", "first", "hash")->has_value());
  ASSERT_TRUE(store().PutServed(served, &first).ok()) << "the key is free again";
  EXPECT_TRUE(store().FindReply("Serve", "first", "hash")->has_value());
}

TEST_P(JobStoreContract, ABlobMayBeDeleted) {
  ASSERT_TRUE(store().PutBlob("b", std::string(100'000, 'x')).ok());
  ASSERT_TRUE(store().PutBlob("b.c", "stays").ok());
  ASSERT_TRUE(store().DeleteBlob("b").ok());
  EXPECT_EQ(store().DeleteBlob("b"), absl::OkStatus()) << "once more";
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(store().GetBlob("b").status()));
  EXPECT_EQ(*store().GetBlob("b.c"), "stays");
}

TEST_P(JobStoreContract, NamesMayBeAnyText) {
  const std::vector<std::string> names = {"a", "a/b", "a%2Fb", "\xff\x01", "ä ö", "a-b", "a.b"};
  for (const std::string& name : names) {
    ASSERT_TRUE(store().PutBlob(name, "of " + name).ok());
  }
  for (const std::string& name : names) EXPECT_EQ(*store().GetBlob(name), "of " + name);
  for (const char* name : {"a", "a-b", "a/b"}) {
    ArtifactRecord record;
    record.artifact.set_name(name);
    ASSERT_TRUE(store().PutArtifact(record, nullptr).ok());
  }
  ASSERT_TRUE(store().DeleteArtifact("a", nullptr).ok());
  const auto left = store().Artifacts();
  ASSERT_EQ(left->size(), 2u);
  EXPECT_EQ((*left)[0].artifact.name(), "a-b");
  EXPECT_EQ((*left)[1].artifact.name(), "a/b");
}

TEST_P(JobStoreContract, ADeletedJobIsGoneWithItsLogAndTheOthersStay) {
  for (const char* id : {"j", "j-1", "j.1"}) {
    ASSERT_TRUE(store().Write(id, Create(id)).ok());
    JobWrite write;
    write.reports = {Report(0, 3)};
    write.validations = {Report(0, 4)};
    ASSERT_TRUE(store().Write(id, write).ok());
  }
  ASSERT_TRUE(store().DeleteJob("j", nullptr).ok());
  EXPECT_EQ(store().DeleteJob("j", nullptr).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Get("j").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(LogOf("j").empty());
  EXPECT_TRUE(store().Validations("j")->empty());
  ASSERT_EQ(store().List()->size(), 2u);
  EXPECT_THAT(LogOf("j-1"), ElementsAre("0:3", "val 0:4"));
  EXPECT_THAT(LogOf("j.1"), ElementsAre("0:3", "val 0:4"));
}

TEST_P(JobStoreContract, WritesOfManyJobsFailOneByOne) {
  std::vector<std::string> ids;
  std::vector<JobWrite> creations, steps;
  for (int i = 0; i < 12; ++i) {
    ids.push_back(absl::StrCat("j", i));
    creations.push_back(Create(ids.back()));
    steps.emplace_back().reports = {Report(i, 1)};
  }
  const auto write_all = [&](const std::vector<JobWrite>& writes) {
    std::vector<JobStore::NamedWrite> named;
    for (size_t i = 0; i < ids.size(); ++i) named.emplace_back(ids[i], &writes[i]);
    return store().WriteAll(named);
  };
  ASSERT_TRUE(store().Write("j7", creations[7]).ok());
  const std::vector<absl::Status> created = write_all(creations);
  ASSERT_EQ(created.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(created[i].code(), i == 7 ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kOk);
  }
  for (const absl::Status& status : write_all(steps)) EXPECT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_THAT(LogOf(ids[i]), ElementsAre(absl::StrCat(i, ":1")));
  }
  std::vector<std::string> listed;
  const auto records = store().List();
  for (const JobRecord& record : *records) listed.push_back(record.job.id());
  std::swap(ids[0], ids[7]);  // the first one that was made
  std::sort(ids.begin() + 1, ids.end(), [](const std::string& a, const std::string& b) {
    return std::stoi(a.substr(1)) < std::stoi(b.substr(1));
  });
  EXPECT_EQ(listed, ids);
}

// What a repeated call with its key sees must be all of the first one, or nothing.
TEST_P(JobStoreContract, AWriteWithAUsedKeyChangesNothing) {
  IdempotencyRecord record{"PutServed", "key", "hash", "reply"};
  v1::ServeModelRequest first, second;
  first.set_name("first");
  second.set_name("second");
  ASSERT_TRUE(store().PutServed(first, &record).ok());
  EXPECT_EQ(store().PutServed(second, &record).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(store().Served()->size(), 1u);
  EXPECT_EQ(store().DeleteServed("first", &record).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store().Served()->size(), 1u);
}

TEST_P(JobStoreContract, ABackupIsAStoreWithEverything) {
  JobWrite create = Create("j");
  create.job->job.mutable_plan()->set_batch_size(8);
  create.idempotency_record = {"Submit", "key", "hash", "reply"};
  ASSERT_TRUE(store().Write("j", create).ok());
  JobWrite write;
  write.reports = {Report(0, 9), Report(1, 8)};
  write.validations = {Report(0, 90)};
  write.messages = {Message("hello", v1::JobMessage::WARNING)};
  ASSERT_TRUE(store().Write("j", write).ok());
  write = JobWrite();
  write.reports = {Report(2, 7)};
  ASSERT_TRUE(store().Write("j", write).ok());
  ASSERT_TRUE(store().Write("k", Create("k")).ok());
  ArtifactRecord artifact;
  artifact.artifact.set_name("a");
  artifact.folder = "a@1";
  ASSERT_TRUE(store().PutArtifact(artifact, nullptr).ok());
  v1::ServeModelRequest served;
  served.set_name("m");
  ASSERT_TRUE(store().PutServed(served, nullptr).ok());
  ASSERT_TRUE(store().PutBlob("b", "value").ok());
  const uint64_t epoch = *store().NextEpoch();
  const std::vector<std::string> log = LogOf("j");
  const std::string path = ::testing::TempDir() + "/contract_" + TestName() + ".backup";
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
  const absl::Status done = store().BackUp(path, [] { return false; });
  ASSERT_TRUE(done.ok()) << done;
  auto copy = SqliteStore::Open(path);
  ASSERT_TRUE(copy.ok()) << copy.status();
  store_ = *std::move(copy);
  EXPECT_EQ(LogOf("j"), log);
  EXPECT_EQ(store().Get("j")->job.plan().batch_size(), 8);
  EXPECT_EQ(store().Get("j")->job.spec().graph().name(), "g");
  EXPECT_EQ(store().List()->at(1).job.id(), "k");
  EXPECT_EQ(**store().FindReply("Submit", "key", "hash"), "reply");
  EXPECT_EQ(store().Artifacts()->at(0).folder, "a@1");
  EXPECT_EQ(store().Served()->at(0).name(), "m");
  EXPECT_EQ(*store().GetBlob("b"), "value");
  EXPECT_GT(*store().NextEpoch(), epoch);
}

}  // namespace
}  // namespace espalier
