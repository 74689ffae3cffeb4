// Runs our tokenizer for tests/conformance/tokenizers_test.py. Requests, one a line:
//   {"load": {"tokenizer_json": "...", ...}}           -> {"vocabulary": n} or {"error": "..."}
//   {"load_folder": "path"}: what its GGUF has            -> the same
//   {"load_bytes": true}: the byte-level tokenizer       -> its files, by name
//   {"encode": ["text", ...], "add_special": bool, "parse_special": bool} -> {"ids": [[...], ...]}
//   {"encode_hex": "..."}: bytes that need not be UTF-8 -> {"ids": [...]}
//   {"decode": [[ids], ...], "show_special": bool}     -> {"texts": [...], "pieces": [[...], ...]}
//   {"token_bytes": [ids]}                             -> {"hex": [...]}
//   {"time": ["text", ...], "rounds": n}               -> {"seconds": [...]}, of encoding all, each
//   round
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "models/weights/weight_files.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/byte_tokenizer_files.h"
#include "serving/tokenizer/tokenizer_files.h"
#include "tests/conformance/serve.h"

namespace espalier::conformance {
namespace {

class Runner {
 public:
  json Answer(const json& request) {
    if (request.contains("load")) return Load(request["load"]);
    if (request.contains("load_folder")) return LoadFolder(request["load_folder"]);
    if (request.contains("load_bytes")) return LoadBytes();
    if (tokenizer_ == nullptr) return {{"error", "nothing is loaded"}};
    if (request.contains("encode")) return Encode(request);
    if (request.contains("encode_hex")) {
      const std::string text = absl::HexStringToBytes(request["encode_hex"].get<std::string>());
      return {{"ids", tokenizer_->Encode(text)}};
    }
    if (request.contains("decode")) return Decode(request);
    if (request.contains("time")) return Time(request);
    json hex = json::array();
    for (const int id : request.at("token_bytes")) {
      hex.push_back(absl::BytesToHexString(tokenizer_->TokenBytes(id)));
    }
    return {{"hex", hex}};
  }

 private:
  json Load(const json& files) {
    TokenizerFiles texts;
    texts.tokenizer_json = files.at("tokenizer_json");
    texts.tokenizer_config_json = files.value("tokenizer_config_json", "");
    texts.special_tokens_map_json = files.value("special_tokens_map_json", "");
    texts.generation_config_json = files.value("generation_config_json", "");
    return Load(texts);
  }

  json LoadFolder(const std::string& folder) {
    absl::StatusOr<TokenizerTexts> found = ReadModelTokenizer(*NewPosixFileSystem(), folder);
    if (!found.ok()) return {{"error", found.status().ToString()}};
    TokenizerFiles texts;
    texts.tokenizer_json = std::move(found->tokenizer);
    texts.tokenizer_config_json = std::move(found->config);
    return Load(texts);
  }

  json LoadBytes() {
    tokenizer_ = *ByteTokenizer::Create();
    return {{"tokenizer.json", ByteTokenizerJson()},
            {"tokenizer_config.json", ByteTokenizerConfigJson()}};
  }

  json Load(const TokenizerFiles& texts) {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = LoadTokenizer(texts);
    if (!tokenizer.ok()) return {{"error", tokenizer.status().ToString()}};
    tokenizer_ = *std::move(tokenizer);
    return {{"vocabulary", tokenizer_->vocabulary()},
            {"bos", tokenizer_->bos()},
            {"eos", tokenizer_->eos()}};
  }

  json Encode(const json& request) const {
    EncodeOptions options;
    options.add_special = request.value("add_special", false);
    options.parse_special = request.value("parse_special", false);
    json ids = json::array();
    for (const json& text : request["encode"]) {
      const auto tokens = tokenizer_->TryEncode(text.get_ref<const std::string&>(), options);
      if (tokens.ok()) {
        ids.push_back(*tokens);
      } else {
        ids.push_back(tokens.status().ToString());
      }
    }
    return {{"ids", ids}};
  }

  json Time(const json& request) const {
    const auto texts = request["time"].get<std::vector<std::string>>();
    json seconds = json::array();
    for (int round = request.at("rounds"); round > 0; --round) {
      const auto begin = std::chrono::steady_clock::now();
      size_t tokens = 0;
      for (const std::string& text : texts) tokens += tokenizer_->Encode(text).size();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      seconds.push_back(took.count());
      tokens_ = tokens;
    }
    return {{"seconds", seconds}, {"tokens", tokens_}};
  }

  json Decode(const json& request) const {
    json texts = json::array(), pieces = json::array();
    for (const json& ids : request["decode"]) {
      const auto stream = tokenizer_->NewStreamDecoder(request.value("show_special", false), {});
      std::vector<std::string> parts;
      std::string whole;
      for (const int id : ids) parts.push_back(stream->Append(id));
      parts.push_back(stream->Flush());
      for (const std::string& part : parts) whole += part;
      texts.push_back(whole);
      pieces.push_back(parts);
    }
    return {{"texts", texts}, {"pieces", pieces}};
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  mutable size_t tokens_ = 0;
};

}  // namespace
}  // namespace espalier::conformance

int main() {
  espalier::conformance::Runner runner;
  espalier::conformance::Serve(
      [&](const nlohmann::json& request) { return runner.Answer(request); });
}
