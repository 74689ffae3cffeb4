#include "server/access/token_store.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/net/access_token.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Blobs in memory, and what a test does before one is written.
class BlobStore : public JobStore {
 public:
  std::function<absl::Status()> before_put = [] { return absl::OkStatus(); };
  std::map<std::string, std::string> blobs;
  size_t bytes_written = 0;

  absl::Status PutBlob(const std::string& name, const std::string& value) override {
    if (absl::Status s = before_put(); !s.ok()) return s;
    blobs[name] = value;
    bytes_written += value.size();
    return absl::OkStatus();
  }
  absl::Status DeleteBlob(const std::string& name) override {
    blobs.erase(name);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> GetBlob(const std::string& name) const override {
    const auto found = blobs.find(name);
    if (found == blobs.end()) return absl::NotFoundError(name);
    return found->second;
  }

  absl::Status Write(const std::string&, const JobWrite&) override { return kNone; }
  std::vector<absl::Status> WriteAll(const std::vector<NamedWrite>&) override { return {kNone}; }
  absl::Status DeleteJob(const std::string&, const IdempotencyRecord*) override { return kNone; }
  absl::StatusOr<JobRecord> Get(const std::string&) const override { return kNone; }
  absl::StatusOr<std::vector<JobRecord>> List() const override { return kNone; }
  absl::StatusOr<std::vector<JobLogEntry>> Log(const std::string&, int64_t, int64_t,
                                               int) const override {
    return kNone;
  }
  absl::StatusOr<std::vector<v1::StepReport>> Validations(const std::string&) const override {
    return kNone;
  }
  absl::StatusOr<std::optional<std::string>> FindReply(const std::string&, const std::string&,
                                                       const std::string&) const override {
    return kNone;
  }
  absl::StatusOr<uint64_t> NextEpoch() override { return kNone; }
  absl::Status PutArtifact(const ArtifactRecord&, const IdempotencyRecord*) override {
    return kNone;
  }
  absl::Status DeleteArtifact(const std::string&, const IdempotencyRecord*) override {
    return kNone;
  }
  absl::StatusOr<std::vector<ArtifactRecord>> Artifacts() const override { return kNone; }
  absl::Status PutServed(const v1::ServeModelRequest&, const IdempotencyRecord*) override {
    return kNone;
  }
  absl::Status DeleteServed(const std::string&, const IdempotencyRecord*) override { return kNone; }
  absl::StatusOr<std::vector<v1::ServeModelRequest>> Served() const override { return kNone; }
  absl::Status BackUp(const std::string&, const std::function<bool()>&) const override {
    return kNone;
  }
  absl::Status ForgetRepliesBefore(absl::Time) override { return kNone; }
  absl::Status Checkpoint() override { return kNone; }
  absl::Status CheckPresent() const override { return kNone; }

 private:
  const absl::Status kNone = absl::UnimplementedError("not of tokens");
};

class TokenStoreTest : public ::testing::Test {
 protected:
  TokenStoreTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    Restart();
  }

