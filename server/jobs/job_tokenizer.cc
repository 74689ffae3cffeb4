#include "server/jobs/job_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "models/model.h"
#include "models/weights/weight_files.h"
#include "serving/models/model_description.h"
#include "serving/models/read_tokenizer_files.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {
namespace {

absl::Status InField(const char* field, const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("spec.", field, " '", artifact, "': ", status.message()));
}

// The config.json of the model that is trained; empty: it is no language model of a known family.
absl::StatusOr<std::string> ConfigToTrain(const ArtifactStore& artifacts,
                                          const v1::TrainingSpec& spec) {
  if (spec.model_case() == v1::TrainingSpec::kGraph) {
    const auto config = spec.graph().metadata().find("config");
    return config == spec.graph().metadata().end() ? "" : config->second;
  }
  if (spec.model_case() == v1::TrainingSpec::kOnnxArtifact) return "";
  const std::string& init = spec.init_artifact();
  const absl::StatusOr<v1::Artifact> artifact = artifacts.Find(init);
  if (!artifact.ok()) return InField("init_artifact", init, artifact.status());
  const auto& names = artifact->files();
  if (std::find(names.begin(), names.end(), "graph.pb") != names.end()) return "";
  const absl::StatusOr<ArtifactFolder> folder = artifacts.Pin(init);
  if (!folder.ok()) return InField("init_artifact", init, folder.status());
  absl::StatusOr<std::string> config = ReadModelConfig(*NewPosixFileSystem(), folder->path());
  return config.ok() ? config : InField("init_artifact", init, config.status());
}

// "token 5 ("</s>")"
std::string Named(const Tokenizer& tokenizer, int token) {
  return absl::StrCat("token ", token, " (\"",
                      absl::Utf8SafeCHexEscape(tokenizer.TokenBytes(token)), "\")");
}

void NoteEnds(const ModelDescription& model, const TokenizerConfig& config,
              std::vector<std::string>* notes) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (tokenizer.eos().empty()) {
    notes->push_back(
        "neither config.json (eos_token_id) nor the tokenizer (eos_token) says which token ends an "
        "answer, so that answers end by their length only");
    return;
  }
  const auto named = config.special_tokens.find("eos_token");
  const int theirs = named == config.special_tokens.end() ? -1 : tokenizer.TokenId(named->second);
  const std::vector<int>& ours = model.model.facts.eos;
  if (theirs < 0 || ours.empty() || std::find(ours.begin(), ours.end(), theirs) != ours.end()) {
    return;
  }
  notes->push_back(absl::StrCat("config.json has the eos_token_id ", ours[0], ", which is ",
                                Named(tokenizer, ours[0]),
                                ", and the eos_token of the tokenizer is ",
                                Named(tokenizer, theirs), "; answers end at both"));
}

void NoteBegin(const ModelDescription& model, std::vector<std::string>* notes) {
  const auto json = nlohmann::json::parse(model.model.facts.config, nullptr, false);
  const auto ours = json.find("bos_token_id");
  const int theirs = model.tokenizer->bos();
  if (ours == json.end() || !ours->is_number_integer() || theirs < 0) return;
  if (ours->get<int64_t>() == theirs) return;
  notes->push_back(absl::StrCat("config.json has the bos_token_id ", ours->get<int64_t>(),
                                ", the bos_token of the tokenizer is ",
                                Named(*model.tokenizer, theirs), ", which is used"));
}

// A model may have fewer rows than its own tokenizer has added tokens, as text-only Gemma 3 has.
bool ItsModelLacksTokens(FileSystem& files, const std::string& folder, int64_t vocabulary) {
  const absl::StatusOr<std::string> config = ReadModelConfig(files, folder);
  if (!config.ok()) return false;
  const absl::StatusOr<LanguageModel> model = ReadModel(*config);
  return model.ok() && model->facts.vocab_size <= vocabulary;
}

