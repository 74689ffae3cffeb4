#include "storage/s3/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/synchronization/notification.h"
#include "storage/s3/fake_world.h"

namespace espalier::s3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/credentials/", test->name());
    std::filesystem::create_directories(folder_ + "/.aws");
    variables_["HOME"] = folder_;
  }

  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name) << content;
    return folder_ + "/" + name;
  }

  CredentialTools Tools() {
    return {VariablesOf(variables_), files_.get(), &http_, &pauses_, RetryPolicy()};
  }

  // "id secret token", or the error.
  std::string Found() { return Text(FindCredentials(Tools())); }
  static std::string Text(const absl::StatusOr<Credentials>& found) {
    if (!found.ok()) return found.status().ToString();
    return absl::StrCat(found->access_key_id, " ", found->secret_access_key, " ",
                        found->session_token);
  }

  // An EC2 instance with a role.
  void AddInstance(const std::string& credentials) {
    const std::string url = "http://169.254.169.254/latest/";
    http_.Add("PUT " + url + "api/token", 200, "imds-token");
    const auto with_token = [](const std::string& body) {
      return [body](const HttpRequest& request) {
        const bool good = HeaderOf(request, "X-aws-ec2-metadata-token") == "imds-token";
        return HttpResponse{good ? 200 : 401, {}, good ? body : ""};
      };
    };
    http_.Add("GET " + url + "meta-data/iam/security-credentials/", with_token("trainer\n"));
    http_.Add("GET " + url + "meta-data/iam/security-credentials/trainer", with_token(credentials));
  }

  static std::string Json(const std::string& id, absl::Time expires) {
    return absl::StrCat(R"({"Code":"Success","AccessKeyId":")", id,
                        R"(","SecretAccessKey":"s","Token":"t","Expiration":")",
                        absl::FormatTime(absl::RFC3339_full, expires, absl::UTCTimeZone()), "\"}");
  }

  std::string folder_;
  std::map<std::string, std::string> variables_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FakeHttp http_;
  FakePauses pauses_;
};