  // As the coordinator's process does.
  void Restart() {
    tokens_.reset();
    store_.reset();
    auto store = SqliteStore::Open(folder_ + "/espalier.db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto tokens = TokenStore::Open(store_.get(), &clock_);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    tokens_ = *std::move(tokens);
  }

  TokenStore::Created Make(const std::string& role, absl::Duration ttl, int uses,
                           const std::string& owner = "") {
    v1::CreateTokenRequest request;
    request.add_roles(role);
    request.set_owner(owner);
    request.set_ttl_seconds(absl::ToDoubleSeconds(ttl));
    request.set_uses(uses);
    auto made = tokens_->Create(request, {Role::kAdmin, "root"});
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }

  TokenStore::Exchange Joins(const TokenStore::Created& made, const std::string& worker) const {
    return {.token_id = made.token.id(),
            .secret = made.secret,
            .idempotency_key = absl::StrCat("the-request-of-", worker),
            .public_key_sha256 = absl::StrCat("key of ", worker),
            .certificate_until = clock_.Now() + absl::Hours(24)};
  }

  v1::AccessToken Only() {
    auto list = tokens_->List();
    EXPECT_TRUE(list.ok() && list->size() == 1);
    return list->at(0);
  }

  std::string TextOf(const TokenStore::Created& made) {
    return FormatAccessToken(
        {made.token.id(), made.secret, std::string(64, 'a'), "10.0.0.1:7070", ""});
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/tokens-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  FakeClock clock_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<TokenStore> tokens_;
};

TEST_F(TokenStoreTest, UsesAreCountedAndARepetitionIsNotAnother) {
  const auto made = Make("worker", absl::Hours(1), 2);
  EXPECT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  EXPECT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  EXPECT_EQ(Only().uses_left(), 1);
  EXPECT_TRUE(tokens_->Use(Joins(made, "b")).ok());
  const absl::Status third = tokens_->Use(Joins(made, "c"));
  EXPECT_TRUE(absl::IsPermissionDenied(third));
  EXPECT_THAT(std::string(third.message()), HasSubstr("is used up: 2 workers have joined"));
  EXPECT_TRUE(tokens_->Use(Joins(made, "b")).ok());  // whose answer was lost
  EXPECT_EQ(Only().uses_left(), 0);
  EXPECT_EQ(Only().last_used_unix_ms(), clock_.NowUnixMillis());
}

TEST_F(TokenStoreTest, ARequestThatWasCapturedIsNoUse) {
  const auto made = Make("worker", absl::Hours(1), 8);
  ASSERT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  TokenStore::Exchange other_key = Joins(made, "a");
  other_key.public_key_sha256 = "key of a thief";
  TokenStore::Exchange other_request = Joins(made, "a");
  other_request.idempotency_key = "the-request-of-a-thief";
  for (const auto& replayed : {other_key, other_request}) {
    const absl::Status status = tokens_->Use(replayed);
    EXPECT_TRUE(absl::IsPermissionDenied(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("replayed"));
  }
  EXPECT_EQ(Only().uses_left(), 7);
}

TEST_F(TokenStoreTest, EachRefusalHasItsReason) {
  const auto made = Make("worker", absl::Hours(1), 8);
  TokenStore::Exchange guessed = Joins(made, "a");
  guessed.secret = std::string(32, '0');
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Use(guessed)));
  TokenStore::Exchange unknown = Joins(made, "a");
  unknown.token_id = "0123456789ab";
  // Who does not know the secret is not told whether there is such a token.
  EXPECT_EQ(absl::StrContains(tokens_->Use(unknown).message(), "is unknown here"),
            absl::StrContains(tokens_->Use(guessed).message(), "is unknown here"));
  clock_.Advance(absl::Minutes(59));
  EXPECT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  clock_.Advance(absl::Minutes(1));
  const absl::Status late = tokens_->Use(Joins(made, "b"));
  EXPECT_TRUE(absl::IsPermissionDenied(late));
  EXPECT_THAT(std::string(late.message()), HasSubstr("expired at 1970-01-12 14:46:40 UTC"));
  const auto next = Make("worker", absl::Hours(1), 8);
  ASSERT_TRUE(tokens_->Revoke(next.token.id()).ok());
  const absl::Status revoked = tokens_->Use(Joins(next, "a"));
  EXPECT_TRUE(absl::IsPermissionDenied(revoked));
  EXPECT_THAT(std::string(revoked.message()),
              HasSubstr("was revoked; start the worker with --join and a new one, which an admin "
                        "makes: `espalier token create --role=worker`"));
  const auto hers = Make("train", absl::Hours(1), 0, "alice");
  EXPECT_THAT(std::string(tokens_->Use(Joins(hers, "a")).message()), HasSubstr("is for clients"));
}

TEST_F(TokenStoreTest, RevokingRefusesRenewalButExpiryDoesNot) {
  const auto made = Make("worker", absl::Minutes(1), 1);
  ASSERT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  clock_.Advance(absl::Hours(16));
  const absl::Time until = clock_.Now() + absl::Hours(24);
  EXPECT_TRUE(tokens_->Renew(made.token.id(), until).ok());
  EXPECT_EQ(Only().certificates_until_unix_ms(), absl::ToUnixMillis(until));
  ASSERT_TRUE(tokens_->Revoke(made.token.id()).ok());
  const absl::Status refused = tokens_->Renew(made.token.id(), until + absl::Hours(24));
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was revoked"));
  // It stays known until no certificate of it can be renewed.
  clock_.Advance(absl::Hours(23));
  EXPECT_EQ(Only().revoked(), true);
  clock_.Advance(absl::Hours(26));
  EXPECT_TRUE(tokens_->List()->empty());
  EXPECT_TRUE(absl::IsPermissionDenied(tokens_->Renew(made.token.id(), until)));
}

TEST_F(TokenStoreTest, CertificatesOfARevokedTokenAreRefusedIfAsked) {
  const auto made = Make("worker", absl::Hours(1), 1);
  ASSERT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  ASSERT_TRUE(tokens_->Revoke(made.token.id()).ok());
  EXPECT_TRUE(tokens_->CheckCertificate(made.token.id()).ok());
  ASSERT_TRUE(tokens_->Revoke(made.token.id(), /*certificates=*/true).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->CheckCertificate(made.token.id())));
  Restart();
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->CheckCertificate(made.token.id())));
}

