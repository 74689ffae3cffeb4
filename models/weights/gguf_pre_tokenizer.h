// How the byte-level BPEs inside GGUF files cut text into words: the files only name it
// (`tokenizer.ggml.pre`); what a name means is defined by llama.cpp, which made it up from the
// tokenizer.json of the first model that had it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct GgufPreTokenizer {
  std::vector<const char*> names;
  bool contiguous_punctuation = false;  // runs of it apart, before anything else
  bool digits = false;                  // each by itself, before what follows
  std::vector<const char*> splits;      // regular expressions in turn; matches stand alone
  bool gpt2_words = false;              // GPT-2's own cut, after these
  bool digits_in_threes = false;        // from the left, last of all
  bool nfc = false;                     // text is normalised first
  bool ignore_merges = false;           // a word that is a token is that token
  bool adds_bos = false;                // unless the file says
};

// Null if there is none of this name.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

// All names, for messages: "a, b, c".
std::string GgufPreTokenizerNames();

}  // namespace espalier
