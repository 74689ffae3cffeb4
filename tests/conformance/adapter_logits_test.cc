// Models with LoRA adapters have PEFT's logits, and a row's logits do not depend on the other rows
// of the batch or their adapters. adapters.json (made by make_adapter_golden.py) holds the cases,
// for models of families.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "models/quantize.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "tests/conformance/family_model.h"
#include "worker/runner/in_process_model_runner.h"
#include "worker/runner/lora_adapters.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<FamilyCase> Cases() { return ReadFamilyCases("tests/conformance/adapters.json"); }

class AdapterLogitsTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    const json& c = GetParam().data;
    bool found = false;
    for (FamilyCase& base : ReadFamilyCases("tests/conformance/families.json")) {
      if (base["name"] != c["base"]) continue;
      base_ = std::move(base);
      found = true;
    }
    ASSERT_TRUE(found) << c["base"];
    folder_ = JoinPath(::testing::TempDir(), "adapted_" + GetParam().name());
    ASSERT_TRUE(WriteFamilyFolder(*files_, folder_, base_).ok());
    tokens_ = base_["tokens"].get<std::vector<int32_t>>();
    for (const json& adapter : c["adapters"]) {
      const std::string name = adapter["name"];
      WriteAdapter(name, adapter["config"], adapter["tensors"], name + "/");
      adapters_.push_back(name);
    }
  }

  std::string FolderOf(const std::string& adapter) { return JoinPath(folder_, adapter); }

  void WriteAdapter(const std::string& name, const json& config, const json& tensors,
                    const std::string& prefix) {
    const std::string folder = FolderOf(name);
    ASSERT_TRUE(files_->CreateDirectories(folder).ok());
    ASSERT_TRUE(
        WriteFileAtomically(*files_, JoinPath(folder, "adapter_config.json"), config.dump()).ok());
    const absl::Status written =
        WriteDrawnTensors(*files_, JoinPath(folder, "adapter_model.safetensors"), tensors, prefix);
    ASSERT_TRUE(written.ok()) << written;
  }

  struct Adapted {
    ServingModel model;
    LoraAdapters files;
    LoraAdapters::Parameters parameters;
    int max_positions = 0;
  };
  absl::StatusOr<Adapted> Build(const std::vector<std::string>& adapters, WeightFormat format) {
    absl::StatusOr<LanguageModel> model = ReadModel(base_["config"].dump());
    if (!model.ok()) return model.status();
    const ServingShape shape{.max_rows = 96,
                             .max_output_rows = 96,
                             .kv_slots = 4 * kSequenceSlots,
                             .max_sequences = 4,
                             .max_context_slots = 256,
                             .max_ancestor_slots = 64,
                             .max_positions = base_["max_positions"].get<int>()};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    if (absl::Status s = BindAndInfer(registry_, 1, &serving->graph); !s.ok()) return s;
    absl::StatusOr<LoraAdapters> files = LoraAdapters::Open(
        *files_, adapters,
        [&](const std::string& name) -> absl::StatusOr<std::string> { return FolderOf(name); });
    if (!files.ok()) return files.status();
    auto parameters = files->AddTo(registry_, &*serving);
    if (!parameters.ok()) return parameters.status();
    serving = QuantizeServing(registry_, *std::move(serving), format);
    if (!serving.ok()) return serving.status();
    return Adapted{*std::move(serving), *std::move(files), *std::move(parameters),
                   static_cast<int>(model->facts.max_positions)};
  }

  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Make(
      const std::vector<std::string>& adapters, WeightFormat format = WeightFormat::kF32) {
    const absl::StatusOr<Adapted> built = Build(adapters, format);
    if (!built.ok()) return built.status();
    absl::StatusOr<v1::Program> program = LowerServing(registry_, built->model.graph);
    if (!program.ok()) return program.status();
    devices_.push_back(NewCpuDevice({2, 1 << 26}));
    auto runner = ProgramModelRunner::Create(*program, folder_, built->max_positions,
                                             devices_.back().get(), built->model.weights);
    if (!runner.ok()) return runner.status();
    if (absl::Status s = built->files.Load(built->parameters, (*runner)->executor()); !s.ok()) {
      return s;
    }
    return *std::move(runner);
  }

  // With all adapters, over several devices, each of which reads its parts of them by folder.
  absl::StatusOr<std::unique_ptr<InProcessModelRunner>> Ranks(const ServingDegrees& degrees,
                                                              const RunnerLimits& limits) {
    absl::StatusOr<Adapted> built = Build(adapters_, WeightFormat::kF32);
    if (!built.ok()) return built.status();
    AddImplicitSources(built->model.graph, &built->model.weights);
    auto programs = LowerServing(registry_, built->model.graph, degrees);
    if (!programs.ok()) return programs.status();
    auto ranks = InProcessModelRunner::Create(*programs, folder_, limits, 96, built->model.weights);
    if (!ranks.ok()) return ranks.status();
    const auto files = LoraAdapters::OpenFolders(*files_, built->files.folders());
    if (!files.ok()) return files.status();
    for (size_t r = 0; r < (*ranks)->ranks(); ++r) {
      absl::Status s = files->Load(built->parameters, (*ranks)->rank(r).executor());
      if (!s.ok()) return s;
    }
    return ranks;
  }

  std::unique_ptr<ProgramModelRunner> Runner(const std::vector<std::string>& adapters,
                                             WeightFormat format = WeightFormat::kF32) {
    auto runner = Make(adapters, format);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return runner.ok() ? *std::move(runner) : nullptr;
  }

  // Runs the whole prompt with one adapter.
  RunnerOutput Alone(ModelRunner& runner, int adapter) {
    RunnerBatch batch;
    AddSequence(&batch, tokens_, 0, static_cast<int>(tokens_.size()));
    if (runner.limits().adapters > 0) batch.row_adapter.assign(tokens_.size(), adapter);
    batch.wants_hidden = true;
    return Step(runner, batch);
  }

  // The prompt with every adapter, and with none, in one batch; the second half in another.
  void ExpectMixedIsAlone(ModelRunner& runner, const std::vector<RunnerOutput>& alone) {
    const int n = static_cast<int>(tokens_.size()), half = n / 2;
    const int count = static_cast<int>(alone.size());
    for (const auto& [begin, end] : {std::pair{0, half}, std::pair{half, n}}) {
      RunnerBatch batch;
      for (int i = 0; i < count; ++i) {
        AddSequence(&batch, tokens_, begin, end, i);
        batch.row_adapter.insert(batch.row_adapter.end(), static_cast<size_t>(end - begin), i - 1);
      }
      const RunnerOutput mixed = Step(runner, batch);
      for (int i = 0; i < count; ++i) {
        for (int row = begin; row < end; ++row) {
          EXPECT_EQ(std::memcmp(mixed.row(i * (end - begin) + row - begin), alone[i].row(row),
                                sizeof(float) * runner.limits().vocabulary),
                    0)
              << "adapter " << i - 1 << ", row " << row;
        }
      }
    }
  }

  RunnerOutput Step(ModelRunner& runner, const RunnerBatch& batch) {
    RunnerOutput logits;
    const absl::Status status = runner.Step(batch, &logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  static float Distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float worst = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      worst = std::max(worst, std::isfinite(a[i]) ? std::fabs(a[i] - b[i]) : INFINITY);
    }
    return worst;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::vector<std::unique_ptr<Device>> devices_;
  FamilyCase base_;
  std::string folder_;
  std::vector<std::string> adapters_;
  std::vector<int32_t> tokens_;
};