TEST_F(CredentialsTest, EarlierPlacesCountFirst) {
  AddInstance(Json("instance", pauses_.now + absl::Hours(1)));
  EXPECT_EQ(Found(), "instance s t");

  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials";
  http_.Add("GET http://169.254.170.2/v2/credentials", 200,
            Json("container", pauses_.now + absl::Hours(1)));
  EXPECT_EQ(Found(), "container s t");

  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = Write("token", "jwt\n");
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/pod";
  variables_["AWS_REGION"] = "eu-central-1";
  http_.Add("POST https://sts.eu-central-1.amazonaws.com/", [](const HttpRequest& request) {
    EXPECT_THAT(std::string(request.body),
                AllOf(HasSubstr("WebIdentityToken=jwt"), Not(HasSubstr("jwt%0A")),
                      HasSubstr("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fpod")));
    return HttpResponse{
        200,
        {},
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        "<AccessKeyId>identity</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        "<SessionToken>t</SessionToken><Expiration>2030-01-01T00:00:00Z</Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"};
  });
  EXPECT_EQ(Found(), "identity s t");

  Write(".aws/credentials",
        "# comment\n[other]\naws_access_key_id = no\naws_secret_access_key = no\n"
        "[default]\naws_access_key_id = file\naws_secret_access_key=with=equals\n");
  EXPECT_EQ(Found(), "file with=equals ");
  variables_["AWS_PROFILE"] = "other";
  EXPECT_EQ(Found(), "no no ");

  variables_["AWS_ACCESS_KEY_ID"] = "environment";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  variables_["AWS_SESSION_TOKEN"] = "session";
  http_.requests.clear();
  EXPECT_EQ(Found(), "environment secret session");
  EXPECT_THAT(http_.requests, ::testing::IsEmpty());
}

TEST_F(CredentialsTest, WithoutAnyAllPlacesAreNamed) {
  const std::string found = Found();
  for (const std::string& place :
       {std::string("AWS_ACCESS_KEY_ID"), folder_ + "/.aws/credentials", folder_ + "/.aws/config",
        std::string("AWS_WEB_IDENTITY_TOKEN_FILE"),
        std::string("AWS_CONTAINER_CREDENTIALS_FULL_URI"), std::string("http://169.254.169.254")}) {
    EXPECT_THAT(found, HasSubstr(place));
  }
  EXPECT_THAT(found, HasSubstr("FAILED_PRECONDITION"));
}

// What is set up wrong is told; a later place would have other rights.
TEST_F(CredentialsTest, AnUnusablePlaceIsNotPassedOver) {
  AddInstance(Json("instance", pauses_.now + absl::Hours(1)));
  variables_["AWS_ACCESS_KEY_ID"] = "environment";
  EXPECT_THAT(Found(), HasSubstr("go together"));
  variables_.erase("AWS_ACCESS_KEY_ID");

  Write(".aws/config", "[profile work]\nsso_session = mine\nregion = eu-west-1\n");
  variables_["AWS_PROFILE"] = "work";
  EXPECT_THAT(Found(), AllOf(HasSubstr("sso_session"), HasSubstr("not supported")));
  variables_.erase("AWS_PROFILE");

  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = folder_ + "/missing";
  EXPECT_THAT(Found(), HasSubstr("AWS_ROLE_ARN"));
  variables_["AWS_ROLE_ARN"] = "arn";
  EXPECT_THAT(Found(), HasSubstr(folder_ + "/missing"));
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = Write("token", "jwt");
  variables_["AWS_REGION"] = "eu-central-1";
  http_.Add("POST https://sts.eu-central-1.amazonaws.com/", 403,
            "<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized</Message>"
            "</Error></ErrorResponse>");
  EXPECT_THAT(Found(), HasSubstr("403 AccessDenied: Not authorized"));
  variables_.erase("AWS_WEB_IDENTITY_TOKEN_FILE");

  // The token would cross the network in the clear.
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://169.254.170.2.evil.example/x";
  EXPECT_THAT(Found(), HasSubstr("https://"));
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1@evil.example/x";
  EXPECT_THAT(Found(), HasSubstr("https://"));
  EXPECT_THAT(http_.requests, Not(::testing::Contains(HasSubstr("evil"))));
}

TEST_F(CredentialsTest, ContainersSendTheirToken) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost:1234/x";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = Write("authorization", "Bearer b\n");
  int asked = 0;
  http_.Add("GET http://localhost:1234/x", [&](const HttpRequest& request) {
    EXPECT_EQ(HeaderOf(request, "Authorization"), "Bearer b");
    // The agent is busy once.
    return ++asked == 1 ? HttpResponse{500, {}, ""}
                        : HttpResponse{200, {}, Json("container", pauses_.now + absl::Hours(1))};
  });
  EXPECT_EQ(Found(), "container s t");
  EXPECT_EQ(asked, 2);
}

TEST_F(CredentialsTest, RenewedBeforeTheyExpire) {
  AddInstance(Json("first", pauses_.now + absl::Hours(1)));
  CredentialCache cache(Tools());
  EXPECT_EQ(Text(cache.Get()), "first s t");
  AddInstance(Json("second", pauses_.now + absl::Hours(3)));
  pauses_.now += absl::Minutes(50);
  EXPECT_EQ(Text(cache.Get()), "first s t");
  pauses_.now += absl::Minutes(6);
  EXPECT_EQ(Text(cache.Get()), "second s t");
}

TEST_F(CredentialsTest, OldOnesServeUntilTheyExpireIfThereAreNoNewOnes) {
  AddInstance(Json("first", pauses_.now + absl::Hours(1)));
  CredentialCache cache(Tools());
  EXPECT_EQ(Text(cache.Get()), "first s t");
  AddInstance("not json");
  pauses_.now += absl::Minutes(57);
  EXPECT_EQ(Text(cache.Get()), "first s t");
  const size_t asked = http_.requests.size();
  EXPECT_EQ(Text(cache.Get()), "first s t");
  EXPECT_EQ(http_.requests.size(), asked);  // not at each use
  pauses_.now += absl::Minutes(4);
  EXPECT_THAT(Text(cache.Get()), HasSubstr("the instance's role"));
}

