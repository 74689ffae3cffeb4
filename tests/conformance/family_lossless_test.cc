// Speculation is lossless for every family, whatever its positions, windows, soft caps and experts:
// decoding after committed tree nodes gives the outputs of incremental decoding. The models are
// those of family_logits_test. The SSM is the same model with enlarged matrices, so that only some
// drafts are accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/weight_files.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "serving/lossless/lossless.h"
#include "serving/testing/letter_tokenizer.h"
#include "tests/conformance/family_model.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int kRequests = 4, kRows = 32;
constexpr int kAnswer = 36;      // tokens; with the prompts, longer than any sliding window
constexpr double kLarger = 1.6;  // about half of the drafts are accepted

class FamilyLosslessTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override { RegisterAllOperators(registry_); }

  std::string Folder(const std::string& name, double larger) {
    const FamilyCase& c = GetParam();
    FamilyCase written = c;
    for (auto& [tensor, spec] : written.data["tensors"].items()) {
      if (spec[0].size() > 1) spec[2] = spec[2].get<double>() * larger;
    }
    const std::string folder =
        JoinPath(::testing::TempDir(), absl::StrCat("lossless-", c.name(), "-", name));
    const absl::Status status = WriteFamilyFolder(*files_, folder, written);
    EXPECT_TRUE(status.ok()) << status;
    return folder;
  }

  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Runner(const std::string& folder,
                                                             WeightFormat format,
                                                             DType kv_cache_dtype) {
    const absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder);
    if (!config.ok()) return config.status();
    const absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) return model.status();
    vocabulary_ = static_cast<int>(model->facts.vocab_size);
    const int positions = GetParam()["max_positions"].get<int>();
    context_ = positions > 0 ? positions : static_cast<int>(model->facts.max_positions);
    const int slots = kRequests * (context_ + kRows);
    const ServingShape shape{.max_rows = kRows,
                             .max_output_rows = kRows,
                             .kv_slots = slots,
                             .max_sequences = kRequests,
                             .max_context_slots = slots,
                             .max_ancestor_slots = 4 * kRows,
                             .max_positions = positions,
                             .kv_cache_dtype = kv_cache_dtype};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    const absl::Status bound = BindAndInfer(registry_, 1, &serving->graph);
    if (!bound.ok()) return bound;
    AddImplicitSources(serving->graph, &serving->weights);
    serving = ToServingFormat(registry_, *std::move(serving), model->facts, format);
    if (!serving.ok()) return serving.status();
    const absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    if (!program.ok()) return program.status();
    devices_.push_back(NewCpuDevice({1, 1 << 26}));
    return ProgramModelRunner::Create(*program, folder, context_, devices_.back().get(),
                                      serving->weights);
  }

  void ExpectLossless(WeightFormat format, DType kv_cache_dtype) {
    const auto llm = Runner(Folder("llm", 1), format, kv_cache_dtype);
    ASSERT_TRUE(llm.ok()) << llm.status();
    const auto ssm = Runner(Folder("ssm", kLarger), WeightFormat::kF32, DType::kF32);
    ASSERT_TRUE(ssm.ok()) << ssm.status();
    const std::vector<int> tokens = GetParam()["tokens"].get<std::vector<int>>();
    LosslessOptions options;
    options.engine.expansion = *Expansion::Parse("2,1,1");
    options.engine.max_requests = kRequests;
    options.engine.max_tokens_per_batch = kRows;
    options.engine.max_sequence_length = context_;
    options.prompts = {tokens, {tokens.begin(), tokens.begin() + 5}, {tokens[7]}};
    const int longest = static_cast<int>(tokens.size());
    options.answer = std::min(kAnswer, context_ - longest - 1);
    options.draws = 1000;
    options.distribution_tokens = 2;
    const nlohmann::json& config = GetParam()["config"];
    if (const auto window = config.find("sliding_window");
        window != config.end() && window->is_number()) {
      ASSERT_GT(options.answer, window->get<int>());
    }
    const LetterTokenizer tokenizer(vocabulary_);
    const absl::StatusOr<LosslessReport> report =
        VerifyLossless(**llm, {ssm->get()}, tokenizer, options);
    ASSERT_TRUE(report.ok()) << report.status();
    for (const LosslessCheck& check : report->checks) {
      EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
    }
    // Otherwise hardly any token was decoded after a tree.
    EXPECT_GT(report->accepted_per_step, 0.1);
    RecordProperty("accepted_per_step", std::to_string(report->accepted_per_step));
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::vector<std::unique_ptr<Device>> devices_;  // outlive what runs on them
  int vocabulary_ = 0, context_ = 0;
};

TEST_P(FamilyLosslessTest, TreeSpeculationIsLossless) {
  ExpectLossless(WeightFormat::kF32, DType::kF32);
}

TEST_P(FamilyLosslessTest, TreeSpeculationIsLosslessInInt8) {
  ExpectLossless(WeightFormat::kInt8, DType::kI8);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyLosslessTest,
                         ::testing::ValuesIn(ReadFamilyCases("tests/conformance/families.json")),
                         [](const ::testing::TestParamInfo<FamilyCase>& info) {
                           return info.param.name();
                         });

}  // namespace
}  // namespace espalier
