// Structural tags as xgrammar has them, and with it vLLM and SGLang: a tree of formats.
//
//   const_string, json_schema, grammar (GBNF), regex    one text of that form
//   any_text                                            free text
//   sequence, or, optional, plus, star, repeat          of other formats
//   tag                                                 begin, content, one of the ends
//   triggered_tags                                      free text; where a trigger comes, a tag
//   does tags_with_separator                                 tags and nothing else
//
// Free text holds none of its "excludes", no trigger, and not what ends the tag around it. What
// xgrammar says by tokens (token, any_tokens, "max_tokens" and the like), dispatch, and schemas of
// any style but "json" are refused by name.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Of the JSON text of one format. InvalidArgument naming the place, as in "structural tag:
// format.elements[1].content: ...".
absl::StatusOr<Grammar> ParseXgrammarStructuralTag(absl::string_view format, GrammarBudget* budget);

}  // namespace espalier
