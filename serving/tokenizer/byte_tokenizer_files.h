// The byte-level tokenizer as Hugging Face's files, for programs that know it by these only.
#pragma once

#include <string>

namespace espalier {

// Returns a tokenizer.json in which token i is byte i: a byte-level BPE without merges. It encodes
// and decodes as ByteTokenizer does; tokens from 256 on are not in it, as they have no text.
std::string ByteTokenizerJson();
// Returns a tokenizer_config.json with which transformers' AutoTokenizer loads that file, whatever
// the model's family.
std::string ByteTokenizerConfigJson();

}  // namespace espalier
