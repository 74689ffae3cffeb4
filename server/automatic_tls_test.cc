#include "server/automatic_tls.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/net/x509.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class AutomaticTlsTest : public ::testing::Test {
 protected:
  AutomaticTlsTest() { std::filesystem::remove_all(folder_); }

  std::unique_ptr<AutomaticTls> Open(std::vector<std::string> hosts = {"10.9.8.7"}) {
    auto opened = AutomaticTls::Open(folder_, std::move(hosts), &clock_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/automatic-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  // The files are also read against the system's clock.
  FakeClock clock_{absl::Now()};
};

TEST_F(AutomaticTlsTest, ServesWithACertificateForTheHostAndWhatTheOperatorNames) {
  const auto tls = Open({"10.9.8.7", "0.0.0.0", "0:0:0:0:0:0:0:1", "espalier.example"});
  const auto read = TransportSecurity::Read(tls->files());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->serves() && read->calls() && read->client_certificates_optional());
  const auto certificate = ReadCertificate(read->pem().certificate);
  ASSERT_TRUE(certificate.ok());
  for (const char* host : {"10.9.8.7", "127.0.0.1", "::1", "localhost", "espalier.example"}) {
    EXPECT_THAT(certificate->hosts, Contains(host));
  }
  EXPECT_THAT(certificate->hosts, ::testing::Not(Contains("0.0.0.0")));
  EXPECT_TRUE(CheckSignedBy(read->pem().certificate, tls->authority().ca()).ok());
}

TEST_F(AutomaticTlsTest, RenewsAfterTwoThirdsOfTheLifeAndForNewHosts) {
  auto tls = Open();
  auto read = TransportSecurity::Read(tls->files());
  ASSERT_TRUE(read.ok()) << read.status();
  const std::string first = read->pem().certificate;
  ASSERT_TRUE(tls->Renew().ok());
  EXPECT_EQ(*read->Reload(), false);
  tls = Open();
  EXPECT_EQ(*read->Reload(), false);
  clock_.Advance(absl::Hours(24 * 59));
  ASSERT_TRUE(tls->Renew().ok());
  EXPECT_EQ(*read->Reload(), false);
  clock_.Advance(absl::Hours(24 * 2));
  ASSERT_TRUE(tls->Renew().ok());
  EXPECT_EQ(*read->Reload(), true);
  EXPECT_NE(read->pem().certificate, first);
  tls = Open({"10.9.8.8"});
  EXPECT_EQ(*read->Reload(), true);
  // A standby that shares the folder and has the old address does not change it back.
  for (const char* host : {"10.9.8.7", "10.9.8.8"}) {
    EXPECT_THAT(ReadCertificate(read->pem().certificate)->hosts, Contains(host));
    tls = Open({host});
    EXPECT_EQ(*read->Reload(), false);
  }
}

TEST_F(AutomaticTlsTest, KeepsTheKeyOfTheAdminAndTellsTheCommandLine) {
  const auto tls = Open();
  const auto file = tls->AdminKeyFile();
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string key = Contents(*file);
  EXPECT_GE(key.size(), 32);
  EXPECT_EQ(*Open()->AdminKeyFile(), *file);
  EXPECT_EQ(Contents(*file), key);
  const auto home = tls->WriteHome("10.9.8.7:7070", "10.9.8.7:8080", *file);
  ASSERT_TRUE(home.ok()) << home.status();
  const auto json = nlohmann::json::parse(Contents(*home + "/connection.json"));
  EXPECT_EQ(json["grpc"], "10.9.8.7:7070");
  EXPECT_EQ(json["http"], "10.9.8.7:8080");
  EXPECT_EQ(json["token_file"], *file);
  EXPECT_EQ(Contents(json["ca_file"]), tls->authority().ca());
}

// Somebody gave it to another user, for example.
TEST_F(AutomaticTlsTest, AKeyThatCannotBeReadIsNotReplaced) {
  const auto tls = Open();
  const auto file = tls->AdminKeyFile();
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove(*file);
  std::filesystem::create_directory(*file);
  const auto again = tls->AdminKeyFile();
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(again.status().message(), HasSubstr("remove it for a new one"));
}

}  // namespace
}  // namespace espalier
