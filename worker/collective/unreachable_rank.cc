#include "worker/collective/unreachable_rank.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kPayload[] = "espalier.unreachable_rank";  // in decimal digits

}  // namespace

absl::Status WithUnreachableRank(absl::Status status, int rank) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(rank)));
  return status;
}

std::optional<int> UnreachableRank(const absl::Status& status) {
  int rank = 0;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return rank;
}

}  // namespace espalier