TEST_F(TokenStoreTest, OutlivesTheCoordinator) {
  const auto made = Make("worker", absl::Hours(1), 2);
  const auto revoked = Make("worker", absl::Hours(1), 2);
  const auto hers = Make("train", absl::Hours(1), 0, "alice");
  ASSERT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  ASSERT_TRUE(tokens_->Revoke(revoked.token.id()).ok());
  Restart();
  EXPECT_EQ(tokens_->List()->size(), 3);
  EXPECT_EQ(tokens_->List()->at(0).uses_left(), 1);
  EXPECT_EQ(tokens_->List()->at(0).made_by(), "root");
  EXPECT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  EXPECT_TRUE(tokens_->Use(Joins(made, "b")).ok());
  EXPECT_FALSE(tokens_->Use(Joins(made, "c")).ok());
  EXPECT_FALSE(tokens_->Use(Joins(revoked, "a")).ok());
  EXPECT_EQ(tokens_->Identify(TextOf(hers))->owner, "alice");
}

TEST_F(TokenStoreTest, TheStoreHasNoSecret) {
  const auto made = Make("worker", absl::Hours(1), 2);
  const auto blob = store_->GetBlob(absl::StrCat("access-token/", made.token.id()));
  ASSERT_TRUE(blob.ok());
  EXPECT_FALSE(absl::StrContains(*blob, made.secret));
}

// Workers' heartbeats ask for their certificates: they must not wait for a disk or for etcd.
TEST_F(TokenStoreTest, NobodyWaitsForTheStoreButWhoWrites) {
  BlobStore blobs;
  tokens_ = *TokenStore::Open(&blobs, &clock_);
  const auto workers = Make("worker", absl::Hours(1), 2);
  const auto hers = Make("train", absl::Hours(1), 0, "alice");
  absl::Notification writes, goes_on;
  blobs.before_put = [&] {
    if (!writes.HasBeenNotified()) writes.Notify();
    goes_on.WaitForNotification();
    return absl::OkStatus();
  };
  std::thread joins([&] { EXPECT_TRUE(tokens_->Use(Joins(workers, "a")).ok()); });
  writes.WaitForNotification();
  EXPECT_TRUE(tokens_->CheckCertificate(workers.token.id()).ok());
  EXPECT_EQ(tokens_->Identify(TextOf(hers))->owner, "alice");
  goes_on.Notify();
  joins.join();
  const auto last_use = [&] {
    v1::StoredToken stored;
    EXPECT_TRUE(stored.ParseFromString(blobs.blobs["access-token/" + hers.token.id()]));
    return stored.token().last_used_unix_ms();
  };
  EXPECT_EQ(last_use(), 0);
  tokens_->WriteLastUses();
  EXPECT_EQ(last_use(), clock_.NowUnixMillis());
  tokens_->WriteLastUses();
}

TEST_F(TokenStoreTest, ATokenOfManyUsesIsWrittenInLittle) {
  BlobStore blobs;
  tokens_ = *TokenStore::Open(&blobs, &clock_);
  const auto made = Make("worker", absl::Hours(1), 1000);
  const auto worker = [](int i) { return absl::StrCat("w", i); };
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(tokens_->Use(Joins(made, worker(i))).ok());
  blobs.bytes_written = 0;
  ASSERT_TRUE(tokens_->Use(Joins(made, worker(200))).ok());
  EXPECT_LT(blobs.bytes_written, 16'000u);
  blobs.bytes_written = 0;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Minutes(1));
    ASSERT_TRUE(tokens_->Renew(made.token.id(), clock_.Now() + absl::Hours(24)).ok());
  }
  EXPECT_EQ(blobs.bytes_written, 0u) << "it is known nearly that long already";

  tokens_ = *TokenStore::Open(&blobs, &clock_);
  EXPECT_EQ(Only().uses_left(), 1000 - 201);
  for (const int i : {0, 63, 64, 200}) {
    EXPECT_TRUE(tokens_->Use(Joins(made, worker(i))).ok()) << "a repetition";
    TokenStore::Exchange other_key = Joins(made, worker(i));
    other_key.public_key_sha256 = "key of a thief";
    EXPECT_FALSE(tokens_->Use(other_key).ok());
  }
  EXPECT_EQ(Only().uses_left(), 1000 - 201);
  clock_.Advance(absl::Hours(60));
  EXPECT_TRUE(tokens_->List()->empty());
  EXPECT_EQ(blobs.blobs.size(), 1u) << "nothing but the index remains";
}

