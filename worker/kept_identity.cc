#include "worker/kept_identity.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "base/file_system.h"
#include "base/net/grpc_status.h"
#include "base/net/identity_folder.h"
#include "base/net/leading_channel.h"
#include "base/net/pinned_ca.h"
#include "base/net/x509.h"
#include "base/sha256.h"
#include "espalier/v1/access.grpc.pb.h"
#include "worker/storage/own_folder.h"

namespace espalier {
namespace {

constexpr char kCertificate[] = "certificate.pem", kKey[] = "key.pem", kCa[] = "ca.pem";
constexpr char kExchange[] = "exchange";  // folder
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kTick = absl::Seconds(1);
constexpr int64_t kMaxFileBytes = 64 << 10;
constexpr int kMostFolders = 4096;  // workers of this user on this host
constexpr int kRenewals = 60;       // tries in a certificate's life

Backoff ExchangePauses() { return Backoff(absl::Milliseconds(100), absl::Seconds(2)); }

class CoordinatorCertificates : public CertificateSource {
 public:
  explicit CoordinatorCertificates(std::vector<std::string> coordinators)
      : coordinators_(std::move(coordinators)) {}

  absl::StatusOr<v1::IssuedCertificate> Issue(const AccessTokenText& token,
                                              const v1::IssueCertificateRequest& request) override {
    absl::StatusOr<std::string> ca = absl::UnavailableError("there is no coordinator");
    for (const std::string& coordinator : coordinators_) {
      ca = FetchPinnedCa(coordinator, token.ca_sha256, kCallTimeout);
      if (ca.ok() || !MayPass(ca.status())) break;
    }
    if (!ca.ok()) return ca.status();
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = *ca;
    const auto stub = StubFor(grpc::SslCredentials(tls));
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::IssuedCertificate reply;
    absl::Status status = Answer(stub->IssueCertificate(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  absl::StatusOr<v1::IssuedCertificate> Renew(const TlsFiles& own,
                                              const v1::RenewCertificateRequest& request) override {
    const absl::StatusOr<TransportSecurity> read = TransportSecurity::Read(own);
    if (!read.ok()) return read.status();
    const TlsPem pem = read->pem();
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = pem.ca;
    tls.pem_cert_chain = pem.certificate;
    tls.pem_private_key = pem.key;
    const auto stub = StubFor(grpc::SslCredentials(tls));
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::IssuedCertificate reply;
    absl::Status status = Answer(stub->RenewCertificate(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

 private:
  // A connection of its own: what is verified here must not be another one's.
  std::unique_ptr<v1::Access::Stub> StubFor(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments = ChannelLimits();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return v1::Access::NewStub(LeadingChannel(coordinators_, arguments, nullptr, credentials));
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  }
  absl::Status Answer(const grpc::Status& status) const {
    return FromGrpc(status, absl::StrCat("coordinator ", absl::StrJoin(coordinators_, ",")));
  }

  const std::vector<std::string> coordinators_;
};

// A name for a folder: "10.0.0.1:7070" as "10.0.0.1_7070".
std::string FolderOf(const std::string& coordinator) {
  std::string name = coordinator;
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-') c = '_';
  }
  return name;
}

absl::Status MakeOwnFolder(const std::string& path) {
  const absl::StatusOr<int> folder = OpenOwnFolder(path);
  if (!folder.ok()) return folder.status();
  close(*folder);
  return absl::OkStatus();
}

std::string Utc(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

}  // namespace

std::unique_ptr<CertificateSource> NewCoordinatorCertificates(
    std::vector<std::string> coordinators) {
  return std::make_unique<CoordinatorCertificates>(std::move(coordinators));
}

absl::StatusOr<std::unique_ptr<KeptIdentity>> KeptIdentity::Open(KeptIdentityOptions options,
                                                                 CertificateSource* source,
                                                                 const Clock* clock) {
  std::unique_ptr<KeptIdentity> out(new KeptIdentity(std::move(options), source, clock));
  const KeptIdentityOptions& given = out->options_;
  const absl::StatusOr<std::string> text = given.token();
  if (!text.ok()) return text.status();
  std::string ca_sha256, token_id;
  if (!text->empty()) {
    const absl::StatusOr<AccessTokenText> token = ParseAccessToken(*text);
    if (!token.ok()) return token.status();
    ca_sha256 = token->ca_sha256;
    token_id = token->id;
  }
  if (absl::Status s = out->TakeFolder(ca_sha256); !s.ok()) return s;
  const bool kept = out->ReadKept(ca_sha256);
  if (!kept && text->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this worker has no certificate for the coordinator ", given.coordinator, " (in ",
        out->folder_,
        "), and does not talk in clear off loopback: start it with --join=TOKEN, which `espalier "
        "token create --role=worker` prints at the coordinator, or with --tls-ca, --tls-cert, "
        "--tls-key and --api-key-file, or, on a network that you trust, with --insecure"));
  }
  // Others reach it now by names that the certificate does not have.
  std::vector<std::string> named = out->certificate_.hosts;
  const bool names = std::all_of(given.hosts.begin(), given.hosts.end(), [&](const auto& host) {
    return std::find(named.begin(), named.end(), host) != named.end();
  });
  // The last one may have been revoked.
  const bool other_token =
      kept && !token_id.empty() && out->certificate_.organizational_unit != token_id;
  if (kept && names && !other_token && !out->Due()) return out;
  const absl::Time give_up = absl::Now() + given.timeout;
  Backoff pauses = ExchangePauses();
  while (true) {
    const bool renews = kept && !other_token;
    absl::Status status = renews ? out->Renew() : out->Exchange();
    if (renews && !status.ok() && !MayPass(status) && !text->empty()) status = out->Exchange();
    if (status.ok()) return out;
    // What is kept may do until the coordinator is back.
    if (kept && names) {
      spdlog::warn("the certificate is not renewed yet: {}", std::string(status.message()));
      return out;
    }
    if (!MayPass(status) || absl::Now() + pauses.next() >= give_up) return status;
    absl::SleepFor(pauses.Take());
  }
}

KeptIdentity::~KeptIdentity() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  if (lock_ >= 0) close(lock_);
}

TlsFiles KeptIdentity::files() const {
  TlsFiles files;
  files.certificate = IdentityPath(folder_, kCertificate);
  files.key = IdentityPath(folder_, kKey);
  // The coordinator's CA: nobody else is called, and nobody else may call.
  files.ca = files.client_ca = IdentityPath(folder_, kCa);
  return files;
}

absl::Status KeptIdentity::TakeFolder(const std::string& ca_sha256) {
  absl::Status failure;
  for (const bool only_kept : {true, false}) {
    for (const std::string& parent : options_.parents) {
      const absl::StatusOr<bool> taken = TakeFolderIn(parent, ca_sha256, only_kept);
      if (failure.ok()) failure = taken.status();
      if (!taken.ok() || !*taken) continue;
      if (options_.parents.size() > 1 && parent.empty()) {
        spdlog::warn("the certificate of this worker is kept in {}, which a reboot may empty{}",
                     folder_,
                     failure.ok() ? "" : absl::StrCat(": ", std::string(failure.message())));
      }
      return absl::OkStatus();
    }
  }
  return failure;
}

absl::StatusOr<bool> KeptIdentity::TakeFolderIn(const std::string& parent,
                                                const std::string& ca_sha256, bool only_kept) {
  std::string path = JoinPath(CacheParent(parent), absl::StrCat("espalier-identities-", geteuid()));
  for (const std::string& below : {std::string(), FolderOf(options_.coordinator)}) {
    if (!below.empty()) path = JoinPath(path, below);
    if (only_kept && access(path.c_str(), F_OK) != 0) return false;
    if (absl::Status s = MakeOwnFolder(path); !s.ok()) return s;
  }
  int first_lock = -1;
  std::string first;
  for (int number = 0; number < kMostFolders; ++number) {
    folder_ = JoinPath(path, absl::StrCat(number));
    const bool is_new = access(folder_.c_str(), F_OK) != 0;
    if (is_new && (first_lock >= 0 || only_kept)) break;
    if (absl::Status s = MakeOwnFolder(folder_); !s.ok()) return s;
    const std::string name = JoinPath(folder_, "lock");
    const int lock = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be made"));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
      close(lock);  // another worker's
      continue;
    }
    if (ReadKept(ca_sha256)) {
      if (first_lock >= 0) close(first_lock);
      lock_ = lock;
      return true;
    }
    if (first_lock >= 0 || only_kept) {
      close(lock);
    } else {
      first_lock = lock;
      first = folder_;
    }
  }
  certificate_ = {};
  if (only_kept) return false;
  if (first_lock < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", kMostFolders, " folders of workers, and all are in use"));
  }
  lock_ = first_lock;
  folder_ = first;
  return true;
}

bool KeptIdentity::ReadKept(const std::string& ca_sha256) {
  certificate_ = {};
  const absl::StatusOr<TransportSecurity> tls = TransportSecurity::Read(files());
  if (!tls.ok()) return false;
  const TlsPem pem = tls->pem();
  const absl::StatusOr<CertificateFields> fields = ReadCertificate(pem.certificate);
  const absl::StatusOr<std::string> hash = PublicKeySha256(pem.ca);
  const bool fits = fields.ok() && hash.ok() && (ca_sha256.empty() || *hash == ca_sha256) &&
                    clock_.Now() < fields->not_after;
  if (fits) certificate_ = *fields;
  return fits;
}

bool KeptIdentity::Due() const {
  const absl::Duration life = certificate_.not_after - certificate_.not_before;
  return clock_.Now() >= certificate_.not_before + life * 2 / 3;
}

absl::StatusOr<std::string> KeptIdentity::ExchangeKey() const {
  const std::string folder = JoinPath(folder_, kExchange);
  if (absl::Status s = MakeOwnFolder(folder); !s.ok()) return s;
  const absl::StatusOr<std::string> kept =
      ReadWholeFile(*NewPosixFileSystem(), IdentityPath(folder, kKey), kMaxFileBytes);
  if (kept.ok() && PublicKeyOf(*kept).ok()) return kept;
  const absl::StatusOr<std::string> key = MakePrivateKey();
  if (!key.ok()) return key.status();
  if (absl::Status s = WriteIdentity(folder, {{kKey, *key}}); !s.ok()) return s;
  return key;
}

absl::Status KeptIdentity::Exchange() {
  const absl::StatusOr<std::string> text = options_.token();
  if (!text.ok()) return text.status();
  if (text->empty()) {
    return absl::FailedPreconditionError("there is no token with which a new one could be had");
  }
  const absl::StatusOr<AccessTokenText> token = ParseAccessToken(*text);
  if (!token.ok()) return token.status();
  const absl::StatusOr<std::string> key = ExchangeKey();
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> public_key = PublicKeyOf(*key);
  if (!public_key.ok()) return public_key.status();
  const absl::StatusOr<std::string> wanted = MakeCertificateRequest(options_.hosts, *key);
  if (!wanted.ok()) return wanted.status();
  v1::IssueCertificateRequest request;
  request.set_token_id(token->id);
  request.set_secret(token->secret);
  request.set_certificate_request(*wanted);
  request.set_idempotency_key(Sha256Hex(absl::StrCat(token->id, "\n", *public_key)));
  // The same request again: its answer may have been lost after it was counted.
  const absl::Time give_up = absl::Now() + options_.timeout;
  Backoff pauses = ExchangePauses();
  for (int tries = 1;; ++tries) {
    const absl::StatusOr<v1::IssuedCertificate> issued = source_.Issue(*token, request);
    if (issued.ok()) return Keep(*issued, *key, token->ca_sha256);
    if (!MayPass(issued.status()) || absl::Now() + pauses.next() >= give_up) return issued.status();
    if (tries == 1) {
      spdlog::warn("no certificate yet, and tries for {}: {}",
                   absl::FormatDuration(options_.timeout), std::string(issued.status().message()));
    }
    absl::SleepFor(pauses.Take());
  }
}

absl::Status KeptIdentity::Renew() {
  const absl::StatusOr<std::string> key = MakePrivateKey();
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> wanted = MakeCertificateRequest(options_.hosts, *key);
  if (!wanted.ok()) return wanted.status();
  v1::RenewCertificateRequest request;
  request.set_certificate_request(*wanted);
  const absl::StatusOr<TransportSecurity> own = TransportSecurity::Read(files());
  if (!own.ok()) return own.status();
  const absl::StatusOr<std::string> ca_sha256 = PublicKeySha256(own->pem().ca);
  if (!ca_sha256.ok()) return ca_sha256.status();
  const absl::StatusOr<v1::IssuedCertificate> issued = source_.Renew(files(), request);
  if (!issued.ok()) return issued.status();
  return Keep(*issued, *key, *ca_sha256);
}

absl::Status KeptIdentity::Keep(const v1::IssuedCertificate& issued, const std::string& private_key,
                                const std::string& ca_sha256) {
  const absl::StatusOr<CertificateFields> fields = ReadCertificate(issued.certificate_chain());
  if (!fields.ok()) return fields.status();
  const absl::StatusOr<std::string> hash = PublicKeySha256(issued.ca_pem());
  if (!hash.ok()) return hash.status();
  if (*hash != ca_sha256) {
    return absl::PermissionDeniedError(
        "the coordinator answers with another CA than the one it was trusted for");
  }
  absl::Status kept = WriteIdentity(
      folder_,
      {{kCertificate, issued.certificate_chain()}, {kKey, private_key}, {kCa, issued.ca_pem()}});
  if (!kept.ok()) return kept;
  certificate_ = *fields;
  spdlog::info("the certificate of {} for {} is valid until {}", certificate_.common_name,
               absl::StrJoin(certificate_.hosts, ", "), Utc(certificate_.not_after));
  return absl::OkStatus();
}

absl::Status KeptIdentity::RenewIfDue() {
  const absl::Time now = clock_.Now();
  if (!Due() || now < next_try_) return absl::OkStatus();
  const bool over = now >= certificate_.not_after;
  absl::Status status = over ? absl::FailedPreconditionError("the certificate has ended") : Renew();
  if (!status.ok() && !MayPass(status)) {
    // What renewal says is the reason; that there is no token either is not.
    const absl::Status exchanged = Exchange();
    if (exchanged.ok() || !absl::IsFailedPrecondition(exchanged)) status = exchanged;
  }
  if (status.ok()) return status;
  next_try_ = now + (certificate_.not_after - certificate_.not_before) / kRenewals;
  return absl::Status(
      status.code(),
      absl::StrCat("the certificate of this worker, which ", over ? "ended at " : "is valid until ",
                   Utc(certificate_.not_after), ", is not renewed: ", status.message()));
}

void KeptIdentity::KeepRenewing() {
  thread_ = std::thread([this] { Run(); });
}

void KeptIdentity::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick)) return;
    }
    if (absl::Status s = RenewIfDue(); !s.ok()) spdlog::warn("{}", std::string(s.message()));
  }
}

}  // namespace espalier