TEST_P(AdapterLogitsTest, MatchPeftAndAreBatchInvariant) {
  const auto runner = Runner(adapters_);
  ASSERT_NE(runner, nullptr);
  EXPECT_EQ(runner->limits().adapters, static_cast<int>(adapters_.size()));
  const auto plain = Runner({});
  ASSERT_NE(plain, nullptr);
  std::vector<RunnerOutput> alone = {Alone(*runner, -1)};
  EXPECT_EQ(Alone(*plain, -1).values, alone[0].values);
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const json& adapter = GetParam()["adapters"][i];
    alone.push_back(Alone(*runner, static_cast<int>(i)));
    const float worst =
        Distance(alone.back().values, DecodeFloats(adapter["logits"].get<std::string>()));
    EXPECT_LE(worst, 2e-5f) << adapters_[i];
    RecordProperty("largest_error_" + adapters_[i], std::to_string(worst));
    EXPECT_GT(Distance(alone.back().values, alone[0].values), 0.1f) << "the adapter does nothing";
    const std::vector<float> hidden = DecodeFloats(adapter["hidden"].get<std::string>());
    const std::vector<float>& own = alone.back().hidden;
    EXPECT_LE(Distance({own.end() - static_cast<int64_t>(hidden.size()), own.end()}, hidden),
              1e-4f);
    // With or without other adapters: ranks are padded, nothing else changes.
    const auto single = Runner({adapters_[i]});
    ASSERT_NE(single, nullptr);
    EXPECT_EQ(Alone(*single, 0).values, alone.back().values);
  }
  ExpectMixedIsAlone(*runner, alone);
}

