#include "serving/tokenizer/byte_tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "serving/tokenizer/byte_level_alphabet.h"

namespace espalier {

std::string ByteTokenizerJson() {
  using Json = nlohmann::ordered_json;
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    std::string written;
    AppendByteAlphabet(absl::string_view(&character, 1), &written);
    vocabulary[written] = byte;
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", bytes},
                     {"post_processor", nullptr},
                     {"decoder", bytes},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocabulary)},
                       {"merges", Json::array()}}}};
  return file.dump(1) + "\n";
}

std::string ByteTokenizerConfigJson() {
  return "{\n"
         "  \"clean_up_tokenization_spaces\": false,\n"
         "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n"
         "}\n";
}

}  // namespace espalier
