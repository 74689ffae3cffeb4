#include "server/standby/shared_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/net/private_file.h"
#include "server/election/etcd_election.h"
#include "server/store/etcd/etcd_store.h"

namespace espalier {
namespace {

constexpr absl::Duration kStoreCall = absl::Seconds(2);
constexpr absl::Duration kLeastLease = absl::Seconds(2), kGreatestLease = absl::Minutes(10);
constexpr char kStoreFile[] = "job-store", kSqliteFile[] = "espalier.db";
constexpr int64_t kMaxBytes = 4096;

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  if (path.empty()) return std::string();
  if (absl::Status s = CheckPrivateFile("etcd-password-file", path); !s.ok()) return s;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::StatusOr<std::string> text = ReadWholeFile(*files, path, kMaxBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--etcd-password-file: ", std::string(text.status().message())));
  }
  return std::string(absl::StripTrailingAsciiWhitespace(*text));
}

// What the file kStoreFile says of a store; SQLite needs none.
std::string ClaimOf(const JobStoreAddress& address) {
  return address.endpoints.empty() ? "" : absl::StrCat("etcd ", address.prefix, "\n");
}

std::unique_ptr<EtcdClient> Connect(const SharedStoreOptions& options, const TransportSecurity& tls,
                                    const std::string& password, absl::Duration call_timeout) {
  EtcdClientOptions client;
  client.endpoints = options.address.endpoints;
  client.tls = tls;
  client.user = options.user;
  client.password = password;
  client.call_timeout = call_timeout;
  return std::make_unique<EtcdClient>(std::move(client));
}

}  // namespace

absl::Status CheckSharedStoreOptions(const SharedStoreOptions& options) {
  const auto invalid = [](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(text...));
  };
  if (options.address.endpoints.empty()) {
    const TlsFiles& tls = options.tls;
    const bool given = !tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty() ||
                       !options.user.empty() || !options.password_file.empty();
    if (!given) return absl::OkStatus();
    return invalid(
        "--etcd-ca, --etcd-cert, --etcd-key, --etcd-user and --etcd-password-file are "
        "for --job-store=etcd://HOST:PORT/PREFIX");
  }
  if (!(options.lease >= kLeastLease && options.lease <= kGreatestLease)) {
    return invalid("--leader-lease-seconds: 2 to 600");
  }
  if (options.user.empty() != options.password_file.empty()) {
    return invalid("--etcd-user and --etcd-password-file go together: one of them is given");
  }
  if (!options.tls.certificate.empty() && options.tls.ca.empty()) {
    return invalid("--etcd-cert needs --etcd-ca");
  }
  if (!options.tls.ca.empty() || options.insecure) return absl::OkStatus();
  for (const std::string& endpoint : options.address.endpoints) {
    if (IsLoopback(endpoint)) continue;
    return invalid("--job-store: etcd at ", endpoint,
                   " is off loopback, where others could read and change the jobs on their way: "
                   "give --etcd-ca, or pass --insecure on a network that you trust");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedStore>> SharedStore::Start(
    const SharedStoreOptions& options, const std::string& candidate,
    std::function<void(const std::string& why)> lost) {
  auto store = std::unique_ptr<SharedStore>(new SharedStore(options.address));
  absl::StatusOr<TransportSecurity> tls = TransportSecurity::Read(options.tls);
  if (!tls.ok()) return tls.status();
  store->tls_ = *std::move(tls);
  const absl::StatusOr<std::string> password = ReadPassword(options.password_file);
  if (!password.ok()) return password.status();
  // Several calls must fit into what is left of a lease after a renewal is due.
  store->election_client_ =
      Connect(options, store->tls_, *password, std::min(kStoreCall, options.lease / 5));
  store->store_client_ = Connect(options, store->tls_, *password, kStoreCall);
  store->election_store_ =
      NewEtcdElectionStore(store->election_client_.get(), options.address.prefix);
  store->clock_ = NewBootClock();
  store->leadership_ = std::make_unique<Leadership>(
      store->election_store_.get(), store->clock_.get(),
      ElectionOptions{.ttl = options.lease, .candidate = candidate}, std::move(lost));
  return store;
}

absl::Status SharedStore::CheckLeads() const {
  if (leadership_->election().Left() > absl::ZeroDuration()) return absl::OkStatus();
  return absl::UnavailableError("this coordinator no longer leads; ask the one that does");
}

absl::StatusOr<std::unique_ptr<JobStore>> SharedStore::Open(FileSystem& files,
                                                            const std::string& data_dir,
                                                            DataFolders folders, std::string* id) {
  const std::optional<ElectionStore::Leader> won = leadership_->election().won();
  if (!won.has_value()) return absl::FailedPreconditionError(Describe());
  const absl::StatusOr<bool> claimed = CheckDataFolder(files, data_dir, address_);
  if (!claimed.ok()) return claimed.status();
  LeaderGuard guard;
  guard.key = won->key;
  guard.epoch = won->epoch;
  guard.left = [this] { return leadership_->election().Left(); };
  guard.lost = [this](const std::string& why) { leadership_->Lose(why); };
  absl::StatusOr<std::unique_ptr<EtcdStore>> opened =
      EtcdStore::Open(store_client_.get(), address_.prefix, std::move(guard));
  if (!opened.ok()) return opened.status();
  if (*claimed && (*opened)->is_new()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the jobs of the data folder ", data_dir, " are in etcd below ", address_.prefix,
        ", and the etcd that --job-store names has nothing there: name the right one, or restore "
        "its snapshot; to begin without these jobs remove the file ",
        JoinPath(data_dir, kStoreFile)));
  }
  if (folders == DataFolders::kShared) {
    if (absl::Status s = (*opened)->BindDataFolder(*id); !s.ok()) return s;
  } else {
    absl::StatusOr<std::string> bound = (*opened)->BoundId();
    if (!bound.ok()) return bound.status();
    *id = *std::move(bound);
  }
  // Last: a folder that the store is not bound to stays free for another one.
  if (absl::Status s = ClaimDataFolder(files, data_dir, address_); !s.ok()) return s;
  return std::unique_ptr<JobStore>(*std::move(opened));
}