absl::StatusOr<ModelDescription> Describe(LanguageModel model, const TokenizerFiles& texts,
                                          FileSystem& files, const std::string& folder) {
  if (texts.tokenizer_json.empty()) {
    return absl::InvalidArgumentError(
        "it has no tokenizer.json, and no GGUF file with a tokenizer; transformers writes one: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)");
  }
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> alone = LoadTokenizer(texts);
  if (!alone.ok()) return alone.status();
  const int64_t rows = model.facts.vocab_size;
  const int tokens = (*alone)->vocabulary();
  if (tokens > rows && !ItsModelLacksTokens(files, folder, rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ids go up to ", tokens - 1, ", and the model has a vocab_size of ", rows,
                     "; a vocab_size of at least ", tokens,
                     " in config.json (llama:...,vocab=", tokens, ") fits it"));
  }
  return DescribeModel(std::move(model), texts);
}

}  // namespace

absl::StatusOr<JobTokenizer> LoadJobTokenizer(const ArtifactStore& artifacts,
                                              const v1::TrainingSpec& spec) {
  const bool given = !spec.tokenizer_artifact().empty();
  const char* const field = given ? "tokenizer_artifact" : "init_artifact";
  const std::string& source = given ? spec.tokenizer_artifact() : spec.init_artifact();
  absl::StatusOr<std::string> config = ConfigToTrain(artifacts, spec);
  if (!config.ok()) return config.status();
  absl::StatusOr<LanguageModel> model = ReadModel(*config);
  if (config->empty() || !model.ok()) {
    if (!given) return JobTokenizer();
    return InField(field, source,
                   config->empty() ? absl::InvalidArgumentError(
                                         "a tokenizer goes with a language model that has a "
                                         "config.json (--model, --init), not with another graph")
                                   : model.status());
  }
  const bool bytes = model->facts.tokenizer == "bytes";
  const bool text = spec.dataset().format() == v1::Dataset::TEXT;
  if (!given && bytes) return JobTokenizer();
  if (source.empty()) {
    return JobTokenizer{
        nullptr,
        "",
        {absl::StrCat(
            text ? "the text is read as bytes, and the" : "the",
            " model gets no tokenizer, so that it cannot be served: --tokenizer=FOLDER or "
            "ARTIFACT gives it one, or \"tokenizer\": \"bytes\" in its config.json")}};
  }
  if (!given && !text) return JobTokenizer();
  if (bytes) {
    return InField(field, source,
                   absl::InvalidArgumentError(
                       "the config.json of the model has \"tokenizer\": \"bytes\"; remove that "
                       "field, or give no tokenizer"));
  }
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const absl::StatusOr<ArtifactFolder> folder = artifacts.Pin(source);
  if (!folder.ok()) return InField(field, source, folder.status());
  const absl::StatusOr<TokenizerFiles> texts = ReadTokenizerFiles(*files, folder->path());
  if (!texts.ok()) return InField(field, source, texts.status());
  const absl::StatusOr<ModelDescription> described =
      Describe(*std::move(model), *texts, *files, folder->path());
  if (!described.ok()) return InField(field, source, described.status());
  const absl::StatusOr<TokenizerConfig> tokens = ReadTokenizerConfig(*texts);
  if (!tokens.ok()) return InField(field, source, tokens.status());

  JobTokenizer tokenizer{described->tokenizer, source, {}};
  if (given && !spec.init_artifact().empty() && spec.init_artifact() != source) {
    tokenizer.notes.push_back(absl::StrCat("the model gets the tokenizer of '", source,
                                           "', not that of '", spec.init_artifact(), "'"));
  }
  if (!described->omitted_added_tokens.empty()) {
    const auto& [id, spelling] = *described->omitted_added_tokens.begin();
    tokenizer.notes.push_back(
        absl::StrCat("added tokens of the tokenizer such as \"", absl::Utf8SafeCHexEscape(spelling),
                     "\" (", id, "), ", described->omitted_added_tokens.size(),
                     " in all, have no row in the model's ", described->model.facts.vocab_size,
                     " and are read as text, as by the tokenizer's own model"));
  }
  if (given) {
    NoteEnds(*described, *tokens, &tokenizer.notes);
    NoteBegin(*described, &tokenizer.notes);
    if (!texts->generation_config_json.empty()) {
      tokenizer.notes.push_back(
          absl::StrCat("the model also gets the generation_config.json of '", source,
                       "': the tokens that end answers, and the defaults of sampling"));
    }
  }
  return tokenizer;
}

}  // namespace espalier
