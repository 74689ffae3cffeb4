#include "server/access/certificate_authority.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CertificateAuthorityTest : public ::testing::Test {
 protected:
  CertificateAuthorityTest() { std::filesystem::remove_all(folder_); }

  std::unique_ptr<CertificateAuthority> Open(const std::string& name = "ca") {
    auto opened = CertificateAuthority::Open(absl::StrCat(folder_, "/", name), &clock_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  // A worker's chain.
  static std::string Signed(const CertificateAuthority& authority, absl::Duration life) {
    const auto key = MakePrivateKey();
    const auto request = ReadCertificateRequest(*MakeCertificateRequest({"10.0.0.2"}, *key));
    EXPECT_TRUE(request.ok()) << request.status();
    const auto chain = authority.SignWorker(*request, {"worker-1", "0123456789ab"}, life);
    EXPECT_TRUE(chain.ok()) << chain.status();
    return *chain;
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/authority-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  FakeClock clock_;
};

TEST_F(CertificateAuthorityTest, IsTheSameAfterARestartAndItsKeysAreItsUsersAlone) {
  const auto first = Open();
  const auto again = Open();
  EXPECT_EQ(first->ca(), again->ca());
  EXPECT_EQ(first->ca_sha256(), again->ca_sha256());
  EXPECT_EQ(first->workers_ca(), again->workers_ca());
  EXPECT_NE(first->ca(), first->workers_ca());
  EXPECT_NE(Open("other")->ca_sha256(), first->ca_sha256());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    struct stat info;
    if (!entry.is_regular_file() || stat(entry.path().c_str(), &info) != 0) continue;
    EXPECT_EQ(info.st_mode & 0777, 0600) << entry.path();
  }
}

TEST_F(CertificateAuthorityTest, KnowsItsWorkersWhileTheirCertificatesAreValid) {
  const auto authority = Open();
  const std::string chain = Signed(*authority, absl::Hours(24));
  EXPECT_THAT(ReadCertificate(chain)->hosts, ElementsAre("10.0.0.2"));
  for (int turn = 0; turn < 2; ++turn) {
    const auto identity = authority->Identify(chain);
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_EQ(identity->name, "worker-1");
    EXPECT_EQ(identity->token_id, "0123456789ab");
    clock_.Advance(absl::Hours(23));
  }
  clock_.Advance(absl::Hours(1));
  const absl::Status late = authority->Identify(chain).status();
  EXPECT_TRUE(absl::IsUnauthenticated(late));
  EXPECT_THAT(std::string(late.message()), HasSubstr("is valid from"));
  EXPECT_TRUE(absl::IsUnauthenticated(Open()->Identify(chain).status()));
}

// Nobody is a worker by a certificate of another kind, and no worker can be taken for the
// coordinator.
TEST_F(CertificateAuthorityTest, OthersAreNoWorkersAndWorkersAreNoCoordinators) {
  const auto authority = Open();
  const auto key = MakePrivateKey();
  const auto own = authority->SignCoordinator({"10.0.0.1"}, *key, absl::Hours(24));
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(CheckSignedBy(*own, authority->ca()).ok());
  const std::string worker = Signed(*authority, absl::Hours(24));
  EXPECT_FALSE(CheckSignedBy(worker, authority->ca()).ok());
  const std::string strange = Signed(*Open("other"), absl::Hours(24));
  for (const std::string& shown :
       {*own, strange, authority->ca(), authority->workers_ca(), std::string("no certificate")}) {
    EXPECT_TRUE(absl::IsUnauthenticated(authority->Identify(shown).status())) << shown;
  }
}

TEST_F(CertificateAuthorityTest, DamagedFilesAreNamedAndNotReplaced) {
  const std::string path = Open()->ca_path();
  std::ofstream(path, std::ios::trunc) << "nothing";
  const auto opened = CertificateAuthority::Open(folder_ + "/ca", &clock_);
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status()));
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr(folder_ + "/ca"));
}

TEST(CertificateRequest, IsOfWhoeverHasTheKeyAndForHosts) {
  const auto key = MakePrivateKey();
  const auto request = MakeCertificateRequest({"10.0.0.2", "fd00::2", "host-2.example"}, *key);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto read = ReadCertificateRequest(*request);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->hosts, ElementsAre("10.0.0.2", "fd00::2", "host-2.example"));
  EXPECT_EQ(read->public_key, *PublicKeyOf(*key));
  // A request with another one's key, whose signature it cannot have.
  std::string changed = *request;
  changed[changed.size() / 2] = changed[changed.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_TRUE(absl::IsInvalidArgument(ReadCertificateRequest(changed).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadCertificateRequest("").status()));
  EXPECT_FALSE(MakeCertificateRequest({"a host, IP:10.0.0.1"}, *key).ok());
  const auto none = MakeCertificateRequest({}, *key);
  EXPECT_FALSE(none.ok() && ReadCertificateRequest(*none).ok());
}

}  // namespace
}  // namespace espalier
