// Regular expressions of tokenizer.json: Oniguruma's Ruby syntax, translated to PCRE2
// (onig_syntax.h) and compiled to machine code, with a bound on backtracking.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Immutable and thus thread-safe.
class Regex {
 public:
  // Returns InvalidArgument or Unimplemented with the byte offset of the error.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Reusable match state. Not thread-safe. Keep it for many short texts.
  class Matcher {
   public:
    // `regex` must outlive it.
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;

    // Appends [begin, end) of each match, left to right, disjoint; omits an empty match directly
    // after another match. Returns ResourceExhausted if the pattern backtracks too much. REQUIRES:
    // valid UTF-8.
    absl::Status FindAll(absl::string_view text, std::vector<std::pair<size_t, size_t>>* matches);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace espalier
