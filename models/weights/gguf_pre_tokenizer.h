// Pre-tokenizers of byte-level BPEs in GGUF files, which only name them (`tokenizer.ggml.pre`).
// llama.cpp defines each name by the tokenizer.json of the first model that had it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct GgufPreTokenizer {
  std::vector<const char*> names;
  bool contiguous_punctuation = false;  // isolate runs of it first
  bool digits = false;                  // isolate each digit next
  std::vector<const char*> splits;      // then isolate matches of each regex
  bool gpt2_words = false;              // then GPT-2's pattern
  bool digits_in_threes = false;        // last, from the left
  bool nfc = false;                     // normalize the text first
  bool ignore_merges = false;           // a word in the vocabulary is one token
  bool adds_bos = false;                // default if the file does not say
};

// Returns null for an unknown name.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

// Returns all names, for messages: "a, b, c".
std::string GgufPreTokenizerNames();

}  // namespace espalier
