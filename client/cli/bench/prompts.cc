#include "client/cli/bench/prompts.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "client/cli/bench/bench.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr char kText[] =
    "In the beginning was the word, and all that was made came after it. They went out by the gate "
    "of the city, and "
    "the people asked what had been done and by whom, and it was written down so that others might "
    "read it. ";

// Returns the offset of the first UTF-8 character that begins at or after `at`.
size_t NextCharacter(const std::string& text, size_t at) {
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

absl::StatusOr<std::string> TextFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadNonemptyFile(path);
  if (!text.ok()) return text.status();
  if (const size_t valid = ValidUtf8(*text); valid < text->size()) {
    return UsageError(absl::StrCat(Printable(path), " is not UTF-8 text from byte ", valid,
                                   " on; convert it, as with iconv -t UTF-8"));
  }
  return text;
}

}  // namespace

absl::StatusOr<BenchPrompts> BenchPrompts::Create(const ParsedFlags& flags) {
  const bool windows = flags.Has("prompts-from") || flags.Has("prompt-length");
  if (flags.Has("prompt-tokens") + flags.Has("dataset-path") + windows > 1) {
    return UsageError(
        "give one kind of prompts: --prompt-tokens, --dataset-path, or --prompts-from and "
        "--prompt-length");
  }
  BenchPrompts prompts;
  const uint64_t seed = static_cast<uint64_t>(flags.Int("seed", 0));
  prompts.random_tokens_ = flags.Int("prompt-tokens", 0);
  prompts.seed_ = flags.Has("seed") ? seed << 24 : std::random_device()();
  prompts.window_ = static_cast<size_t>(flags.Int("prompt-length", 64));
  prompts.text_ = kText;
  if (flags.Has("dataset-path")) {
    absl::StatusOr<std::vector<DatasetPrompt>> dataset =
        ReadDataset(flags.Text("dataset-path"), seed);
    if (!dataset.ok()) return dataset.status();
    prompts.dataset_ = *std::move(dataset);
    prompts.own_lengths_ = !flags.Has("max-tokens");
  }
  if (!flags.Has("prompts-from")) return prompts;
  absl::StatusOr<std::string> text = TextFile(flags.Text("prompts-from"));
  if (!text.ok()) return text.status();
  prompts.text_ = *std::move(text);
  return prompts;
}

// Returns whole characters, at least one. Consecutive windows start far apart.
std::string BenchPrompts::WindowOf(size_t i) const {
  std::string window;
  size_t at = NextCharacter(text_, i * 7919 % text_.size());
  for (;;) {
    if (at == text_.size()) at = 0;
    const size_t end = NextCharacter(text_, at + 1);
    if (!window.empty() && window.size() + (end - at) > window_) return window;
    window.append(text_, at, end - at);
    at = end;
  }
}

void BenchPrompts::Fill(int64_t i, v1::GenerateRequest* request) const {
  if (random_tokens_ > 0) {
    SetRandomPrompt(seed_ + static_cast<uint64_t>(i), random_tokens_, vocabulary_, request);
  } else if (!dataset_.empty()) {
    const DatasetPrompt& prompt = dataset_[static_cast<size_t>(i) % dataset_.size()];
    request->set_text(prompt.text);
    if (own_lengths_ && prompt.output_tokens > 0) {
      request->set_max_tokens(static_cast<int32_t>(prompt.output_tokens));
    }
  } else {
    request->set_text(WindowOf(static_cast<size_t>(i)));
  }
}

}  // namespace espalier
