#include "models/weights/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "models/weights/gguf.h"
#include "models/weights/gguf_eos.h"
#include "models/weights/gguf_pre_tokenizer.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Rebuilding merges takes time quadratic in a piece's length. SentencePiece limits pieces to 16
// characters; longer ones are user-defined and not results of merges.
constexpr size_t kMaxPiece = 256;
constexpr size_t kMaxPiecesText = 8 << 20;  // total bytes of all pieces
constexpr size_t kMaxMergesText = 64 << 20;

// Reads metadata arrays; the first error sticks.
class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file) {}

  const absl::Status& status() const { return status_; }
  const std::vector<std::string>& tokens() const { return tokens_; }
  size_t size() const { return tokens_.size(); }
  int type(size_t id) const { return types_[id]; }
  const std::vector<std::string>& merges() const { return merges_; }
  double score(size_t id) const { return scores_[id]; }
  const GgufFile& file() const { return file_; }

  void ReadAll(bool scored) {
    tokens_ = Take(file_.Strings(Key("tokens")));
    const std::vector<double> types = Take(file_.Numbers(Key("token_type")));
    merges_ = Take(file_.Strings(Key("merges")));
    scores_ = Take(file_.Numbers(Key("scores")));
    if (tokens_.empty()) Fail("tokens", "the spellings of the tokens");
    if (!types.empty() && types.size() != size()) Fail("token_type", "as long as its tokens");
    if (scored && scores_.size() != size()) Fail("scores", "as long as its tokens");
    for (const double score : scores_) {
      if (!std::isfinite(score)) Fail("scores", "of finite numbers");
    }
    for (const double type : types) {
      if (!(type >= 1 && type <= 6)) Fail("token_type", "of numbers from 1 to 6");
      types_.push_back(static_cast<int>(type));
    }
    // Some converters did not mark these as control tokens; as text they would be split and shown.
    if (types_.empty()) types_.assign(size(), kGgufNormal);
    for (size_t i = 0; i < size() && status_.ok(); ++i) {
      if (types_[i] != kGgufUnused && IsGgufEosSpelling(tokens_[i])) types_[i] = kGgufControl;
      if (!ids_.emplace(tokens_[i], static_cast<int>(i)).second) {
        Fail("tokens", absl::StrCat("without repetition (token ", i, " is there twice)"));
      }
    }
  }

  // Returns -1 if the vocabulary lacks it.
  int Find(const std::string& spelling) const {
    const auto found = ids_.find(spelling);
    if (found == ids_.end() || type(static_cast<size_t>(found->second)) == kGgufUnused) return -1;
    return found->second;
  }

  std::string Text(const std::string& name) {
    const auto found = file_.metadata().find(Key(name));
    if (found == file_.metadata().end()) return "";
    if (const auto* text = std::get_if<std::string>(&found->second)) return *text;
    Fail(name, "a string");
    return "";
  }
  bool Flag(const std::string& name, bool otherwise) {
    const auto found = file_.metadata().find(Key(name));
    if (found == file_.metadata().end()) return otherwise;
    if (const bool* flag = std::get_if<bool>(&found->second)) return *flag;
    Fail(name, "true or false");
    return otherwise;
  }
  // Returns a token's id, or -1.
  int Id(const std::string& name) {
    const auto found = file_.metadata().find(Key(name));
    if (found == file_.metadata().end()) return -1;
    const int64_t* id = std::get_if<int64_t>(&found->second);
    if (id != nullptr && *id >= 0 && *id < static_cast<int64_t>(size())) {
      return static_cast<int>(*id);
    }
    Fail(name, absl::StrCat("the number of a token below ", size()));
    return -1;
  }

  void Fail(const std::string& name, const std::string& accepted) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("'", file_.path(), "': metadata '", Key(name), "' must be ", accepted));
  }

 private:
  static std::string Key(const std::string& name) { return absl::StrCat("tokenizer.ggml.", name); }

  template <typename T>
  std::vector<T> Take(absl::StatusOr<std::vector<T>> values) {
    if (values.ok()) return *std::move(values);
    status_.Update(values.status());
    return {};
  }

  const GgufFile& file_;
  absl::Status status_;
  std::vector<std::string> tokens_, merges_;
  std::vector<int> types_;
  std::vector<double> scores_;
  absl::flat_hash_map<std::string, int> ids_;
};

// The model's vocabulary, without padding tokens that the converter made up.
Json Vocabulary(const Reader& reader) {
  Json vocabulary = Json::object();
  Json::object_t& entries = vocabulary.get_ref<Json::object_t&>();
  for (size_t i = 0; i < reader.size(); ++i) {
    // Appends: inserting by key would search all entries.
    if (reader.type(i) != kGgufUnused) entries.Container::emplace_back(reader.tokens()[i], i);
  }
  return vocabulary;
}

