// One request for text, over gRPC or HTTP, measured.
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
  // As this side saw it.
  double seconds = 0;
  double seconds_to_first = 0;
  std::vector<double> gaps;  // between pieces
  int pieces = 0;

  // From the request to the last token, the prompt included.
  double tokens_per_second() const;
  // After the first piece, which waits for the prompt; 0 for a single token.
  double seconds_per_token() const;
  // Tokens emitted by one verification step of the LLM, its own one included; 0 without
  // speculation.
  double tokens_per_verification() const;
  // Drafted ones alone.
  double accepted_per_verification() const;
};

// Gets the text as it comes; false: no more is wanted, and the request is cancelled, which is no
// error.
using PieceListener = std::function<bool(const std::string&)>;

absl::StatusOr<Generation> GenerateByGrpc(Client* client, const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece);
absl::StatusOr<Generation> GenerateByHttp(const Gateway& gateway,
                                          const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece);

// What /v1/completions is asked for `request`.
std::string CompletionBody(const v1::GenerateRequest& request);

}  // namespace espalier
