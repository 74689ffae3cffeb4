#include "client/cli/launch/shell_quote.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace espalier {

std::string ShellQuote(const std::string& word) {
  constexpr absl::string_view kPlain = "-_./:=,@%+";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) || kPlain.find(static_cast<char>(c)) != absl::string_view::npos;
  });
  return plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string ShellQuote(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    absl::StrAppend(&line, line.empty() ? "" : " ", ShellQuote(word));
  }
  return line;
}

}  // namespace espalier
