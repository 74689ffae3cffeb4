// Finds what was meant by a misspelt name.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns the word of `known` closest to `given` by edit distance, or the first that begins with
// it; empty if none is close, or `given` is longer than any name.
std::string Nearest(absl::string_view given, const std::vector<std::string>& known);

// Returns "; did you mean 'max_tokens'?" for the nearest known name, or nothing: the end of an
// error.
std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known);

}  // namespace espalier
