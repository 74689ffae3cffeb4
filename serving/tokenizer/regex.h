// Regular expressions as tokenizer.json holds them: Oniguruma's Ruby syntax, matched by PCRE2 after
// a translation (onig_syntax.h), compiled to machine code, bounded against catastrophic
// backtracking.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Immutable, hence usable from any thread.
class Regex {
 public:
  // InvalidArgument or Unimplemented with the byte at which the pattern goes wrong.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // What a search needs besides the pattern. For one thread; keep it for many short texts.
  class Matcher {
   public:
    // `regex` must outlive it.
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;

    // Appends [begin, end) of each match, left to right, none overlapping; an empty match right
    // after another one does not count. ResourceExhausted if the pattern backtracks without end.
    // REQUIRES: valid UTF-8.
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
