#include "worker/kept_identity.h"

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLife = absl::Hours(24);

// A coordinator with a CA.
class FakeSource : public CertificateSource {
 public:
  explicit FakeSource(const Clock* clock) : clock_(*clock) {
    key_ = *MakePrivateKey();
    CertificateFields fields;
    fields.common_name = "CA";
    fields.authority = true;
    fields.not_before = clock->Now() - absl::Hours(1);
    fields.not_after = clock->Now() + absl::Hours(24 * 365);
    ca_ = *MakeSelfSigned(fields, key_);
  }

  std::string Token(const std::string& id = "0123456789ab") const {
    return FormatAccessToken(
        {id, std::string(32, '1'), *PublicKeySha256(ca_), "10.0.0.1:7070", ""});
  }

  absl::StatusOr<v1::IssuedCertificate> Issue(const AccessTokenText& token,
                                              const v1::IssueCertificateRequest& request) override {
    ++issued;
    requests.push_back(request.SerializeAsString());
    EXPECT_GE(request.idempotency_key().size(), 16);
    if (unreachable > 0 && unreachable-- > 0) return absl::UnavailableError("nobody");
    if (!refuses_tokens.ok()) return refuses_tokens;
    token_id_ = token.id;
    return Sign(request.certificate_request());
  }
  absl::StatusOr<v1::IssuedCertificate> Renew(const TlsFiles& own,
                                              const v1::RenewCertificateRequest& request) override {
    ++renewed;
    EXPECT_TRUE(TransportSecurity::Read(own).ok());
    if (!refuses_renewal.ok()) return refuses_renewal;
    return Sign(request.certificate_request());
  }

  int issued = 0, renewed = 0, unreachable = 0;
  absl::Status refuses_tokens, refuses_renewal;
  std::vector<std::string> requests;

 private:
  absl::StatusOr<v1::IssuedCertificate> Sign(const std::string& pem) const {
    const auto request = ReadCertificateRequest(pem);
    if (!request.ok()) return request.status();
    CertificateFields fields;
    fields.common_name = "worker-1";
    fields.organizational_unit = token_id_;
    fields.hosts = request->hosts;
    fields.not_before = clock_.Now();
    fields.not_after = clock_.Now() + kLife;
    v1::IssuedCertificate reply;
    reply.set_certificate_chain(*SignCertificate(fields, request->public_key, ca_, key_));
    reply.set_ca_pem(ca_);
    return reply;
  }

  const Clock& clock_;
  std::string key_, ca_, token_id_;
};

class KeptIdentityTest : public ::testing::Test {
 protected:
  KeptIdentityTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove_all(folder_ + "-new");
    token_ = source_.Token();
  }

  absl::StatusOr<std::unique_ptr<KeptIdentity>> Open(std::vector<std::string> hosts = {
                                                         "10.0.0.2"}) {
    return KeptIdentity::Open({.coordinator = "10.0.0.1:7070",
                               .parents = parents_,
                               .hosts = std::move(hosts),
                               .token = [this] { return token_; },
                               .timeout = absl::Seconds(2)},
                              &source_, &clock_);
  }

  static std::string CertificateOf(const KeptIdentity& identity) {
    return TransportSecurity::Read(identity.files())->pem().certificate;
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/identity-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::vector<std::string> parents_ = {folder_};
  // The files are also read against the system's clock.
  FakeClock clock_{absl::Now()};
  FakeSource source_{&clock_};
  std::string token_;
};

