// Pages of lists: sizes and tokens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Items of a page: at most as many; 0 stands for it.
inline constexpr int kMostPerPage = 1000;

// Returns the items of a page for a request's page_size; InvalidArgument if it is negative or too
// large.
absl::StatusOr<size_t> PageSize(int32_t page_size);

// The token of the page after the item of this number, or name.
std::string TokenOfNumber(int64_t number);
std::string TokenOfName(absl::string_view name);
// Their reverse; InvalidArgument for what they did not return.
absl::StatusOr<int64_t> NumberOfToken(absl::string_view token);
absl::StatusOr<std::string> NameOfToken(absl::string_view token);

}  // namespace espalier
