#include "server/access/access_control.h"

#include <google/protobuf/descriptor.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "espalier/v1/access.pb.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/distillation.pb.h"
#include "espalier/v1/inference.pb.h"
#include "espalier/v1/models.pb.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/storage.pb.h"
#include "espalier/v1/training.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Caller kAlice{Role::kTrain, "alice"};
const Caller kBob{Role::kTrain, "bob"};
const Caller kAdmin{Role::kAdmin, ""};
const Caller kNamedAdmin{Role::kAdmin, "root"};
const Caller kWorkerHost{Role::kWorker, "key-1"};

class AccessControlTest : public ::testing::Test {
 protected:
  AccessControlTest()
      : access_([](const std::string& shown) -> absl::StatusOr<Caller> {
          if (shown == "alice") return kAlice;
          return absl::UnauthenticatedError("no key");
        }) {
    for (const ResourceKind kind : {ResourceKind::kJob, ResourceKind::kArtifact}) {
      access_.AddResources(
          kind,
          [this](const std::string& name) -> std::optional<std::string> {
            const auto it = owners_.find(name);
            if (it == owners_.end()) return std::nullopt;
            return it->second;
          },
          [](const std::string& name, const Caller&) {
            return absl::NotFoundError("there is no " + name);
          });
    }
    access_.AddResources(
        ResourceKind::kArtifact,
        [](const std::string& name) -> std::optional<std::string> {
          if (name == "promised") return "alice";
          return std::nullopt;
        },
        nullptr);
  }

  absl::StatusCode Try(const Caller& caller, ResourceUse use, const std::string& name) const {
    return access_.Check(caller, ResourceKind::kArtifact, use, name).code();
  }

  std::map<std::string, std::string> owners_ = {{"hers", "alice"}, {"shared", ""}};
  AccessControl access_;
};

TEST_F(AccessControlTest, WhatBelongsToOthersDoesNotExist) {
  using enum ResourceUse;
  EXPECT_EQ(Try(kAlice, kRead, "hers"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kAlice, kChange, "hers"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kBob, kRead, "hers"), absl::StatusCode::kNotFound);
  EXPECT_EQ(Try(kBob, kChange, "hers"), absl::StatusCode::kNotFound);
  EXPECT_EQ(Try(kBob, kRead, "promised"), absl::StatusCode::kNotFound);
  EXPECT_EQ(Try(kWorkerHost, kRead, "hers"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kWorkerHost, kChange, "hers"), absl::StatusCode::kPermissionDenied);
  for (const Caller& admin : {kAdmin, kNamedAdmin}) {
    EXPECT_EQ(Try(admin, kRead, "hers"), absl::StatusCode::kOk);
    EXPECT_EQ(Try(admin, kChange, "hers"), absl::StatusCode::kOk);
  }
  // As a name that there is not.
  EXPECT_EQ(access_.Check(kBob, ResourceKind::kArtifact, kRead, "hers").message(),
            "there is no hers");
}

TEST_F(AccessControlTest, ALeaseIsUsedByWhoJoinedOnly) {
  const Caller other{Role::kWorker, "key-2"};
  access_.AddResources(
      ResourceKind::kWorker,
      [](const std::string& id) -> std::optional<std::string> {
        if (id == "w1") return kWorkerHost.owner;
        if (id == "w2") return "";  // an admin's
        return std::nullopt;
      },
      [](const std::string&, const Caller&) { return absl::FailedPreconditionError("not yours"); });
  v1::HeartbeatRequest beat;
  beat.mutable_lease()->set_worker_id("w1");
  EXPECT_TRUE(access_.CheckRequest("Cluster/Heartbeat", kWorkerHost, beat).ok());
  EXPECT_TRUE(access_.CheckRequest("Cluster/Heartbeat", kAdmin, beat).ok());
  EXPECT_EQ(access_.CheckRequest("Cluster/Heartbeat", other, beat).message(), "not yours");
  v1::PutObjectRequest put;
  put.mutable_begin()->mutable_caller()->mutable_lease()->set_worker_id("w1");
  EXPECT_TRUE(access_.CheckRequest("Storage/PutObject", kWorkerHost, put).ok());
  EXPECT_EQ(access_.CheckRequest("Storage/PutObject", other, put).message(), "not yours");
  beat.mutable_lease()->set_worker_id("w2");
  EXPECT_EQ(access_.CheckRequest("Cluster/Heartbeat", other, beat).message(), "not yours");
  beat.mutable_lease()->set_worker_id("w3");
  EXPECT_TRUE(access_.CheckRequest("Cluster/Heartbeat", other, beat).ok())
      << "the call itself says that there is none";
}