// Services that hand out credentials may do so until shortly before these end.
TEST_F(CredentialsTest, ThoseThatEndSoonAreNotLookedUpForEachUse) {
  AddInstance(Json("first", pauses_.now + absl::Minutes(4)));
  CredentialCache cache(Tools());
  EXPECT_EQ(Text(cache.Get()), "first s t");
  const size_t asked = http_.requests.size();
  EXPECT_EQ(Text(cache.Get()), "first s t");
  EXPECT_EQ(http_.requests.size(), asked);
  pauses_.now += absl::Minutes(1);
  AddInstance(Json("second", pauses_.now + absl::Hours(6)));
  EXPECT_EQ(Text(cache.Get()), "second s t");
}

TEST_F(CredentialsTest, ValidOnesAreNotWithheldWhileNewOnesAreLookedUp) {
  AddInstance(Json("first", pauses_.now + absl::Hours(1)));
  CredentialCache cache(Tools());
  EXPECT_EQ(Text(cache.Get()), "first s t");
  pauses_.now += absl::Minutes(57);
  absl::Notification asked, answers;
  http_.Add("PUT http://169.254.169.254/latest/api/token", [&](const HttpRequest&) {
    asked.Notify();
    answers.WaitForNotification();
    return HttpResponse{200, {}, "imds-token"};
  });
  std::thread looks([&] { EXPECT_EQ(Text(cache.Get()), "first s t"); });
  asked.WaitForNotification();
  EXPECT_EQ(Text(cache.Get()), "first s t");
  answers.Notify();
  looks.join();
}

// It may answer again soon; "there are no credentials" would end the job.
TEST_F(CredentialsTest, AServiceThatIsThereAndFailsIsAskedAgain) {
  AddInstance(Json("instance", pauses_.now + absl::Hours(1)));
  const std::string url = "http://169.254.169.254/latest/meta-data/iam/security-credentials/";
  for (const int status : {500, 503, 429}) {
    http_.Add("GET " + url, status, "");
    EXPECT_THAT(Found(), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(absl::StrCat(status))));
  }
  http_.Add("GET " + url, 404, "");
  EXPECT_THAT(Found(), HasSubstr("FAILED_PRECONDITION")) << "it has no role";
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost:1234/x";
  http_.Add("GET http://localhost:1234/x", 429, "");
  EXPECT_THAT(Found(), HasSubstr("UNAVAILABLE"));
}

TEST_F(CredentialsTest, RefusedOnesAreLookedUpAnew) {
  Write(".aws/credentials", "[default]\naws_access_key_id=a\naws_secret_access_key=b\n");
  CredentialCache cache(Tools());
  const absl::StatusOr<Credentials> old = cache.Get();
  ASSERT_TRUE(old.ok()) << old.status();
  Write(".aws/credentials", "[default]\naws_access_key_id=new\naws_secret_access_key=b\n");
  EXPECT_EQ(Text(cache.Get()), "a b ");
  cache.Refused(*old);
  EXPECT_EQ(Text(cache.Get()), "new b ");
  cache.Refused(*old);  // another request had them, too
  Write(".aws/credentials", "[default]\naws_access_key_id=newer\naws_secret_access_key=b\n");
  EXPECT_EQ(Text(cache.Get()), "new b ");
}

TEST_F(CredentialsTest, HostileAnswersAreErrors) {
  for (const std::string& answer :
       {std::string("[1]"), std::string("{\"AccessKeyId\": 1}"), std::string(100'000, '['),
        std::string("{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Expiration\":\"soon\"}"),
        std::string("{\"Code\":\"Failed\",\"Message\":\"no\"}")}) {
    AddInstance(answer);
    EXPECT_THAT(Found(), HasSubstr("cannot be used")) << answer.substr(0, 100);
  }
}

}  // namespace
}  // namespace espalier::s3
