#pragma once

#include <string>
#include <vector>

namespace espalier {

// Quotes a word for a shell if that is needed.
std::string ShellQuote(const std::string& word);
std::string ShellQuote(const std::vector<std::string>& words);

}  // namespace espalier