TEST_F(AccessControlTest, WhatHasNoOwnerIsReadByAllAndChangedByAdmins) {
  using enum ResourceUse;
  EXPECT_EQ(Try(kBob, kRead, "shared"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kBob, kChange, "shared"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Try(kAdmin, kChange, "shared"), absl::StatusCode::kOk);
}

TEST_F(AccessControlTest, TakenNamesAreRefused) {
  using enum ResourceUse;
  EXPECT_EQ(Try(kAlice, kCreate, "hers"), absl::StatusCode::kOk);
  for (const char* name : {"hers", "shared", "promised"}) {
    EXPECT_EQ(Try(kBob, kCreate, name), absl::StatusCode::kAlreadyExists) << name;
  }
  EXPECT_EQ(Try(kBob, kCreate, "new"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kAdmin, kCreate, "hers"), absl::StatusCode::kOk);
  EXPECT_EQ(Try(kNamedAdmin, kCreate, "hers"), absl::StatusCode::kAlreadyExists);
}

TEST_F(AccessControlTest, FieldsOfRequestsAreChecked) {
  v1::SubmitRequest submit;
  submit.mutable_spec()->mutable_dataset()->set_uri("artifact:hers");
  EXPECT_TRUE(access_.CheckRequest("Training/Submit", kAlice, submit).ok());
  EXPECT_TRUE(absl::IsNotFound(access_.CheckRequest("Training/Submit", kBob, submit)));
  submit.mutable_spec()->mutable_dataset()->set_uri("/a/path");
  EXPECT_TRUE(access_.CheckRequest("Training/Submit", kBob, submit).ok());
  submit.mutable_spec()->set_output_model("hers");
  EXPECT_TRUE(absl::IsAlreadyExists(access_.CheckRequest("Training/Submit", kBob, submit)));
  v1::ServeModelRequest serve;
  serve.set_artifact("shared");
  serve.add_ssm_artifacts("shared");
  serve.add_ssm_artifacts("hers");
  EXPECT_TRUE(absl::IsNotFound(access_.CheckRequest("Inference/Serve", kBob, serve)));
  serve.mutable_ssm_artifacts()->RemoveLast();
  EXPECT_TRUE(access_.CheckRequest("Inference/Serve", kBob, serve).ok());
  serve.add_adapters()->set_artifact("hers");
  EXPECT_TRUE(absl::IsNotFound(access_.CheckRequest("Inference/Serve", kBob, serve)));
}

TEST_F(AccessControlTest, RolesDecideWhatIsCalled) {
  EXPECT_EQ(access_.Admit("Training/Submit", "alice")->owner, "alice");
  EXPECT_TRUE(absl::IsUnauthenticated(access_.Admit("Training/Submit", "x").status()));
  const absl::Status refused = access_.Admit("Cluster/Backup", "alice").status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("roles: admin; this one has train"));
  EXPECT_TRUE(absl::IsPermissionDenied(access_.Admit("GET /v1/unknown", "alice").status()));
  EXPECT_TRUE(AccessControl(nullptr).Admit("Cluster/Backup", "")->Has(Role::kAdmin));
}

