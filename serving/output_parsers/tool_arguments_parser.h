// The arguments of one call, as an answer brings them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

class ToolArgumentsParser {
 public:
  virtual ~ToolArgumentsParser() = default;

  // How much of `text` belongs to the arguments for sure; the next text begins behind that. Adds to
  // `json` what is known by then of the JSON object that they are: all parts together are it,
  // however the answer is cut, or its beginning where the answer ends within.
  virtual size_t Take(absl::string_view text, std::string* json) = 0;
  // Whether the arguments have come to their end, or to what cannot be part of them.
  virtual bool done() const = 0;
};

// Of arguments that are written as a JSON object, which begins where they do.
std::unique_ptr<ToolArgumentsParser> NewJsonArgumentsParser();

// Length of the longest end of `text` that begins `word`, but is not all of it.
size_t PartialTagOverlap(absl::string_view text, absl::string_view word);

}  // namespace espalier