absl::StatusOr<bool> CheckDataFolder(FileSystem& files, const std::string& data_dir,
                                     const JobStoreAddress& address) {
  const std::string wanted = ClaimOf(address);
  const absl::StatusOr<std::vector<std::string>> names = files.List(data_dir);
  if (!names.ok()) return names.status();
  const auto has = [&](const char* name) {
    return std::find(names->begin(), names->end(), name) != names->end();
  };
  if (has(kStoreFile)) {
    const absl::StatusOr<std::string> text =
        ReadWholeFile(files, JoinPath(data_dir, kStoreFile), kMaxBytes);
    if (!text.ok()) return text.status();
    if (*text == wanted) return true;
    return absl::FailedPreconditionError(absl::StrCat(
        "the jobs of the data folder ", data_dir, " are in ",
        absl::StripTrailingAsciiWhitespace(*text),
        ": give --job-store=etcd://HOST:PORT/PREFIX with that prefix, or another --data-dir"));
  }
  if (!wanted.empty() && has(kSqliteFile)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the jobs of the data folder ", data_dir, " are in its file ", kSqliteFile,
                     ": leave out --job-store, or give another --data-dir for the jobs in etcd"));
  }
  return false;
}

absl::Status ClaimDataFolder(FileSystem& files, const std::string& data_dir,
                             const JobStoreAddress& address) {
  const absl::StatusOr<bool> claimed = CheckDataFolder(files, data_dir, address);
  if (!claimed.ok()) return claimed.status();
  if (*claimed || address.endpoints.empty()) return absl::OkStatus();
  return WriteFileAtomically(files, JoinPath(data_dir, kStoreFile), ClaimOf(address));
}

}  // namespace espalier
