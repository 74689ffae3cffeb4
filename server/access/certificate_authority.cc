#include "server/access/certificate_authority.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/net/identity_folder.h"
#include "base/net/private_file.h"

namespace espalier {
namespace {

constexpr const char* kCa = CertificateAuthority::kCaFile;
constexpr char kCaKey[] = "ca.key";
constexpr char kWorkersCa[] = "workers-ca.pem", kWorkersCaKey[] = "workers-ca.key";
constexpr int64_t kMaxFileBytes = 64 << 10;
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365 * 20);
// Clocks of hosts differ. A short life must not seem to be over at once.
constexpr absl::Duration kBackdated = absl::Minutes(10);
constexpr int kBackdatedPart = 10;
constexpr char kCoordinatorOrganization[] = "espalier coordinator";
constexpr char kWorkerOrganization[] = "espalier worker";
constexpr size_t kMostKnown = 16 << 10;

void SetLife(absl::Duration life, absl::Time now, CertificateFields* fields) {
  fields->not_before = now - std::min(kBackdated, life / kBackdatedPart);
  fields->not_after = now + life;
}

absl::Status NoWorker(absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("the certificate is no worker's: ", why));
}

}  // namespace

std::string CertificateAuthority::ca_path() const { return IdentityPath(folder_, kCa); }
std::string CertificateAuthority::workers_ca_path() const {
  return IdentityPath(folder_, kWorkersCa);
}

absl::StatusOr<std::unique_ptr<CertificateAuthority>> CertificateAuthority::Open(
    const std::string& folder, const Clock* clock) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  if (absl::Status s = files->CreateDirectories(folder); !s.ok()) return s;
  std::unique_ptr<CertificateAuthority> out(new CertificateAuthority(folder, clock));
  // Two daemons may be started at once, of which one goes on: both find the same.
  const absl::StatusOr<FolderLock> lock = FolderLock::Take(folder);
  if (!lock.ok()) return lock.status();
  if (!files->Open(out->ca_path()).ok()) {
    if (absl::Status s = out->Make(); !s.ok()) return s;
  }
  if (absl::Status s = out->Read(); !s.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        s.message(), "; ", folder,
        " holds the CA of --tls=auto: put it back from a copy, or, to begin with a new CA, which "
        "needs new tokens for all workers and clients, move it away"));
  }
  return out;
}

absl::Status CertificateAuthority::Make() const {
  std::map<std::string, std::string> files;
  CertificateFields fields;
  fields.authority = true;
  SetLife(kAuthorityLife, clock_->Now(), &fields);
  for (const auto& [name, certificate, key] :
       {std::tuple("espalier CA", kCa, kCaKey),
        std::tuple("espalier workers' CA", kWorkersCa, kWorkersCaKey)}) {
    absl::StatusOr<std::string> private_key = MakePrivateKey();
    if (!private_key.ok()) return private_key.status();
    fields.common_name = name;
    absl::StatusOr<std::string> made = MakeSelfSigned(fields, *private_key);
    if (!made.ok()) return made.status();
    files[certificate] = *std::move(made);
    files[key] = *std::move(private_key);
  }
  return WriteIdentity(folder_, files);
}

absl::Status CertificateAuthority::Read() {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::pair<const char*, std::string*> all[] = {{kCa, &ca_},
                                                      {kCaKey, &ca_key_},
                                                      {kWorkersCa, &workers_ca_},
                                                      {kWorkersCaKey, &workers_ca_key_}};
  for (const auto& [name, to] : all) {
    const std::string path = IdentityPath(folder_, name);
    absl::StatusOr<std::string> text = ReadWholeFile(*files, path, kMaxFileBytes);
    if (!text.ok()) return text.status();
    if (absl::Status s = CheckPrivateFile("tls", path); !s.ok()) return s;
    *to = *std::move(text);
  }
  for (const auto& [certificate, key] :
       {std::pair(&ca_, &ca_key_), std::pair(&workers_ca_, &workers_ca_key_)}) {
    const absl::StatusOr<std::string> own = MakeSelfSigned({}, *key);
    if (!own.ok()) return own.status();
    const absl::StatusOr<std::string> hash = PublicKeySha256(*certificate);
    if (!hash.ok()) return hash.status();
    if (hash != PublicKeySha256(*own)) {
      return absl::FailedPreconditionError("a key is not that of its certificate");
    }
  }
  absl::StatusOr<std::string> hash = PublicKeySha256(ca_);
  if (!hash.ok()) return hash.status();
  ca_sha256_ = *std::move(hash);
  return absl::OkStatus();
}

absl::StatusOr<std::string> CertificateAuthority::SignCoordinator(
    const std::vector<std::string>& hosts, const std::string& private_key,
    absl::Duration life) const {
  const absl::StatusOr<std::string> key = PublicKeyOf(private_key);
  if (!key.ok()) return key.status();
  CertificateFields fields;
  fields.common_name = "coordinator";
  fields.organization = kCoordinatorOrganization;
  fields.hosts = hosts;
  SetLife(life, clock_->Now(), &fields);
  const absl::StatusOr<std::string> own = SignCertificate(fields, *key, ca_, ca_key_);
  if (!own.ok()) return own.status();
  return absl::StrCat(*own, ca_);
}

absl::StatusOr<std::string> CertificateAuthority::SignWorker(const CertificateRequest& request,
                                                             const WorkerIdentity& identity,
                                                             absl::Duration life) const {
  CertificateFields fields;
  fields.common_name = identity.name;
  fields.organization = kWorkerOrganization;
  fields.organizational_unit = identity.token_id;
  fields.hosts = request.hosts;
  SetLife(life, clock_->Now(), &fields);
  const absl::StatusOr<std::string> own =
      SignCertificate(fields, request.public_key, workers_ca_, workers_ca_key_);
  if (!own.ok()) return own.status();
  return absl::StrCat(*own, workers_ca_);
}

absl::StatusOr<WorkerIdentity> CertificateAuthority::Identify(
    const std::string& certificate) const {
  const absl::Time now = clock_->Now();
  const auto valid = [now](const Known& known) -> absl::StatusOr<WorkerIdentity> {
    if (now >= known.not_before && now < known.not_after) return known.identity;
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of ", known.identity.name, " is valid from ",
                     absl::FormatTime(known.not_before, absl::UTCTimeZone()), " until ",
                     absl::FormatTime(known.not_after, absl::UTCTimeZone()), ", and now it is ",
                     absl::FormatTime(now, absl::UTCTimeZone())));
  };
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = known_.find(certificate); found != known_.end()) {
      return valid(found->second);
    }
  }
  const absl::StatusOr<CertificateFields> fields = ReadCertificate(certificate);
  if (!fields.ok()) return NoWorker(fields.status().message());
  if (absl::Status s = CheckSignedBy(certificate, workers_ca_); !s.ok()) {
    return NoWorker(s.message());
  }
  if (fields->organization != kWorkerOrganization || fields->common_name.empty()) {
    return NoWorker("its subject is another one");
  }
  const Known known = {
      {fields->common_name, fields->organizational_unit}, fields->not_before, fields->not_after};
  absl::MutexLock lock(&mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_[certificate] = known;
  return valid(known);
}

}  // namespace espalier