TEST_F(AccessControlTest, ACertificateStandsForAKeyOnlyWhereNoKeyIsShown) {
  EXPECT_TRUE(absl::IsUnauthenticated(access_.Admit("Cluster/Join", "", "pem").status()));
  access_.AcceptCertificates([](const std::string& pem) -> absl::StatusOr<Caller> {
    if (pem == "pem") return kWorkerHost;
    return absl::UnauthenticatedError("no certificate of ours");
  });
  EXPECT_EQ(access_.Admit("Cluster/Join", "", "pem")->roles, Roles(Role::kWorker));
  EXPECT_TRUE(absl::IsPermissionDenied(access_.Admit("Training/Submit", "", "pem").status()));
  EXPECT_TRUE(absl::IsUnauthenticated(access_.Admit("Cluster/Join", "", "other").status()));
  EXPECT_TRUE(absl::IsUnauthenticated(access_.Admit("Cluster/Join", "wrong", "pem").status()));
  EXPECT_EQ(access_.Admit("Training/Submit", "alice", "pem")->owner, "alice");
}

TEST(KeepUsable, ListsHaveNothingOfOthers) {
  v1::ListJobsReply reply;
  for (const char* owner : {"bob", "alice", "", "bob", "alice"}) {
    reply.add_jobs()->set_owner(owner);
    reply.mutable_jobs()->rbegin()->set_id(absl::StrCat(reply.jobs_size()));
  }
  KeepUsable(kAlice, reply.mutable_jobs());
  std::vector<std::string> ids;
  for (const v1::Job& job : reply.jobs()) ids.push_back(job.id());
  EXPECT_THAT(ids, ElementsAre("2", "3", "5"));
}

// Returns the paths of the text fields of a request that name jobs, artifacts and workers' leases.
void AddNaming(const Descriptor& type, const std::string& before, std::set<const Descriptor*> seen,
               std::set<std::string>* paths) {
  if (!seen.insert(&type).second) return;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path = before + field.name();
    if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
      AddNaming(*field.message_type(), path + ".", seen, paths);
    } else if (field.type() == FieldDescriptor::TYPE_STRING &&
               (field.name() == "job_id" || &type == v1::Lease::descriptor() ||
                absl::StrContains(field.name(), "artifact"))) {
      paths->insert(path);
    }
  }
}

// A field that names one of these and is in no rule would be a way around owners.
TEST(AccessRules, HaveEveryFieldThatNamesAJobAnArtifactOrALease) {
  const FileDescriptor* files[] = {v1::SubmitRequest::descriptor()->file(),
                                   v1::PlanRequest::descriptor()->file(),
                                   v1::UploadRequest::descriptor()->file(),
                                   v1::ServeModelRequest::descriptor()->file(),
                                   v1::SubmitDistillationRequest::descriptor()->file(),
                                   v1::AccessToken::descriptor()->file(),
                                   v1::PutObjectRequest::descriptor()->file(),
                                   v1::JoinRequest::descriptor()->file()};
  // Shared by a worker's lease; the coordinator's own reply in the request's type.
  const std::set<std::string> other = {
      "Cluster/StoreSet job_id", "Cluster/StoreGet job_id", "Storage/PutObject begin.caller.job_id",
      "Storage/ReadObject caller.job_id", "Storage/ListObjects caller.job_id"};
  int methods = 0;
  for (const FileDescriptor* file : files) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m, ++methods) {
        const auto& method = *file->service(s)->method(m);
        const std::string name = absl::StrCat(file->service(s)->name(), "/", method.name());
        const AccessRule* rule = FindAccessRule(name);
        ASSERT_NE(rule, nullptr) << name;
        std::set<std::string> naming, ruled;
        AddNaming(*method.input_type(), "", {}, &naming);
        for (const ResourceField& field : rule->resources) ruled.insert(std::string(field.path));
        for (const std::string& path : naming) {
          EXPECT_TRUE(ruled.contains(path) || other.contains(absl::StrCat(name, " ", path)))
              << name << ": " << path;
        }
        if (method.client_streaming()) continue;  // its first message's part is handed in
        for (const std::string& path : ruled) {
          const Descriptor* type = method.input_type();
          for (const auto& part : absl::StrSplit(path, '.')) {
            ASSERT_NE(type, nullptr) << name << ": " << path;
            const FieldDescriptor* field = type->FindFieldByName(std::string(part));
            ASSERT_NE(field, nullptr) << name << ": " << path;
            type = field->message_type();
          }
        }
      }
    }
  }
  EXPECT_GT(methods, 40);
}

}  // namespace
}  // namespace espalier