TEST_P(AdapterLogitsTest, WorkWithQuantizedMatrices) {
  for (const auto& [format, limit] :
       {std::pair{WeightFormat::kBF16, 0.2f}, std::pair{WeightFormat::kInt8, 0.3f}}) {
    const auto runner = Runner(adapters_, format);
    ASSERT_NE(runner, nullptr);
    std::vector<RunnerOutput> alone;
    for (int i = -1; i < static_cast<int>(adapters_.size()); ++i) {
      alone.push_back(Alone(*runner, i));
      if (i < 0) continue;
      const json& adapter = GetParam()["adapters"][static_cast<size_t>(i)];
      const float worst =
          Distance(alone.back().values, DecodeFloats(adapter["logits"].get<std::string>()));
      EXPECT_LE(worst, limit) << adapters_[static_cast<size_t>(i)] << " on " << Name(format);
      EXPECT_GT(worst, 1e-4f) << "in fewer bits it cannot be that near";
    }
    ExpectMixedIsAlone(*runner, alone);
  }
}

// Each device has shards of A and B, partitioned like the matrix that they change.
TEST_P(AdapterLogitsTest, MatchUnderModelParallelism) {
  const auto whole = Runner(adapters_);
  ASSERT_NE(whole, nullptr);
  const auto bytes_of = [](ProgramModelRunner& runner) {
    int64_t bytes = 0;
    for (int i = 0; i < runner.executor().num_buffers(); ++i) {
      const bool b = runner.executor().tensor_name(i).ends_with(".lora_b");
      if (b && !runner.executor().is_alias(i)) bytes += runner.executor().spec(i).bytes();
    }
    return bytes;
  };
  std::vector<ServingDegrees> cuts = {{2, 1}, {1, 2}, {2, 2}};
  // K/V heads are replicated on several devices.
  const FamilyHeads heads = HeadsOf(base_);
  if (heads.keys < heads.queries) cuts.push_back({heads.queries, 1});
  for (const ServingDegrees& degrees : cuts) {
    SCOPED_TRACE(testing::Message()
                 << degrees.tensor_parallel << " x " << degrees.pipeline_parallel);
    auto ranks = Ranks(degrees, whole->limits());
    if (!heads.Divide(degrees.tensor_parallel)) {
      EXPECT_TRUE(absl::IsInvalidArgument(ranks.status())) << ranks.status();
      EXPECT_THAT(std::string(ranks.status().message()), HasSubstr("key and value heads"));
      continue;
    }
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    std::vector<RunnerOutput> alone;
    for (int i = -1; i < static_cast<int>(adapters_.size()); ++i) {
      alone.push_back(Alone(**ranks, i));
      const RunnerOutput one = Alone(*whole, i);
      EXPECT_LE(Distance(alone.back().values, one.values), 2e-5f) << "adapter " << i;
      EXPECT_LE(Distance(alone.back().hidden, one.hidden), 2e-5f) << "adapter " << i;
    }
    ExpectMixedIsAlone(**ranks, alone);
    if (degrees.pipeline_parallel > 1 || degrees.tensor_parallel == 1) continue;
    // Nobody holds all of what columns are cut from, unless they are 65 logits.
    if (GetParam().name() == "llama_tied") continue;
    for (size_t r = 0; r < (*ranks)->ranks(); ++r) {
      EXPECT_LT(bytes_of((*ranks)->rank(r)), bytes_of(*whole));
    }
  }
}

