// One generation request over gRPC or HTTP, with client-side timings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/gateway.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

struct Generation {
  std::string text;
  std::string finish_reason;
  v1::Usage usage;
  std::string warning;  // the coordinator's; empty: none
  // Measured by the client.
  double seconds = 0;
  double seconds_to_first = 0;
  std::vector<double> gaps;  // between pieces
  int pieces = 0;

  // From the request to the last token, including prompt processing.
  double tokens_per_second() const;
  // Excludes the first piece, which includes prompt processing; 0 for a single token.
  double seconds_per_token() const;
  // Tokens emitted per verification step of the LLM, including its own token; 0 without
  // speculation.
  double tokens_per_verification() const;
  // Accepted draft tokens only.
  double accepted_per_verification() const;
};

// Receives text as it arrives. Returning false cancels the request, which is not an error.
using PieceListener = std::function<bool(const std::string&)>;

absl::StatusOr<Generation> GenerateByGrpc(Client* client, const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece);
absl::StatusOr<Generation> GenerateByHttp(const Gateway& gateway,
                                          const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece);

// Returns the /v1/completions request body for `request`.
std::string CompletionBody(const v1::GenerateRequest& request);

}  // namespace espalier