TEST_F(KeptIdentityTest, ARestartedWorkerNeedsNoTokenWhileItsCertificateIsValid) {
  auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  const std::string first = CertificateOf(**identity);
  struct stat info;
  ASSERT_EQ(stat((*identity)->files().key.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  identity->reset();
  token_.clear();
  clock_.Advance(absl::Hours(15));
  identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(CertificateOf(**identity), first);
  EXPECT_EQ(source_.issued, 1);
  EXPECT_EQ(source_.renewed, 0);
  identity->reset();
  clock_.Advance(absl::Hours(10));
  identity = Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(identity.status()));
  EXPECT_THAT(std::string(identity.status().message()), HasSubstr("--join=TOKEN"));
}

TEST_F(KeptIdentityTest, RenewsAfterTwoThirdsWithTheCertificateItself) {
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  token_.clear();
  const std::string first = CertificateOf(**identity);
  clock_.Advance(absl::Hours(15));
  EXPECT_TRUE((*identity)->RenewIfDue().ok());
  EXPECT_EQ(source_.renewed, 0);
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE((*identity)->RenewIfDue().ok());
  EXPECT_EQ(source_.renewed, 1);
  EXPECT_EQ(source_.issued, 1);
  EXPECT_NE(CertificateOf(**identity), first);
  EXPECT_TRUE((*identity)->RenewIfDue().ok());
  EXPECT_EQ(source_.renewed, 1);
}

TEST_F(KeptIdentityTest, ARefusedRenewalIsTriedAgainUntilTheEndAndThenByTheToken) {
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  source_.refuses_renewal = absl::PermissionDeniedError("its token was revoked");
  source_.refuses_tokens = absl::PermissionDeniedError("the token was revoked");
  clock_.Advance(absl::Hours(17));
  const absl::Status refused = (*identity)->RenewIfDue();
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is valid until"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("revoked"));
  EXPECT_TRUE((*identity)->RenewIfDue().ok());  // not at once
  EXPECT_EQ(source_.renewed, 1);
  clock_.Advance(absl::Minutes(30));
  EXPECT_FALSE((*identity)->RenewIfDue().ok());
  EXPECT_EQ(source_.renewed, 2);
  clock_.Advance(absl::Hours(7));
  EXPECT_THAT(std::string((*identity)->RenewIfDue().message()), HasSubstr("ended at"));
  EXPECT_EQ(source_.renewed, 2);  // there is nothing to show
  source_.refuses_tokens = absl::OkStatus();
  token_ = source_.Token("ba9876543210");
  clock_.Advance(absl::Minutes(30));
  EXPECT_TRUE((*identity)->RenewIfDue().ok());
}

// Earlier releases kept it among temporary files.
TEST_F(KeptIdentityTest, AnIdentityIsFoundWhereItWasKeptBefore) {
  ASSERT_TRUE(Open().ok());
  parents_ = {folder_ + "-new", folder_};
  {
    const auto identity = Open();
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_THAT((*identity)->folder(), ::testing::StartsWith(folder_ + "/"));
    EXPECT_EQ(source_.issued, 1);
    // Another worker's is made in the new place, where it is found again.
    ASSERT_TRUE(Open().ok());
    const auto other = Open();
    EXPECT_THAT((*other)->folder(), ::testing::StartsWith(folder_ + "-new/"));
    EXPECT_EQ(source_.issued, 2);
  }
  std::filesystem::remove_all(folder_);
  EXPECT_THAT((*Open())->folder(), ::testing::StartsWith(folder_ + "-new/"));
}

TEST_F(KeptIdentityTest, AFolderThatCannotBeMadeIsNoReasonNotToStart) {
  parents_ = {"/proc/espalier", folder_};
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_THAT((*identity)->folder(), ::testing::StartsWith(folder_ + "/"));
  parents_ = {"/proc/espalier"};
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("/proc/espalier"));
}

TEST_F(KeptIdentityTest, ALostAnswerIsAskedForWithTheSameRequest) {
  source_.unreachable = 2;
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  ASSERT_EQ(source_.requests.size(), 3);
  EXPECT_EQ(source_.requests[0], source_.requests[1]);
  EXPECT_EQ(source_.requests[0], source_.requests[2]);
}

