// Streams the arguments of one tool call.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

class ToolArgumentsParser {
 public:
  virtual ~ToolArgumentsParser() = default;

  // Consumes the part of `text` that certainly belongs to the arguments and returns its length; the
  // next call continues behind it. Appends to *json the part of the arguments' JSON object that is
  // known by then. All parts together are the object however the text is cut, or its beginning if
  // the answer ends inside it.
  virtual size_t Take(absl::string_view text, std::string* json) = 0;
  // Whether the arguments have ended, or something follows that cannot be part of them.
  virtual bool done() const = 0;
};

// For arguments that are written as a JSON object. The text begins with the object.
std::unique_ptr<ToolArgumentsParser> NewJsonArgumentsParser();

// Length of the longest proper prefix of `word` that `text` ends with.
size_t PartialTagOverlap(absl::string_view text, absl::string_view word);

}  // namespace espalier
