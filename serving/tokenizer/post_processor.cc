#include "serving/tokenizer/post_processor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/token_model.h"

namespace espalier {
namespace {

// Bounds the length of a template.
constexpr size_t kMaxPieces = 64;

int TokenOfPair(const JsonReader& pair) {
  if (pair.size() != 2) {
    pair.Invalid("expected [\"token\", id]");
    return 0;
  }
  return static_cast<int>(pair.At(1).AsInt(0, kMaxTokenId - 1));
}

}  // namespace

void PostProcessor::Read(const JsonReader& json) {
  const std::string type = json.String("type");
  if (!json.ok() || type == "ByteLevel") return;  // it only changes offsets
  if (type == "Sequence") {
    const JsonReader list = json.Get("processors");
    for (size_t i = 0; i < list.size() && json.ok(); ++i) Read(list.At(i));
    if (templates_.size() > 4) json.Invalid("more than 4 templates around each other");
    return;
  }
  std::vector<Piece> pieces;
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    pieces = {{false, {TokenOfPair(json.Get("cls"))}},
              {true, {}},
              {false, {TokenOfPair(json.Get("sep"))}}};
  } else if (type == "TemplateProcessing") {
    const JsonReader list = json.Get("single");
    if (list.size() > kMaxPieces)
      list.Invalid(absl::StrCat("has more than ", kMaxPieces, " pieces"));
    for (size_t i = 0; i < list.size() && json.ok(); ++i) {
      const JsonReader piece = list.At(i);
      if (piece.Has("Sequence")) {
        if (piece.Get("Sequence").String("id") != "A")
          piece.Invalid("one text has no sequence but A");
        pieces.push_back({true, {}});
        continue;
      }
      const std::string name = piece.Get("SpecialToken").String("id");
      const JsonReader ids = json.Get("special_tokens").Get(name).Get("ids");
      Piece tokens;
      if (ids.size() > kMaxPieces) ids.Invalid("is too long");
      for (size_t k = 0; k < ids.size() && json.ok(); ++k) {
        tokens.tokens.push_back(static_cast<int>(ids.At(k).AsInt(0, kMaxTokenId - 1)));
      }
      pieces.push_back(std::move(tokens));
    }
  } else {
    json.Unknown(absl::StrCat("type \"", type, "\" is not known"));
  }
  int texts = 0;
  for (const Piece& piece : pieces) texts += piece.text;
  if (json.ok() && texts > 4) json.Invalid("repeats the text more than 4 times");
  templates_.push_back(std::move(pieces));
}

void PostProcessor::Set(std::vector<int> before, std::vector<int> behind) {
  templates_ = {{{false, std::move(before)}, {true, {}}, {false, std::move(behind)}}};
}

bool PostProcessor::Adds(int token) const {
  for (const std::vector<Piece>& pieces : templates_) {
    for (const Piece& piece : pieces) {
      const std::vector<int>& added = piece.tokens;
      if (std::find(added.begin(), added.end(), token) != added.end()) return true;
    }
  }
  return false;
}

std::vector<int> PostProcessor::Apply(std::vector<int> tokens) const {
  for (const std::vector<Piece>& pieces : templates_) {
    std::vector<int> around;
    for (const Piece& piece : pieces) {
      const std::vector<int>& from = piece.text ? tokens : piece.tokens;
      around.insert(around.end(), from.begin(), from.end());
    }
    tokens = std::move(around);
  }
  return tokens;
}

}  // namespace espalier