// True if special tokens strip following spaces, as Phi-3's do. No file says so; llama.cpp also
// decides by the model's name.
bool StripsFollowingSpaces(const Reader& reader) {
  const auto found = reader.file().metadata().find("general.name");
  if (found == reader.file().metadata().end()) return false;
  const auto* name = std::get_if<std::string>(&found->second);
  if (name == nullptr) return false;
  const std::string lower = absl::AsciiStrToLower(*name);
  return absl::StrContains(lower, "phi-3") || absl::StrContains(lower, "phi3");
}

Json AddedTokens(const Reader& reader) {
  const bool takes_blanks = StripsFollowingSpaces(reader);
  Json added = Json::array();
  for (size_t i = 0; i < reader.size(); ++i) {
    const int type = reader.type(i);
    if (type != kGgufControl && type != kGgufUserDefined && type != kGgufUnknown) continue;
    const std::string& text = reader.tokens()[i];
    const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
    added.push_back({{"id", i},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", takes_blanks && !plain},
                     {"normalized", false},
                     {"special", type != kGgufUserDefined}});
  }
  return added;
}

// BOS and EOS of every text, if the file asks for them.
Json PostProcessor(Reader& reader, bool adds_bos) {
  Json pieces = Json::array(), tokens = Json::object();
  const auto add = [&](const char* role) {
    const int id = reader.Id(absl::StrCat(role, "_token_id"));
    if (id < 0) return;
    const std::string& spelling = reader.tokens()[static_cast<size_t>(id)];
    pieces.push_back({{"SpecialToken", {{"id", spelling}, {"type_id", 0}}}});
    tokens[spelling] = {{"id", spelling}, {"ids", {id}}, {"tokens", {spelling}}};
  };
  if (reader.Flag("add_bos_token", adds_bos)) add("bos");
  pieces.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (reader.Flag("add_eos_token", false)) add("eos");
  if (pieces.size() == 1) return Json();
  return {{"type", "TemplateProcessing"},
          {"single", pieces},
          {"pair", pieces},
          {"special_tokens", tokens}};
}

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

absl::StatusOr<Json> ByteLevelBpe(Reader& reader, const std::string& path) {
  const std::string pre = reader.Text("pre");
  const GgufPreTokenizer* cut = FindGgufPreTokenizer(pre);
  if (reader.status().ok() && cut == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "'", path, "': tokenizer.ggml.pre is '", pre.substr(0, 60), "'; accepted: ",
        GgufPreTokenizerNames(), "; for others put the model's tokenizer.json beside the file"));
  }
  if (!reader.status().ok()) return reader.status();
  Json merges = Json::array();
  for (const std::string& merge : reader.merges()) {
    // Space is not in the byte-level alphabet.
    const size_t blank = merge.find(' ');
    if (blank == std::string::npos) {
      reader.Fail("merges", "of two tokens each, with a blank between them");
      return reader.status();
    }
    merges.push_back({merge.substr(0, blank), merge.substr(blank + 1)});
  }
  Json words = Json::array();
  const auto split = [&](const char* pattern) {
    words.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  };
  if (cut->contiguous_punctuation) {
    words.push_back({{"type", "Punctuation"}, {"behavior", "Contiguous"}});
  }
  if (cut->digits) words.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const char* pattern : cut->splits) split(pattern);
  words.push_back(ByteLevel(cut->gpt2_words));
  if (cut->digits_in_threes) {
    words.push_back({{"type", "Digits"}, {"individual_digits", false}});
    split("[0-9][0-9][0-9]");
  }
  Json json;
  json["added_tokens"] = AddedTokens(reader);
  json["normalizer"] = cut->nfc ? Json{{"type", "NFC"}} : Json();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", words}};
  json["post_processor"] = PostProcessor(reader, cut->adds_bos);
  json["decoder"] = ByteLevel(true);
  json["model"] = {{"type", "BPE"}, {"ignore_merges", cut->ignore_merges}};
  json["model"]["vocab"] = Vocabulary(reader);
  json["model"]["merges"] = std::move(merges);
  return json;
}

size_t CodePoints(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// SentencePiece's BPE joins the neighbors that form the piece of the highest score. As ranked
// merges: all pairs of tokens that form a third, by its score; ties are in the order of
// transformers' SentencePieceExtractor (convert_slow_tokenizer.py).
Json Merges(Reader& reader) {
  struct Pair {
    double score;
    size_t left_length, right_length;
    int left, right;
  };
  std::vector<Pair> pairs;
  size_t text = 0, merged = 0;
  for (size_t i = 0; i < reader.size(); ++i) {
    const std::string& piece = reader.tokens()[i];
    text += piece.size();
    if (text > kMaxPiecesText || merged > kMaxMergesText) {
      reader.Fail("tokens", absl::StrCat("no more than ", kMaxPiecesText, " bytes, and ",
                                         kMaxMergesText, " of pairs that make tokens"));
      return Json();
    }
    if (reader.type(i) == kGgufUnused || piece.size() > kMaxPiece) continue;
    const size_t first = pairs.size();
    for (size_t at = 1; at < piece.size(); ++at) {
      if ((static_cast<unsigned char>(piece[at]) & 0xC0) == 0x80) continue;
      const int left = reader.Find(piece.substr(0, at));
      const int right = left < 0 ? -1 : reader.Find(piece.substr(at));
      if (right < 0) continue;
      merged += piece.size();
      pairs.push_back({reader.score(i), CodePoints(piece.substr(0, at)),
                       CodePoints(piece.substr(at)), left, right});
    }
    std::sort(pairs.begin() + static_cast<int64_t>(first), pairs.end(),
              [](const Pair& a, const Pair& b) {
                return std::tie(a.left, a.right) < std::tie(b.left, b.right);
              });
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return std::tie(a.score, a.left_length, a.right_length) >
           std::tie(b.score, b.left_length, b.right_length);
  });
  Json merges = Json::array();
  for (const Pair& pair : pairs) {
    merges.push_back({reader.tokens()[static_cast<size_t>(pair.left)],
                      reader.tokens()[static_cast<size_t>(pair.right)]});
  }
  return merges;
}

