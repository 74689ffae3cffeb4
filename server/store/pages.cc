#include "server/store/pages.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

// The letter says what the token is made of, so that one of another list is refused.
constexpr absl::string_view kNumber = "n", kName = "m";

absl::Status BadToken(absl::string_view token) {
  return absl::InvalidArgumentError(
      absl::StrCat("page_token '", token.substr(0, 100),
                   "': the next_page_token of a reply to the same request is wanted"));
}

}  // namespace

absl::StatusOr<size_t> PageSize(int32_t page_size) {
  if (page_size < 0 || page_size > kMostPerPage) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, "; 1 to ", kMostPerPage,
                     " are accepted, and 0, which is the same as ", kMostPerPage));
  }
  return static_cast<size_t>(page_size == 0 ? kMostPerPage : page_size);
}

std::string TokenOfNumber(int64_t number) { return absl::StrCat(kNumber, number); }
std::string TokenOfName(absl::string_view name) { return absl::StrCat(kName, name); }

absl::StatusOr<int64_t> NumberOfToken(absl::string_view token) {
  absl::string_view digits = token;
  int64_t number = 0;
  if (!absl::ConsumePrefix(&digits, kNumber) || !absl::SimpleAtoi(digits, &number) || number <= 0) {
    return BadToken(token);
  }
  return number;
}

absl::StatusOr<std::string> NameOfToken(absl::string_view token) {
  absl::string_view name = token;
  if (!absl::ConsumePrefix(&name, kName) || name.empty()) return BadToken(token);
  return std::string(name);
}

}  // namespace espalier
