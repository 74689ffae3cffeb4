#include "base/net/credential_watch.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/net/api_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

struct Pair {
  std::string certificate, key;  // PEM
};

template <typename Write>
std::string Pem(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), BIO_free_all);
  EXPECT_EQ(write(out.get()), 1);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

// A self-signed certificate.
Pair MakePair(const std::string& name) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  return {Pem([&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); }),
          Pem([&](BIO* out) {
            return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Certificates : public ::testing::Test {
 protected:
  Certificates() { std::filesystem::create_directories(folder_); }

  void Put(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path, std::ios::binary) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
  }
  void Put(const Pair& pair) {
    Put("cert.pem", pair.certificate);
    Put("key.pem", pair.key);
  }

  TransportSecurity Read() {
    auto tls = TransportSecurity::Read({.certificate = folder_ + "/cert.pem",
                                        .key = folder_ + "/key.pem",
                                        .ca = folder_ + "/cert.pem"});
    EXPECT_TRUE(tls.ok()) << tls.status();
    return *tls;
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/certificates-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const Pair one_ = MakePair("one"), other_ = MakePair("other");
};

TEST_F(Certificates, ReloadOnlyIfChangedAndCopiesSeeIt) {
  Put(one_);
  TransportSecurity tls = Read();
  const TransportSecurity copy = tls;
  EXPECT_EQ(Contents(tls.identity_path()), absl::StrCat(one_.key, "\n", one_.certificate));
  EXPECT_EQ(*tls.Reload(), false);
  Put(other_);
  EXPECT_EQ(*tls.Reload(), true);
  EXPECT_EQ(*tls.Reload(), false);
  EXPECT_EQ(copy.pem().certificate, other_.certificate);
  EXPECT_EQ(copy.pem().key, other_.key);
  EXPECT_EQ(Contents(copy.identity_path()), absl::StrCat(other_.key, "\n", other_.certificate));
  EXPECT_EQ(Contents(copy.ca_path()), other_.certificate);
}

TEST_F(Certificates, KeyThatOthersCanReadIsNotLoaded) {
  Put(one_);
  TransportSecurity tls = Read();
  Put(other_);
  std::filesystem::permissions(folder_ + "/key.pem", std::filesystem::perms(0644));
  EXPECT_THAT(std::string(tls.Reload().status().message()), HasSubstr("chmod 600"));
  EXPECT_EQ(tls.pem().key, one_.key);
}

// Certificate and key are written as two files, one after the other.
TEST_F(Certificates, KeyOfAnotherCertificateIsNotLoaded) {
  Put(one_);
  TransportSecurity tls = Read();
  const std::string path = tls.identity_path();
  std::ifstream open_before(path, std::ios::binary);
  Put("key.pem", other_.key);
  const auto wrong = tls.Reload();
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("--tls-key"));
  EXPECT_EQ(tls.pem().key, one_.key);
  EXPECT_EQ(Contents(path), absl::StrCat(one_.key, "\n", one_.certificate));
  Put("key.pem", "");
  EXPECT_FALSE(tls.Reload().ok());
  EXPECT_EQ(tls.pem().key, one_.key);
  Put(other_);
  EXPECT_EQ(*tls.Reload(), true);
  // A reader that opened it before sees all of the old contents.
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(open_before), {}),
            absl::StrCat(one_.key, "\n", one_.certificate));
}

TEST_F(Certificates, WatchReportsEachValidChange) {
  Put(one_);
  absl::Mutex mutex;
  std::vector<std::string> seen;
  const TransportSecurity tls = Read();
  const auto told = [&] { return !seen.empty(); };
  {
    const auto changed = [&](const TlsPem& pem) {
      absl::MutexLock lock(&mutex);
      seen.push_back(pem.certificate);
    };
    CredentialWatch watch(CredentialsOf(tls, std::nullopt, changed), absl::Milliseconds(5));
    Put("key.pem", other_.key);  // key only
    absl::SleepFor(absl::Milliseconds(100));
    {
      absl::MutexLock lock(&mutex);
      EXPECT_TRUE(seen.empty());
    }
    Put("cert.pem", other_.certificate);
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(30)));
    EXPECT_THAT(seen, ::testing::ElementsAre(other_.certificate));
  }
  EXPECT_EQ(tls.pem().key, other_.key);
  Put(one_);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(tls.pem().key, other_.key) << "the watch has ended";
}

TEST(Keys, WatchReloadsKeysAndKeepsThemIfFileIsInvalid) {
  const std::string path = ::testing::TempDir() + "/watched-keys";
  const auto put = [&](const std::string& text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
  };
  put("the-first-of-the-keys\n");
  const auto keys = ApiKeys::Read(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const ShownKey shown = keys->shown();
  const auto knows = [&](const char* key) {
    return keys->Identify(absl::StrCat("Bearer ", key)).ok();
  };
  const CredentialWatch watch(CredentialsOf(TransportSecurity(), *keys), absl::Milliseconds(5));
  put("the-second-of-the-keys\nthe-first-of-the-keys\n");
  for (int i = 0; i < 3000 && !knows("the-second-of-the-keys"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(knows("the-second-of-the-keys"));
  EXPECT_TRUE(knows("the-first-of-the-keys"));
  EXPECT_EQ(shown(), "the-second-of-the-keys");
  put("short\n");
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(knows("the-second-of-the-keys"));
  put("the-second-of-the-keys\n");
  for (int i = 0; i < 3000 && knows("the-first-of-the-keys"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_FALSE(knows("the-first-of-the-keys"));
  EXPECT_TRUE(knows("the-second-of-the-keys"));
}

}  // namespace
}  // namespace espalier
