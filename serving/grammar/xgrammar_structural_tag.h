// Structural tags in the JSON notation of xgrammar, which vLLM and SGLang use: a tree of formats.
//
//   const_string, json_schema, grammar (GBNF), regex    one text
//   any_text                                            free text
//   sequence, or, optional, plus, star, repeat          combinations of other formats
//   tag                                                 begin, content, one of the ends
//   triggered_tags                                      free text; each trigger begins a tag
//   tags_with_separator                                 tags without free text
//
// Free text contains none of its "excludes", no trigger, and no end of the enclosing tag. Refused
// by name: formats on tokens (token, any_tokens, "max_tokens" and so on), dispatch, and schemas
// with a style other than "json".
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Parses the JSON text of one format. Returns InvalidArgument naming the place, as in "structural
// tag: format.elements[1].content: ...".
absl::StatusOr<Grammar> ParseXgrammarStructuralTag(absl::string_view format, GrammarBudget* budget);

}  // namespace espalier