Json SentencePieceBpe(Reader& reader) {
  constexpr char kBlank[] = "\u2581";
  const bool prefix = reader.Flag("add_space_prefix", true);
  const Json to_blank = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}};
  Json normalizers = Json::array(), decoders = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
  normalizers.push_back(to_blank);
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  int unknown = reader.Id("unknown_token_id");
  for (size_t i = 0; i < reader.size() && unknown < 0; ++i) {
    if (reader.type(i) == kGgufUnknown) unknown = static_cast<int>(i);
  }
  Json json;
  json["added_tokens"] = AddedTokens(reader);
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  json["post_processor"] = PostProcessor(reader, /*adds_bos=*/true);
  json["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  json["model"] = {{"type", "BPE"}, {"fuse_unk", true}, {"byte_fallback", true}};
  if (unknown >= 0) json["model"]["unk_token"] = reader.tokens()[static_cast<size_t>(unknown)];
  json["model"]["vocab"] = Vocabulary(reader);
  json["model"]["merges"] = Merges(reader);
  return json;
}

// Returns one template, or a list of named ones; null if there is none.
Json Templates(const Reader& reader) {
  constexpr absl::string_view kKey = "tokenizer.chat_template";
  Json named = Json::array();
  const auto& metadata = reader.file().metadata();
  for (auto entry = metadata.lower_bound(std::string(kKey)); entry != metadata.end(); ++entry) {
    absl::string_view name = entry->first;
    if (!absl::ConsumePrefix(&name, kKey)) break;
    const auto* text = std::get_if<std::string>(&entry->second);
    if (text == nullptr || !(name.empty() || absl::ConsumePrefix(&name, "."))) continue;
    named.push_back({{"name", name.empty() ? "default" : std::string(name)}, {"template", *text}});
  }
  if (named.empty()) return Json();
  const bool alone = named.size() == 1 && named[0]["name"] == "default";
  return alone ? named[0]["template"] : named;
}

Json Configuration(Reader& reader) {
  Json json = Json::object();
  for (const auto& [role, name] : {std::pair{"bos_token", "bos_token_id"},
                                   {"eos_token", "eos_token_id"},
                                   {"unk_token", "unknown_token_id"},
                                   {"pad_token", "padding_token_id"}}) {
    const int id = reader.Id(name);
    if (id < 0) continue;
    // Converters pick arbitrary words for padding; only BOS and EOS must exist.
    const bool ends =
        absl::string_view(role) == "bos_token" || absl::string_view(role) == "eos_token";
    const int type = reader.type(static_cast<size_t>(id));
    if (!ends && type != kGgufControl && type != kGgufUnknown && type != kGgufUserDefined) continue;
    json[role] = reader.tokens()[static_cast<size_t>(id)];
  }
  Json templates = Templates(reader);
  if (!templates.is_null()) json["chat_template"] = std::move(templates);
  return json;
}

}  // namespace

absl::StatusOr<TokenizerTexts> GgufTokenizer(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> opened = GgufFile::Open(files, path);
  if (!opened.ok()) return opened.status();
  Reader reader(**opened);
  const std::string model = reader.Text("model");
  if (!reader.status().ok()) return reader.status();
  if (model.empty()) return TokenizerTexts();
  if (model != "gpt2" && model != "llama") {
    return absl::UnimplementedError(
        absl::StrCat("'", path, "': tokenizer.ggml.model is '", model.substr(0, 60),
                     "'; accepted: gpt2, llama; for others put the model's tokenizer.json beside "
                     "the file"));
  }
  reader.ReadAll(/*scored=*/model == "llama");
  if (!reader.status().ok()) return reader.status();
  Json json;
  if (model == "gpt2") {
    absl::StatusOr<Json> made = ByteLevelBpe(reader, path);
    if (!made.ok()) return made.status();
    json = *std::move(made);
  } else {
    json = SentencePieceBpe(reader);
  }
  Json config = Configuration(reader);
  if (!reader.status().ok()) return reader.status();
  try {
    return TokenizerTexts{json.dump(), config.dump()};
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': its tokens or its chat template are no UTF-8"));
  }
}

}  // namespace espalier
