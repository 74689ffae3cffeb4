#include "server/daemon_standby.h"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net/access_token.h"
#include "base/net/api_keys.h"
#include "base/net/credential_watch.h"
#include "base/net/own_address.h"
#include "server/object_store.h"
#include "server/standby/standby_server.h"

namespace espalier {
namespace {

// A first coordinator leads before anyone need know that it stands by.
constexpr absl::Duration kFirstLook = absl::Seconds(1);

// Nothing may be written or sent any more, so nothing is ended in order.
void EndProcess(const std::string& why) {
  std::fprintf(
      stderr,
      "espalierd: this coordinator no longer leads: %s; it ends at once. Start it again to "
      "stand by (systemd: Restart=on-failure)\n",
      why.c_str());
  std::fflush(stderr);
  std::_Exit(kLeadershipLost);
}

HttpCertificates StandbyCertificates(const TransportSecurity& tls) {
  const TlsPem pem = tls.pem();
  return {pem.certificate, pem.key, tls.client_certificates_optional() ? "" : pem.client_ca};
}

// Waits until `done`. Returns the signal that came before; 0: none.
template <typename Done>
int WaitUntil(const sigset_t& signals, absl::Time deadline, const Done& done) {
  const timespec tick = {0, 20'000'000};
  while (!done() && absl::Now() < deadline) {
    if (const int caught = sigtimedwait(&signals, nullptr, &tick); caught > 0) return caught;
  }
  return 0;
}

StandbyServerOptions ForStandby(const DaemonOptions& options, const DaemonCredentials& credentials,
                                const SharedStore& store) {
  StandbyServerOptions out;
  out.listen = options.listen;
  out.http_listen = options.http_listen;
  out.tls = credentials.tls;
  out.http_certificates = StandbyCertificates(credentials.tls);
  out.describe = [&store] { return store.Describe(); };
  if (credentials.keys.has_value()) {
    out.knows = [keys = *credentials.keys](const std::string& authorization) {
      return keys.Identify(authorization).ok();
    };
  }
  if (credentials.automatic != nullptr) {
    out.only_leader_knows = [](const std::string& authorization) {
      return IsAccessToken(KeyIn(authorization));
    };
  }
  out.open_probes = options.open_probes;
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedStore>> WaitToLead(DaemonOptions* options,
                                                        const DaemonCredentials& credentials,
                                                        const sigset_t& signals) {
  if (options->job_store.address.endpoints.empty()) return std::unique_ptr<SharedStore>();
  if (absl::StartsWith(options->spool, "s3://")) {
    if (absl::Status s = CheckObjectStore("spool", options->spool); !s.ok()) return s;
  }
  if (!options->artifact_store.empty()) {
    for (const auto& [flag, url] : {std::pair("artifact-store", options->artifact_store),
                                    std::pair("checkpoint-store", options->checkpoint_store)}) {
      if (absl::Status s = CheckObjectStore(flag, url); !s.ok()) return s;
    }
  }
  // --advertise may name all coordinators.
  const bool own = !options->advertise.empty() && options->advertise.find(',') == std::string::npos;
  const std::string candidate = own ? options->advertise : ReachableAddress(options->listen);
  absl::StatusOr<std::unique_ptr<SharedStore>> store =
      SharedStore::Start(options->job_store, candidate, EndProcess);
  if (!store.ok()) return store.status();
  const auto leads = [&] { return (*store)->leads(); };
  const auto stopped = [](int signal) {
    spdlog::info("signal {}: stopping", signal);
    return absl::CancelledError("stopped by a signal");
  };
  if (const int signal = WaitUntil(signals, absl::Now() + kFirstLook, leads); signal != 0) {
    return stopped(signal);
  }
  if (!leads()) {
    absl::StatusOr<std::unique_ptr<StandbyServer>> server =
        StandbyServer::Start(ForStandby(*options, credentials, **store));
    if (!server.ok()) return server.status();
    options->listen = (*server)->grpc_address();
    if (!options->http_listen.empty()) options->http_listen = (*server)->http_address();
    const CredentialWatch watch(
        WatchedCredentials(
            credentials,
            [&](const TlsPem&) {
              (*server)->SetHttpCertificates(StandbyCertificates(credentials.tls)).IgnoreError();
            }),
        kCredentialCheck);
    spdlog::info("{}; grpc={} http={}", (*store)->Describe(), options->listen,
                 options->http_listen);
    std::string said = (*store)->Describe();
    const int signal = WaitUntil(signals, absl::InfiniteFuture(), [&] {
      if (std::string now = (*store)->Describe(); now != said && !leads()) {
        said = std::move(now);
        spdlog::info("{}", said);
      }
      return leads();
    });
    if (signal != 0) return stopped(signal);
  }
  spdlog::info("this coordinator leads, as {}", candidate);
  return store;
}

void UseStore(SharedStore* store, CoordinatorOptions* options) {
  if (store == nullptr) return;
  const DataFolders folders =
      options->artifact_store.empty() ? DataFolders::kShared : DataFolders::kOwn;
  options->keeps_pushed_examples = folders == DataFolders::kShared;
  options->open_store = [store, folders](FileSystem& files, const std::string& data_dir,
                                         std::string* id) {
    return store->Open(files, data_dir, folders, id);
  };
  options->leads = [store] { return store->CheckLeads(); };
}

}  // namespace espalier
