#include "server/automatic_tls.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "base/net/identity_folder.h"
#include "base/net/own_address.h"
#include "base/net/x509.h"
#include "base/random_id.h"

namespace espalier {
namespace {

constexpr char kCertificate[] = "certificate.pem", kKey[] = "key.pem";
constexpr char kAdminKey[] = "admin.key";
// The command line reads it in its --home (client/cli/daemon.h).
constexpr char kConnection[] = "connection.json";
constexpr absl::Duration kCertificateLife = absl::Hours(24 * 90);
constexpr int64_t kMaxFileBytes = 64 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<AutomaticTls>> AutomaticTls::Open(const std::string& data_dir,
                                                                 std::vector<std::string> hosts,
                                                                 const Clock* clock) {
  const std::string folder = JoinPath(RealPath(data_dir), "tls");
  std::unique_ptr<AutomaticTls> out(new AutomaticTls(folder, std::move(hosts), clock));
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  for (const std::string& made : {folder, out->CertificateFolder()}) {
    if (absl::Status s = CreateDurableDirectories(*files, made); !s.ok()) return s;
  }
  absl::StatusOr<std::unique_ptr<CertificateAuthority>> authority =
      CertificateAuthority::Open(JoinPath(folder, "ca"), clock);
  if (!authority.ok()) return authority.status();
  out->authority_ = *std::move(authority);
  if (absl::Status s = out->Renew(); !s.ok()) return s;
  return out;
}

bool AutomaticTls::IsIn(const std::string& data_dir) {
  return NewPosixFileSystem()
      ->Open(IdentityPath(JoinPath(data_dir, "tls/ca"), CertificateAuthority::kCaFile))
      .ok();
}

// The data folder may be that of several coordinators, on a host each.
std::string AutomaticTls::CertificateFolder() const {
  return JoinPath(folder_, absl::StrCat("coordinator-", OwnHostName()));
}

TlsFiles AutomaticTls::files() const {
  TlsFiles files;
  files.certificate = IdentityPath(CertificateFolder(), kCertificate);
  files.key = IdentityPath(CertificateFolder(), kKey);
  files.ca = files.client_ca = authority_->workers_ca_path();
  files.client_certificates_optional = true;  // people and programs show keys
  return files;
}

std::vector<std::string> AutomaticTls::Hosts() const {
  std::vector<std::string> all = OwnHosts();
  for (const std::string& host : hosts_) {
    if (!host.empty() && !IsAnyAddress(host)) all.push_back(UsualHost(host));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

absl::Status AutomaticTls::Renew() {
  absl::MutexLock lock(&renewing_);
  // Coordinators that stand by for each other may be started at once.
  const absl::StatusOr<FolderLock> alone = FolderLock::Take(folder_);
  if (!alone.ok()) return alone.status();
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  std::vector<std::string> hosts = Hosts();
  std::string why = "there was none";
  const absl::StatusOr<std::string> old =
      ReadWholeFile(*files, IdentityPath(CertificateFolder(), kCertificate), kMaxFileBytes);
  if (old.ok()) {
    const absl::StatusOr<CertificateFields> fields = ReadCertificate(*old);
    if (!fields.ok() || !CheckSignedBy(*old, authority_->ca()).ok()) {
      why = "the old one is not this CA's";
    } else if (clock_.Now() >=
               fields->not_before + (fields->not_after - fields->not_before) * 2 / 3) {
      why = "two thirds of the old one's life are over";
    } else {
      std::vector<std::string> named = fields->hosts;
      std::sort(named.begin(), named.end());
      if (std::includes(named.begin(), named.end(), hosts.begin(), hosts.end())) {
        return absl::OkStatus();
      }
      // The old ones stay until its life is over: a standby on another host shares the folder.
      hosts.insert(hosts.end(), named.begin(), named.end());
      std::sort(hosts.begin(), hosts.end());
      hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
      why = "this host has other addresses or names";
    }
  }
  const absl::StatusOr<std::string> key = MakePrivateKey();
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> chain =
      authority_->SignCoordinator(hosts, *key, kCertificateLife);
  if (!chain.ok()) return chain.status();
  if (absl::Status s = WriteIdentity(CertificateFolder(), {{kCertificate, *chain}, {kKey, *key}});
      !s.ok()) {
    return s;
  }
  spdlog::info("tls=auto: a new certificate, as {}; it names {}", why, absl::StrJoin(hosts, ", "));
  return absl::OkStatus();
}

absl::StatusOr<std::string> AutomaticTls::AdminKeyFile() const {
  const absl::StatusOr<FolderLock> alone = FolderLock::Take(folder_);
  if (!alone.ok()) return alone.status();
  const std::string path = JoinPath(folder_, kAdminKey);
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const absl::StatusOr<std::string> old = ReadWholeFile(*files, path, kMaxFileBytes);
  if (old.ok() && !old->empty()) return path;
  if (!old.ok() && !absl::IsNotFound(old.status())) {
    // A new one would shut out everybody who has the old key.
    return absl::FailedPreconditionError(
        absl::StrCat("the key of an admin cannot be read: ", std::string(old.status().message()),
                     "; give it back to the user that runs espalierd (chown), or remove it for a "
                     "new one"));
  }
  const absl::StatusOr<std::string> key = RandomId();
  if (!key.ok()) return key.status();
  // Written under the process's umask, for this user only.
  if (absl::Status s = WriteFileAtomically(*files, path, absl::StrCat(*key, "\n")); !s.ok()) {
    return s;
  }
  return path;
}

absl::StatusOr<std::string> AutomaticTls::WriteHome(const std::string& grpc,
                                                    const std::string& http,
                                                    const std::string& key_file) const {
  nlohmann::ordered_json json;
  json["grpc"] = ReachableAddress(grpc);
  json["http"] = ReachableAddress(http);
  json["ca_file"] = authority_->ca_path();
  if (!key_file.empty()) json["token_file"] = key_file;
  const std::string home = JoinPath(folder_, "client");
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  if (absl::Status s = CreateDurableDirectories(*files, home); !s.ok()) return s;
  if (absl::Status s =
          WriteFileAtomically(*files, JoinPath(home, kConnection), absl::StrCat(json.dump(), "\n"));
      !s.ok()) {
    return s;
  }
  return home;
}

}  // namespace espalier
