#include "serving/tokenizer/regex.h"

#include <pcre2.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/onig_syntax.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

constexpr size_t kMaxPattern = 1 << 16;
// Maximum steps of one match. A reasonable pattern takes a few steps per character, and the longest
// texts have some millions of characters.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = 16 << 20;

std::string Message(int error) {
  PCRE2_UCHAR8 text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Matcher::State {
  explicit State(const pcre2_code* pattern)
      : code(pattern),
        data(pcre2_match_data_create_from_pattern(pattern, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }

  const pcre2_code* code;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>(regex.code_->code)) {}
Regex::Matcher::~Matcher() = default;

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern has ", pattern.size(), " bytes, accepted are ", kMaxPattern));
  }
  absl::StatusOr<std::string> translated = TranslateOniguruma(pattern);
  if (!translated.ok()) return translated.status();
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_unique<Code>();
  // Ruby's ^ and $ match at line boundaries.
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, nullptr);
  if (code->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern is not accepted: ", Message(error),
                                                   ", at byte ", at,
                                                   " of its "
                                                   "translation ",
                                                   translated->substr(0, 200)));
  }
  // If the JIT is unavailable (no memory, unsupported processor), PCRE2's interpreter matches.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

absl::Status Regex::Matcher::FindAll(absl::string_view text,
                                     std::vector<std::pair<size_t, size_t>>* matches) {
  State& search = *state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;
  bool after_match = false;  // `at` is the end of a match
  while (at <= text.size()) {
    int found = pcre2_match(search.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, search.data,
                            search.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && search.stack == nullptr) {
      search.stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
      pcre2_jit_stack_assign(search.context, nullptr, search.stack);
      continue;
    }
    if (found == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (found < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a pattern of the tokenizer cannot be matched from byte ", at,
                       " of the text on: ", Message(found)));
    }
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(search.data);
    const size_t begin = range[0], end = range[1];
    if (begin > end || end < at) {  // \K inside a look-around can cause this
      return absl::InvalidArgumentError("a pattern of the tokenizer matches backwards");
    }
    if (begin == end && after_match && begin == at) {
      if (at >= text.size()) break;
      NextCodePoint(text, &at);
      after_match = false;
      continue;
    }
    matches->emplace_back(begin, end);
    at = end;
    after_match = true;
  }
  return absl::OkStatus();
}

}  // namespace espalier