// A worker that was refused, or ended before it had the answer, starts again: the coordinator
// counts one use (TokenStore::Use), for it is the same request.
TEST_F(KeptIdentityTest, AWorkerThatStartsAgainRepeatsItsExchange) {
  const auto asked = [&](const std::string& serialized) {
    v1::IssueCertificateRequest request;
    EXPECT_TRUE(request.ParseFromString(serialized));
    const auto wanted = ReadCertificateRequest(request.certificate_request());
    EXPECT_TRUE(wanted.ok()) << wanted.status();
    return std::pair(request.idempotency_key(), wanted.ok() ? wanted->public_key_sha256 : "");
  };
  source_.unreachable = 1000;
  EXPECT_TRUE(absl::IsUnavailable(Open().status()));
  source_.unreachable = 0;
  const size_t lost = source_.requests.size();
  ASSERT_GT(lost, 0);
  ASSERT_TRUE(Open({"10.0.0.3"}).ok());
  clock_.Advance(kLife + absl::Hours(1));  // its certificate has ended
  ASSERT_TRUE(Open().ok());
  ASSERT_EQ(source_.requests.size(), lost + 2);
  EXPECT_EQ(asked(source_.requests[lost]), asked(source_.requests[0]));
  EXPECT_EQ(asked(source_.requests[lost + 1]), asked(source_.requests[0]));
  // Another token is another use, and another worker has another key.
  token_ = source_.Token("ba9876543210");
  const auto first = Open();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(asked(source_.requests.back()).first, asked(source_.requests[0]).first);
  ASSERT_TRUE(Open().ok());
  EXPECT_NE(asked(source_.requests.back()).second, asked(source_.requests[0]).second);
}

TEST_F(KeptIdentityTest, WorkersOfOneHostHaveIdentitiesOfTheirOwn) {
  auto one = Open(), two = Open();
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE((*one)->folder(), (*two)->folder());
  EXPECT_EQ(source_.issued, 2);
  const std::string folder = (*two)->folder();
  two->reset();
  two = Open();
  EXPECT_EQ((*two)->folder(), folder);
  EXPECT_EQ(source_.issued, 2);
}

TEST_F(KeptIdentityTest, AnotherCoordinatorsOrAddressesCertificateIsNotUsed) {
  ASSERT_TRUE(Open().ok());
  auto moved = Open({"10.0.0.3"});
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(source_.renewed, 1);
  EXPECT_THAT(ReadCertificate(CertificateOf(**moved))->hosts, ::testing::ElementsAre("10.0.0.3"));
  moved->reset();
  // The coordinator at the address has another CA, as the token says.
  FakeSource other(&clock_);
  const auto there = KeptIdentity::Open({.coordinator = "10.0.0.1:7070",
                                         .parents = parents_,
                                         .hosts = {"10.0.0.2"},
                                         .token = [&] { return other.Token(); },
                                         .timeout = absl::Seconds(2)},
                                        &other, &clock_);
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(other.issued, 1);
}

// The kept certificate's may have been revoked, which its holder learns only when it is refused.
TEST_F(KeptIdentityTest, AnotherTokenIsExchangedAtOnce) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(source_.issued, 1);
  token_ = source_.Token("ba9876543210");
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(source_.issued, 2);
  EXPECT_EQ(ReadCertificate(CertificateOf(**identity))->organizational_unit, "ba9876543210");
}

TEST_F(KeptIdentityTest, WhatIsKeptServesWhileAnotherTokenIsRefused) {
  ASSERT_TRUE(Open().ok());
  token_ = source_.Token("ba9876543210");
  source_.refuses_tokens = absl::PermissionDeniedError("the token is used up");
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(ReadCertificate(CertificateOf(**identity))->organizational_unit, "0123456789ab");
}

TEST_F(KeptIdentityTest, ARefusedTokenIsNotTriedAgain) {
  source_.refuses_tokens = absl::PermissionDeniedError("the token is used up");
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("used up"));
  EXPECT_EQ(source_.issued, 1);
  token_ = token_.substr(0, token_.size() - 2);
  EXPECT_TRUE(absl::IsInvalidArgument(Open().status()));
  EXPECT_EQ(source_.issued, 1);
}

}  // namespace
}  // namespace espalier