// The process may end between the two.
TEST_F(TokenStoreTest, AnExchangeIsCountedThoughTheTokenWasNotWritten) {
  BlobStore blobs;
  tokens_ = *TokenStore::Open(&blobs, &clock_);
  const auto made = Make("worker", absl::Hours(1), 1);
  int puts = 0;
  blobs.before_put = [&] {
    return ++puts == 2 ? absl::UnavailableError("the disk") : absl::OkStatus();
  };
  EXPECT_FALSE(tokens_->Use(Joins(made, "a")).ok());
  tokens_ = *TokenStore::Open(&blobs, &clock_);
  EXPECT_EQ(Only().uses_left(), 0);
  EXPECT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  EXPECT_FALSE(tokens_->Use(Joins(made, "b")).ok());
}

TEST_F(TokenStoreTest, TokensOfEarlierReleasesKeepTheirExchanges) {
  BlobStore blobs;
  tokens_ = *TokenStore::Open(&blobs, &clock_);
  const auto made = Make("worker", absl::Hours(1), 3);
  ASSERT_TRUE(tokens_->Use(Joins(made, "a")).ok());
  const std::string name = "access-token/" + made.token.id();
  v1::StoredToken token, exchanges;
  ASSERT_TRUE(token.ParseFromString(blobs.blobs[name]));
  ASSERT_TRUE(exchanges.ParseFromString(blobs.blobs[name + "/exchanges/0"]));
  *token.mutable_exchanges() = exchanges.exchanges();
  blobs.blobs[name] = token.SerializeAsString();
  blobs.blobs.erase(name + "/exchanges/0");
  for (int i = 0; i < 2; ++i) {
    tokens_ = *TokenStore::Open(&blobs, &clock_);
    EXPECT_EQ(Only().uses_left(), 2 - i);
    TokenStore::Exchange other_key = Joins(made, "a");
    other_key.public_key_sha256 = "key of a thief";
    EXPECT_FALSE(tokens_->Use(other_key).ok());
    ASSERT_TRUE(tokens_->Use(Joins(made, absl::StrCat("b", i))).ok());
  }
}

TEST_F(TokenStoreTest, ATokenOfAPersonIsAKeyUntilItEnds) {
  const auto hers = Make("train", absl::Hours(1), 0, "alice");
  const auto caller = tokens_->Identify(TextOf(hers));
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->roles, Roles(Role::kTrain));
  EXPECT_EQ(caller->owner, "alice");
  // Without an owner it is one of its own, so that what it makes is not everybody's.
  const auto nobodys = Make("infer", absl::Hours(1), 0);
  EXPECT_EQ(tokens_->Identify(TextOf(nobodys))->owner, absl::StrCat("token-", nobodys.token.id()));
  auto guessed = hers;
  guessed.secret = std::string(32, '0');
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Identify(TextOf(guessed)).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Identify("esp1.").status()));
  // A worker's token lets nobody call anything.
  const auto workers = Make("worker", absl::Hours(1), 1);
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Identify(TextOf(workers)).status()));
  ASSERT_TRUE(tokens_->Revoke(nobodys.token.id()).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Identify(TextOf(nobodys)).status()));
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Identify(TextOf(hers)).status()));
}

TEST_F(TokenStoreTest, RequestsAreChecked) {
  const auto refused = [&](std::vector<std::string> roles, double ttl, int uses,
                           const std::string& owner) {
    v1::CreateTokenRequest request;
    for (const std::string& role : roles) request.add_roles(role);
    request.set_ttl_seconds(ttl);
    request.set_uses(uses);
    request.set_owner(owner);
    return absl::IsInvalidArgument(tokens_->Create(request, Caller::Unrestricted()).status());
  };
  EXPECT_TRUE(refused({}, 60, 1, ""));
  EXPECT_TRUE(refused({"root"}, 60, 0, ""));
  EXPECT_TRUE(refused({"worker", "train"}, 60, 1, ""));
  EXPECT_TRUE(refused({"worker"}, 60, 1, "alice"));
  EXPECT_TRUE(refused({"worker"}, 60, 0, ""));
  EXPECT_TRUE(refused({"worker"}, 60, 10001, ""));
  EXPECT_TRUE(refused({"train"}, 60, 1, ""));
  EXPECT_TRUE(refused({"train"}, 60, 0, "a b"));
  EXPECT_TRUE(refused({"train"}, 0, 0, ""));
  EXPECT_TRUE(refused({"train"}, 1e9, 0, ""));
  EXPECT_TRUE(refused({"train"}, std::nan(""), 0, ""));
  EXPECT_TRUE(absl::IsNotFound(tokens_->Revoke("0123456789ab").status()));
}

}  // namespace
}  // namespace espalier
