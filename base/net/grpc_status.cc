#include "base/net/grpc_status.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Trailing metadata is limited to 8 KiB, in which a status message is percent-encoded.
constexpr size_t kMaxMessage = 2000;

// Replaces bytes that are not UTF-8 by '?', as strictly as gRPC's Python peers require.
std::string CleanUtf8(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    size_t n = c < 0x80 ? 1 : (c >> 5) == 6 ? 2 : (c >> 4) == 14 ? 3 : (c >> 3) == 30 ? 4 : 0;
    bool good = n > 0 && i + n <= text.size();
    for (size_t k = 1; good && k < n; ++k) good = (text[i + k] & 0xc0) == 0x80;
    if (good) {
      out.append(text.data() + i, n);
    } else {
      n = 1;
      out += '?';
    }
    i += n;
  }
  return out;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::string_view message = status.message();
  std::string text = CleanUtf8(message.substr(0, kMaxMessage));
  if (message.size() > kMaxMessage) text += " ...";
  // The gRPC library itself reports UNAVAILABLE for a peer that does not answer, but never with
  // details. Details (a google.rpc.Status with the code alone) show that the server did answer.
  const std::string details = absl::IsUnavailable(status) ? "\x08\x0e" : "";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text, details);
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view place) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(
      static_cast<absl::StatusCode>(status.error_code()),
      place.empty() ? status.error_message() : absl::StrCat(place, ": ", status.error_message()));
}

grpc::ChannelArguments ChannelLimits() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // gRPC's default backoff of up to two minutes would keep workers away from a restarted
  // coordinator.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // A host that is gone does not answer at all: by default gRPC tries for 20 seconds before it
  // looks for another address.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 4000);
  // So would 30 seconds between two questions for the address of its name: a coordinator that
  // restarts in Kubernetes has another one.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  return arguments;
}

}  // namespace espalier
