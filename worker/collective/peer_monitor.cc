#include "worker/collective/peer_monitor.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collective/host_identity.h"
#include "worker/collective/unreachable_rank.h"

namespace espalier {
namespace {

constexpr int kBeatsInSilence = 20;

absl::Duration SinceStart() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerMonitor>> PeerMonitor::Connect(const PeerMonitorOptions& options,
                                                                  RendezvousStore& store) {
  const std::string identity = HostIdentity();
  PeerLinksOptions linked;
  linked.rank = options.rank;
  linked.size = options.size;
  linked.host = options.host;
  linked.purpose = "monitor";
  linked.network = options.network;
  linked.connect_timeout = options.connect_timeout;
  absl::StatusOr<std::map<int, PeerLink>> links =
      ConnectPeers(linked, store, [&](int, const PeerCard& card) {
        return options.same_host || identity.empty() || card.identity != identity;
      });
  if (!links.ok()) return links.status();
  if (links->empty()) return nullptr;
  std::unique_ptr<PeerMonitor> monitor(new PeerMonitor(options));
  for (auto& [rank, link] : *links) {
    monitor->peers_[rank] = {std::move(link), absl::ZeroDuration()};
  }
  return monitor;
}

void PeerMonitor::Watch(OnSilence on_silence) {
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this, call = std::move(on_silence)] { Loop(call); });
}

PeerMonitor::~PeerMonitor() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::Status PeerMonitor::Read(int rank, Peer* peer, absl::Duration now) {
  char bytes[256];
  while (true) {
    absl::StatusOr<int64_t> got = peer->link.in->Read(bytes, sizeof(bytes));
    if (absl::IsOutOfRange(got.status())) {
      peer->open = false;  // it has ended
      return absl::OkStatus();
    }
    if (!got.ok()) {
      return absl::UnavailableError(
          absl::StrCat(NameOfRank(options_.rank, options_.host), " has lost its connection to ",
                       NameOfRank(rank, peer->link.host), ": ", got.status().message()));
    }
    if (*got == 0) return absl::OkStatus();
    peer->heard = now;
  }
}

void PeerMonitor::Loop(const OnSilence& on_silence) {
  const absl::Duration interval = options_.silence / kBeatsInSilence;
  const absl::Duration begin = SinceStart();
  absl::Duration last_loop, next_beat;
  while (true) {
    std::vector<pollfd> waited = {{stop_.get(), POLLIN, 0}};
    for (const auto& [rank, peer] : peers_) {
      if (peer.open) waited.push_back({peer.link.in->socket(), POLLIN, 0});
    }
    if (waited.size() == 1) return;
    const int64_t left = absl::ToInt64Milliseconds(next_beat - (SinceStart() - begin));
    poll(waited.data(), waited.size(), static_cast<int>(std::max<int64_t>(left, 0) + 1));
    if (waited[0].revents != 0) return;
    const absl::Duration now = SinceStart() - begin;
    // This process, or the whole machine, was stopped: what peers have sent since is still coming.
    const bool resumed = now - last_loop > 3 * interval;
    last_loop = now;
    const bool beat = now >= next_beat;
    if (beat) next_beat = now + interval;
    for (auto& [rank, peer] : peers_) {
      if (!peer.open) continue;
      if (resumed) peer.heard = now;
      absl::Status read = Read(rank, &peer, now);
      if (read.ok() && peer.open && now - peer.heard > options_.silence) {
        read = absl::UnavailableError(absl::StrCat(
            "nothing has arrived from ", NameOfRank(rank, peer.link.host), " at ",
            NameOfRank(options_.rank, options_.host), " for ",
            absl::FormatDuration(options_.silence),
            ": that rank stands still, or a firewall, a route or a cable fails in this "
            "direction"));
      }
      if (!read.ok()) {
        on_silence(WithUnreachableRank(std::move(read), rank));
        return;
      }
      // A full buffer means that nothing was acknowledged for long, and a broken connection that
      // the peer has ended: what it says, or its silence, shows that.
      if (beat && peer.open) peer.link.out->Write("", 1).IgnoreError();
    }
  }
}

}  // namespace espalier