// A worker receives the rows of tensors in each parameter from the network, so it must check them.
TEST_P(AdapterLogitsTest, RejectsRowsMissingFromFiles) {
  const auto runner = Runner(adapters_);
  ASSERT_NE(runner, nullptr);
  absl::StatusOr<Adapted> built = Build(adapters_, WeightFormat::kF32);
  ASSERT_TRUE(built.ok()) << built.status();
  const auto files = LoraAdapters::OpenFolders(*files_, built->files.folders());
  ASSERT_TRUE(files.ok()) << files.status();
  const auto refused = [&](auto&& change, absl::StatusCode code, const std::string& what) {
    LoraAdapters::Parameters parameters = built->parameters;
    change(parameters.begin()->second);
    const absl::Status status = files->Load(parameters, runner->executor());
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  using Matrices = std::vector<AdapterMatrix>;
  static constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto invalid = absl::StatusCode::kInvalidArgument;
  // Of an adapter that changes the layer.
  const auto some = [](Matrices& m) -> AdapterMatrix& {
    return *std::find_if(m.begin(), m.end(), [](const auto& each) { return !each.tensor.empty(); });
  };
  refused([&](Matrices& m) { some(m).tensor = "lost"; }, absl::StatusCode::kNotFound, "'lost'");
  refused([&](Matrices& m) { some(m).rows = {{0, kHuge}}; }, invalid, "has no rows [0, ");
  refused([&](Matrices& m) { some(m).rows = {{-kHuge, 1}}; }, invalid, "has no rows [-");
  refused([&](Matrices& m) { some(m).rows.assign(1000, {0, 1}); }, invalid, "has no rows");
  refused([&](Matrices& m) { some(m).scale = std::numeric_limits<double>::quiet_NaN(); }, invalid,
          "the scale");
  refused([](Matrices& m) { m.pop_back(); }, invalid, "adapters");
  EXPECT_TRUE(files->Load(built->parameters, runner->executor()).ok());
}

TEST_P(AdapterLogitsTest, RejectsMismatchedFilesByName) {
  const json& first = GetParam()["adapters"][0];
  const json config = first["config"], tensors = first["tensors"];
  const std::string a = tensors.begin().key();  // ...lora_A.weight
  ASSERT_THAT(a, HasSubstr(".lora_A.weight"));
  const std::string b = std::string(a).replace(a.find("lora_A"), 6, "lora_B");
  const auto refused = [&](const json& c, const json& t, const std::vector<std::string>& what) {
    WriteAdapter("wrong", c, t, "");
    const absl::Status status = Make({"wrong"}).status();
    EXPECT_FALSE(status.ok());
    for (const std::string& part : what) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  };
  json changed = tensors;
  changed.erase(b);
  refused(config, changed, {"'wrong'", a, "no partner"});
  changed = tensors;
  changed[a][0][1] = changed[a][0][1].get<int>() + 1;
  refused(config, changed, {"'wrong'", a, "expected"});
  // PEFT's copy of an output layer, which is redundant.
  changed = tensors;
  const std::string module = a.substr(0, a.find(".lora_A"));
  const json copy = {{tensors[b][0][0], tensors[a][0][1]}, 0, 1};
  changed[module + ".base_layer.weight"] = copy;
  WriteAdapter("copied", config, changed, adapters_[0] + "/");
  const auto copied = Runner({"copied"}), original = Runner({adapters_[0]});
  ASSERT_TRUE(copied != nullptr && original != nullptr);
  EXPECT_EQ(Alone(*copied, 0).values, Alone(*original, 0).values);
  changed[module + ".base_layer.weight"][0][0] = 3;
  refused(config, changed, {"'wrong'", "base_layer", "expected"});
  changed = tensors;
  changed["base_model.model.lost.lora_A.weight"] = tensors[a];
  changed["base_model.model.lost.lora_B.weight"] = tensors[b];
  json any = config;
  any["target_modules"] = "all-linear";
  refused(any, changed, {"'wrong'", "lost.lora_A", "no linear layer"});
  refused(config, changed, {"'wrong'", "lost.lora_A", "target_modules"});
  changed = tensors;
  changed["base_model.model.model.embed_tokens.lora_embedding_A"] = {{2, 4}, 0, 1};
  refused(config, changed, {"'wrong'", "lora_embedding_A", "embeddings"});
  // A target module of other families, and one of this model without tensors.
  json more = config;
  more["target_modules"].push_back("k_projection");
  WriteAdapter("more", more, tensors, adapters_[0] + "/");
  const auto of_more = Runner({"more"});
  ASSERT_NE(of_more, nullptr);
  EXPECT_EQ(Alone(*of_more, 0).values, Alone(*original, 0).values);
  const std::string target = config["target_modules"][0];
  changed = tensors;
  for (const auto& [name, tensor] : tensors.items()) {
    if (absl::StrContains(name, "." + target + ".lora_")) changed.erase(name);
  }
  refused(config, changed, {"'wrong'", target, "no tensors"});
  json rank = config;
  rank["r"] = rank["r"].get<int>() + 1;
  refused(rank, tensors, {"'wrong'", "lora_A", "the rank is"});
  json huge = config;
  huge["lora_alpha"] = 1e308;
  refused(huge, tensors, {"lora_B", "scale"});
}

INSTANTIATE_TEST_SUITE_P(All, AdapterLogitsTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<FamilyCase>& info) {
                           return info.param.name();
                         });

}  // namespace
}  // namespace espalier
